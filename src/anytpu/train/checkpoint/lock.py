"""`FolderLock`: one writer for each folder of checkpoints.

Idea: the writer holds an advisory lock (flock) on a file in the folder. The kernel lets go of it when the process ends,
however it ends, so a dead writer locks nobody out. The file says who the writer is.

Rule: the lock is the truth on this machine, in other containers of it too. It need not reach other machines (a mounted
bucket, NFS with local locks), so a file that names a writer on another machine is respected until a person deletes it.
Readers need no lock.

Where there are no locks (some file systems, Windows), the file alone counts: a writer that it names is respected while
its process is alive, and, where that cannot be seen, until a person deletes the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import json
import logging
import os
import socket
import uuid
import weakref
from pathlib import Path
from typing import Any

from anytpu.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOG = logging.getLogger("anytpu")

NAME = ".writer.json"
"""The file that is locked, in the folder of the checkpoints."""

_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CAN_ASK = os.name == "posix"
"""Whether signal 0 asks if a process is alive. On Windows it is a Ctrl-C."""


@dataclasses.dataclass(frozen=True)
class Writer:
    """The process that writes checkpoints to a folder.

    Attributes:
        process_id: its number.
        host: the name of its machine.
        machine: the machine since its last start: two writers with the same one share a kernel.
        since: when it began, in its own time zone.
        started: the start of the process, which tells it from others of the same number; None where that is not known.
    """

    process_id: int
    host: str
    machine: str
    since: str
    started: str | None = None

    @classmethod
    def here(cls) -> Writer:
        """Return this process."""
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        return cls(os.getpid(), socket.gethostname(), _machine(), now, _started(os.getpid()))

    @classmethod
    def of(cls, content: bytes) -> Writer | None:
        """Return the writer that a file names; None for an empty or a half-written one."""
        try:
            said: Any = json.loads(content)
            names = (str(said["host"]), str(said["machine"]), str(said["since"]))
            return cls(int(said["process_id"]), *names, said.get("started"))
        except (ValueError, TypeError, KeyError):
            return None

    def is_elsewhere(self) -> bool:
        """Return whether it runs, or ran, on another machine than this process."""
        return self.machine != _machine() and self.host != socket.gethostname()

    def is_alive(self) -> bool | None:
        """Return whether its process runs; None where this cannot be seen from here."""
        if self.is_elsewhere():
            return None
        if self.machine != _machine():  # It was restarted since.
            return False
        here = _started(os.getpid())
        is_in_other_container = here is not None and str(self.started).partition(" ")[0] != here.partition(" ")[0]
        if not _CAN_ASK or is_in_other_container:
            return None
        try:
            os.kill(self.process_id, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:  # It is another user's.
            pass
        return _started(self.process_id) in (None, self.started)

    def __str__(self) -> str:
        return f"process {self.process_id} on {self.host!r}, since {self.since}"


class FolderLock:
    """The right to write checkpoints to a folder. A context manager.

    Args:
        folder: the folder, which exists.

    Raises:
        FileError: (on entering) another job has it.
        OSError: (on entering) its file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        """Take the lock."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        _HELD.add(self)
        try:
            self._take(self._descriptor)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        self.close()

    def close(self) -> None:
        """Close the file, which unlocks it unless the lock is another process's."""
        _HELD.discard(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self, descriptor: int) -> None:
        is_locked = _locked(descriptor, self._path)
        os.lseek(descriptor, 0, os.SEEK_SET)
        writer = Writer.of(os.read(descriptor, 4096))
        is_alive: bool | None = is_locked is False
        if is_locked is None and writer is not None:
            is_alive = writer.is_alive()
        if is_alive:
            raise FileError(
                f"another job writes checkpoints to {str(self._path.parent)!r}: {writer or 'a process just started'}. "
                "Wait until it ends, end it, or train in another folder"
            )
        if writer is not None and writer.is_elsewhere():
            raise FileError(
                f"a job on another machine writes checkpoints to {str(self._path.parent)!r}: {writer}. Whether it is "
                f"alive cannot be seen from here. If it has ended, type: rm {str(self._path)!r}"
            )
        if is_alive is None:
            raise FileError(
                f"another job may still write checkpoints to {str(self._path.parent)!r}: {writer}. Whether it is alive "
                f"cannot be seen from here. If it has ended, type: rm {str(self._path)!r}"
            )
        if writer is not None and writer.machine == _machine():
            LOG.info("The lock of %s is taken over: it ended without letting go of it.", writer)
        elif writer is not None:
            LOG.info("The lock of %s is taken over: this machine was restarted since, or has its name.", writer)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(dataclasses.asdict(Writer.here())).encode())


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _close_in_child() -> None:
    # A forked child shares the lock, and would keep it when its parent is gone.
    for lock in list(_HELD):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _locked(descriptor: int, path: Path) -> bool | None:
    """Lock a file, if no other process has; return whether that was so, and None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        LOG.warning(
            "The file system of %s has no locks (%s): let one job at a time train in this folder",
            path.parent,
            error.strerror,
        )
        return None
    return True


def _started(process_id: int) -> str | None:
    """Return the container and the start of a process: empty when it has ended, None where that cannot be read."""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        container = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux, or hidden
        return None
    # A zombie still has its number. The start is in clock ticks since that of the machine.
    return "" if state in "ZX" else f"{container} {fields[18]}"


def _machine() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:  # not Linux
        return f"{uuid.getnode():x}"
