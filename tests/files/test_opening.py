"""Files that a user names: what is no file is refused before it is opened."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from anytpu.files.opening import open_file, read_file, read_text


def why_not(path: Path) -> str | None:
    with pytest.raises(OSError, match=r".") as caught:
        open_file(path)
    return caught.value.strerror


def test_files(tmp_path: Path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert read_file(path) == b"\xef\xbb\xbfone\r\ntwo\n"
    assert read_text(path, "utf-8-sig") == "one\ntwo\n"
    (tmp_path / "link").symlink_to(path)
    assert read_file(tmp_path / "link") == read_file(path)


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("broken").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    assert why_not(Path("pipe")) == "Is a named pipe"
    assert why_not(Path("socket")) == "Is a socket"
    assert why_not(Path("/dev/zero")) == "Is a device"
    assert why_not(Path("broken")) == "Is a link to 'nowhere', which does not exist"
    assert why_not(Path("loop")) == "Too many levels of symbolic links"
    assert why_not(Path()) == "Is a directory"
    assert why_not(Path("none")) == "No such file or directory"
    assert why_not(Path("pipe/none")) == "Not a directory"
    assert why_not(Path("a" * 300)) == "File name too long"


def test_a_pipe_that_the_shell_opened_is_read():
    code = "from pathlib import Path; from anytpu.files.opening import read_text; print(read_text(Path('/dev/stdin')))"
    child = subprocess.run([sys.executable, "-c", code], input="halt", capture_output=True, text=True)
    assert child.stdout == "halt\n"


def test_a_text_that_is_too_large(tmp_path: Path):
    path = tmp_path / "large.txt"
    path.write_bytes(b"12345")
    assert read_text(path, max_bytes=5) == "12345"
    with pytest.raises(OSError, match=r".") as caught:
        read_text(path, max_bytes=4)
    assert caught.value.strerror == "Has 5 bytes or more; the maximum is 4"
