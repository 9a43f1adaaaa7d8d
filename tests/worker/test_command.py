"""`anytpu worker`: its refusals before it listens. tests/worker runs it."""

from __future__ import annotations

import pytest

from anytpu.cli.entry import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--insecure"],
            "--insecure is for a worker on this machine alone, and --host is '0.0.0.0': add --host 127.0.0.1, or leave "
            "out --insecure",
        ),
        (
            ["--tls-cert", "cert.pem"],
            "--tls-cert and --tls-key name two files of one certificate: give both, or neither",
        ),
        (["--port", "70000"], "--port must be from 0 to 65535, not 70000"),
        (["--metrics-port", "99999"], "--metrics-port must be from 0 to 65535, not 99999"),
        (["--metrics-port", "-1"], "--metrics-port must be from 0 to 65535, not -1"),
        (
            ["--memory-limit", "0"],
            "argument --memory-limit: must be a positive integer, not '0'; see `anytpu worker --help`",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["worker", *words]) == 2
    assert capsys.readouterr().err == f"anytpu: {message}\n"
