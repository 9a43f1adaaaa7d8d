"""Atomic writing: complete or not at all, also on a full disk."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anytpu.files.replacing import replaced, write_bytes, write_text


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file of this process may grow beyond 1,000 bytes, as on a full disk."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Or Python cuts off what it compiles.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_file_is_written(tmp_path: Path):
    write_text(tmp_path / "a.txt", "grün\n")
    assert (tmp_path / "a.txt").read_bytes() == "grün\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path: Path, little_room: None):
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")
    with pytest.raises(OSError, match="File too large"):
        write_bytes(path, b"x" * 2000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_that_does_not_fit_is_not_there(tmp_path: Path, little_room: None):
    with pytest.raises(OSError, match="File too large"):
        write_bytes(tmp_path / "a.bin", b"x" * 2000)
    assert list(tmp_path.iterdir()) == []


def test_a_link_and_a_mode_are_kept(tmp_path: Path):
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)


def test_a_link_of_another_user_is_replaced(tmp_path: Path):
    if os.geteuid():
        pytest.skip("only root may give a link to another user")
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)
    os.lchown(link, 12345, 12345)
    write_text(link, "new")
    assert (path.read_text(), link.read_text(), link.is_symlink()) == ("old", "new", False)


def test_a_file_in_a_closed_folder_is_written_in_place(tmp_path: Path):
    """Root may write to every folder, so another user does it."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o666)
    tmp_path.chmod(0o555)
    program = (
        "import os; from anytpu.files.replacing import write_text, Path; "
        "os.geteuid() or os.setuid(65534); write_text(Path('a.txt'), 'new')"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_not_written_in_place_for_want_of_room(tmp_path: Path):
    """A process out of file descriptors cannot make the temporary file, and a full disk is no other case."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    writer = replaced(path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            writer.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert path.read_text() == "old"


def test_shared_memory_is_a_folder_like_others(little_room: None):
    path = Path(f"/dev/shm/anytpu-test-{os.getpid()}")
    try:
        write_bytes(path, b"old")
        with pytest.raises(OSError, match="File too large"):
            write_bytes(path, b"x" * 2000)
        assert path.read_bytes() == b"old"
    finally:
        path.unlink(missing_ok=True)


def test_a_pipe_is_written_to(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_text, args=(pipe, "through"))
    writer.start()
    assert pipe.read_text() == "through"
    writer.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_is_written_to(tmp_path: Path):
    program = "from anytpu.files.replacing import write_text, Path; write_text(Path('/dev/stdout'), 'text'); print('!')"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "text!\n"
    with (tmp_path / "out").open("w") as file:
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert "!" in (tmp_path / "out").read_text()
