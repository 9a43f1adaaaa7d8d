from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import signal
import subprocess
import sys

import pytest

from anytpu.errors import FileError
from anytpu.train.checkpoint import lock
from anytpu.train.checkpoint.lock import NAME, FolderLock, Writer

HOLDS = """
import sys
from pathlib import Path
from anytpu.train.checkpoint.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.readline()
"""
FORKS = """
import os, signal, sys
from pathlib import Path
from anytpu.train.checkpoint.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
    signal.pause()
"""


def started(code: str, folder) -> subprocess.Popen:
    command = [sys.executable, "-c", code, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def test_one_writer(tmp_path):
    with FolderLock(tmp_path):
        writer = Writer.of((tmp_path / NAME).read_bytes())
        assert writer is not None
        assert writer.process_id == os.getpid()
        with pytest.raises(FileError) as caught, FolderLock(tmp_path):
            pass
        assert str(caught.value) == (
            f"another job writes checkpoints to {str(tmp_path)!r}: process {os.getpid()} on {writer.host!r}, since "
            f"{writer.since}. Wait until it ends, end it, or train in another folder"
        )
        assert Writer.of((tmp_path / NAME).read_bytes()) == writer
    assert (tmp_path / NAME).read_bytes() == b""
    with FolderLock(tmp_path):
        pass


def test_a_writer_that_is_killed(tmp_path, caplog):
    with started(HOLDS, tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "holds\n"
        with pytest.raises(FileError, match=f"process {child.pid} on"), FolderLock(tmp_path):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
    with caplog.at_level(logging.INFO, logger="anytpu"), FolderLock(tmp_path):
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith(f"The lock of process {child.pid} on ")
        assert caplog.messages[0].endswith(" is taken over: it ended without releasing it.")


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path):
    with started(FORKS, tmp_path) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        try:
            with FolderLock(tmp_path):
                pass
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_a_writer_on_another_machine(tmp_path):
    other = Writer(7, "elsewhere", "1-2-3", "2026-11-22 07:00:00+00:00")
    (tmp_path / NAME).write_text(json.dumps(dataclasses.asdict(other)))
    with pytest.raises(FileError) as caught, FolderLock(tmp_path):
        pass
    assert str(caught.value) == (
        f"a job on another machine writes checkpoints to {str(tmp_path)!r}: process 7 on 'elsewhere', since 2026-11-22 "
        f"07:00:00+00:00. Whether it is alive cannot be seen from here. If it has ended, type: rm "
        f"{str(tmp_path / NAME)!r}"
    )
    os.unlink(tmp_path / NAME)
    with FolderLock(tmp_path):
        pass


@pytest.mark.parametrize("changes", [{"host": "renamed"}, {"machine": "1-2-3"}])
def test_a_writer_of_this_machine_before_it_was_started_anew_or_in_another_container(tmp_path, changes, caplog):
    before = dataclasses.replace(Writer.here(), **changes)
    (tmp_path / NAME).write_text(json.dumps(dataclasses.asdict(before)))
    with caplog.at_level(logging.INFO, logger="anytpu"), FolderLock(tmp_path):
        pass
    known = "it ended without releasing it" if "host" in changes else "this machine was restarted since, or has"
    rest = "" if "host" in changes else " its name"
    assert caplog.messages == [f"The lock of {before} is taken over: {known}{rest}."]


def no_locks(monkeypatch, number: int = errno.ENOLCK) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_on_a_file_system_without_locks_the_file_alone_decides(tmp_path, caplog, monkeypatch, number):
    no_locks(monkeypatch, number)
    with caplog.at_level(logging.INFO, logger="anytpu"), FolderLock(tmp_path):
        assert caplog.messages == [
            f"The file system of {tmp_path} has no locks ({os.strerror(number)}): let one job at a time train in this "
            "folder"
        ]
        writer = Writer.of((tmp_path / NAME).read_bytes())
        with pytest.raises(FileError) as caught, FolderLock(tmp_path):
            pass
        assert str(caught.value) == (
            f"another job may still write checkpoints to {str(tmp_path)!r}: {writer}. Whether it is alive cannot be "
            f"seen from here. If it has ended, type: rm {str(tmp_path / NAME)!r}"
        )
    with FolderLock(tmp_path):
        pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"process_id": "x"}', b"\xff"])
def test_a_file_that_names_nobody(tmp_path, content):
    (tmp_path / NAME).write_bytes(content)
    assert Writer.of(content) is None
    with FolderLock(tmp_path):
        pass
