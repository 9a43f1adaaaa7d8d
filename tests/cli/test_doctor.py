from __future__ import annotations

import pytest

from anytpu.cli import examination
from anytpu.cli.machine import look_at_machine
from cli.commands import anytpu


def line_of(name: str, text: str) -> str:
    return next(line for line in text.splitlines() if line[9:].startswith(name))


def test_virtual_cores_pass():
    run = anytpu("doctor", "--tpu", "virtual", "--cores", "3")
    assert run.returncode == 0, run.stdout
    assert line_of("found", run.stdout) == (
        "ok       found          3 virtual cores: 3 virtual cores, simulated on this"
    )
    assert line_of("small step", run.stdout).startswith(
        "ok       small step     multiplied on 3 cores and all-reduced,"
    )
    assert run.stdout.splitlines()[-1].endswith("next: anytpu demo")


def test_a_check_that_failed_ends_with_1_and_the_others_are_shown():
    run = anytpu("doctor", "--tpu", "v2-9")
    assert run.returncode == 1
    assert line_of("found", run.stdout).startswith("failed   found          'v2-9' is not a TPU that exists:")
    assert line_of("extra dev", run.stdout) == "ok       extra dev      installed, for working on anytpu itself"
    assert run.stdout.splitlines()[-1].endswith("1 failed; look at what failed, from the top")


def test_a_step_that_raises_is_a_check_that_failed(monkeypatch: pytest.MonkeyPatch):
    def broken(strategy):
        raise RuntimeError("the compiler\nrefused.")

    monkeypatch.setattr(examination, "try_cores", broken)
    *_, check = examination.system_checks("virtual", 2, look_at_machine())
    assert (check.status, check.name, check.found) == ("failed", "small step", "the compiler refused")
    assert check.command == "anytpu env"
