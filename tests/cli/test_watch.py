"""`anytpu watch` in a browser: a run that trains, one that was killed, a server that is started again."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import anytpu as tpu
from anytpu.cli.watch import Site
from anytpu.errors import FileError, SettingError
from browser import BROWSER, browse
from cli.commands import anytpu


@contextmanager
def served(*folders: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[Site]:
    with Site([str(folder) for folder in folders], host, port) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


def asked(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_shows_what_is_new(tmp_path: Path):
    with tpu.RunRecord(tmp_path / "run7") as record:
        record.log(1, loss=1.0)
        with served(tmp_path / "run7") as site:
            assert "run7 is running at step 1" in asked(site.url)[1]
            record.log(2, loss=0.25)
            site._looked_s = 0.0  # as half a second later
            assert "run7 is running at step 2" in asked(f"{site.url}runs")[1]
            record.close()
            site._looked_s = 0.0
            assert "run7 ended at step 2" in asked(f"{site.url}runs")[1]


def test_only_this_machine_or_a_token_opens_the_page(tmp_path: Path):
    with tpu.RunRecord(tmp_path) as record:
        record.log(1, loss=1.0)
    with served(tmp_path) as site:
        assert asked(site.url, Host="evil.test")[0] == 403
        assert asked(f"{site.url}../etc/passwd") == (404, "there is no such page")
        (tmp_path / "metrics.jsonl").unlink()
        site._looked_s = 0.0
        status, text = asked(f"{site.url}runs")
        assert (status, "cannot be read: No such file" in text) == (500, True)
        with pytest.raises(SettingError) as caught:
            Site([], "127.0.0.1", site.server_port)
        assert str(caught.value) == (
            f"the page cannot be served at 127.0.0.1 port {site.server_port}: [Errno 98] Address already in use; "
            "choose --port 0"
        )
    with pytest.raises(FileError):
        Site([str(tmp_path)], "127.0.0.1", 0)
    with served(host="127.0.0.2") as site:
        assert asked(site.url)[0] == 200
        assert asked(site.url, Host="evil.test")[0] == 403
    with served(host="0.0.0.0") as site:
        assert re.fullmatch(r"http://0\.0\.0\.0:\d+/\?token=.{20,}", site.url)
        assert asked(site.url)[0] == 200
        for wrong in ("", "?token=", "?token=%C3%A9", f"?token={site.token}x"):
            assert asked(f"http://127.0.0.1:{site.server_port}/{wrong}")[0] == 403


@pytest.mark.parametrize("host", ["localhost", "::1", "my machine"])
def test_an_address_that_is_not_one_is_refused(host: str):
    with pytest.raises(SettingError) as caught:
        Site([], host, 0)
    assert str(caught.value) == f"the page needs an IPv4 address of this machine, not {host!r}; omit --host"


def test_a_port_that_is_not_one_is_refused():
    with pytest.raises(SettingError) as caught:
        Site([], "127.0.0.1", 70000)
    assert str(caught.value) == (
        "the page cannot be served at 127.0.0.1 port 70000: bind(): port must be 0-65535.; choose --port 0"
    )


def test_a_client_of_another_kind_prints_nothing(capfd: pytest.CaptureFixture[str]):
    with served() as site:
        for request in (b"GET http://[ HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\nHost: [\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", site.server_port)) as client:
                client.sendall(request)
                assert b" 403 " in client.recv(100)
        with socket.create_connection(("127.0.0.1", site.server_port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert asked(site.url)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_the_command_says_where_the_page_is(tmp_path: Path):
    with tpu.RunRecord(tmp_path / "run7") as record:
        record.log(1, loss=1.0)
    command = [sys.executable, "-m", "anytpu", "watch", "run7", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert "run7 ended" in asked(line.split()[0])[1]
        process.send_signal(2)
        assert process.wait() == 130
        assert process.stderr.read() == "anytpu: interrupted\n"
    run = anytpu("watch", "run8", folder=tmp_path)
    assert (run.returncode, run.stderr.split(":")[1]) == (2, " there is no record of a run in 'run8'")


@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
def test_a_browser_follows_a_run_and_a_server_that_comes_back(tmp_path: Path):
    """The browser's clock runs fast: it asks some times while the test asks it for the page."""
    with tpu.RunRecord(tmp_path / "run7") as record:
        record.log(1, loss=1.0)
        with served(tmp_path / "run7") as site:
            original, asks = site.content, []

            def content() -> str:
                asks.append(1)
                record.log(len(asks) + 1, loss=1.0)
                site._looked_s = 0.0
                if len(asks) == 3:
                    raise FileError("gone for a moment")
                return original()

            site.content = content
            seen = browse(tmp_path, "--virtual-time-budget=8000", "--dump-dom", site.url)
    step = re.search(r"run7 is running at step (\d+)", seen.stdout)
    assert step is not None
    assert int(step[1]) > 4  # The page went on after the answer that failed.
    assert '<p class="warning"></p>' in seen.stdout
    assert "Content Security Policy" not in seen.stderr
