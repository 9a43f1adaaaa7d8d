"""`FolderLock`: allow one writer for each folder of checkpoints.

Idea: the writer holds an advisory lock (flock) on a file in the folder. The kernel releases it when the process ends,
also after a crash, so a dead writer blocks no other. The file names the writer.

Rule: the lock decides on this machine, including its containers. It may not reach other machines (a mounted bucket, NFS
with local locks). So a file that names a writer on another machine is respected until a person deletes it. Readers need
no lock.

Without locks (some file systems, Windows), the file alone decides. A writer that it names is respected while its
process is alive. If this cannot be determined, it is respected until a person deletes the file.
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
"""The locked file, in the folder of the checkpoints."""

_LOCKED_BY_OTHER = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CAN_PROBE = os.name == "posix"
"""Whether signal 0 tests if a process is alive. On Windows signal 0 is a Ctrl-C."""


@dataclasses.dataclass(frozen=True)
class Writer:
    """The process that writes checkpoints to a folder.

    Attributes:
        process_id: process ID.
        host: host name of the machine.
        machine: ID of the machine's boot: two writers with the same ID share a kernel.
        since: time when the process took the lock, in its own time zone.
        started: container and start time of the process, which distinguish it from others of the same ID; None if
            unknown.
    """

    process_id: int
    host: str
    machine: str
    since: str
    started: str | None = None

    @classmethod
    def here(cls) -> Writer:
        """Return the writer for this process."""
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        return cls(os.getpid(), socket.gethostname(), _machine(), now, _started(os.getpid()))

    @classmethod
    def of(cls, content: bytes) -> Writer | None:
        """Return the writer named by a file's content; None if the content is empty or incomplete."""
        try:
            fields: Any = json.loads(content)
            names = (str(fields["host"]), str(fields["machine"]), str(fields["since"]))
            return cls(int(fields["process_id"]), *names, fields.get("started"))
        except (ValueError, TypeError, KeyError):
            return None

    def is_elsewhere(self) -> bool:
        """Return whether the writer runs, or ran, on another machine than this process."""
        return self.machine != _machine() and self.host != socket.gethostname()

    def is_alive(self) -> bool | None:
        """Return whether the writer's process runs; None if this process cannot determine it."""
        if self.is_elsewhere():
            return None
        if self.machine != _machine():  # The machine was restarted since.
            return False
        here = _started(os.getpid())
        is_in_other_container = here is not None and str(self.started).partition(" ")[0] != here.partition(" ")[0]
        if not _CAN_PROBE or is_in_other_container:
            return None
        try:
            os.kill(self.process_id, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:  # The process exists and belongs to another user.
            pass
        return _started(self.process_id) in (None, self.started)

    def __str__(self) -> str:
        return f"process {self.process_id} on {self.host!r}, since {self.since}"


class FolderLock:
    """The right to write checkpoints to a folder. A context manager.

    Args:
        folder: an existing folder.

    Raises:
        FileError: (on entering) another job holds the lock.
        OSError: (on entering) the lock file cannot be written.
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
        """Release the lock."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        self.close()

    def close(self) -> None:
        """Close the file. This releases the lock, unless another process holds it."""
        _HELD.discard(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self, descriptor: int) -> None:
        # 1. Try the lock. True: ours. False: another process holds it. None: there are no locks.
        is_locked = _try_lock(descriptor, self._path)
        # 2. Read the last writer. Without locks, it alone decides.
        os.lseek(descriptor, 0, os.SEEK_SET)
        writer = Writer.of(os.read(descriptor, 4096))
        is_alive: bool | None = is_locked is False
        if is_locked is None and writer is not None:
            is_alive = writer.is_alive()
        # 3. Refuse if another writer is alive, or may be.
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
        # 4. Take over from a dead writer, and name this process in the file.
        if writer is not None and writer.machine == _machine():
            LOG.info("The lock of %s is taken over: it ended without releasing it.", writer)
        elif writer is not None:
            LOG.info("The lock of %s is taken over: this machine was restarted since, or has its name.", writer)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(dataclasses.asdict(Writer.here())).encode())


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _close_in_child() -> None:
    # A forked child shares the lock, and would keep it after its parent ends.
    for lock in list(_HELD):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _try_lock(descriptor: int, path: Path) -> bool | None:
    """Lock a file, and return True; return False if another process holds the lock, None without lock support."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED_BY_OTHER:
            return False
        LOG.warning(
            "The file system of %s has no locks (%s): let one job at a time train in this folder",
            path.parent,
            error.strerror,
        )
        return None
    return True


def _started(process_id: int) -> str | None:
    """Return the container and start time of a process: "" if it has ended, None if they cannot be read."""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        container = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux, or hidden
        return None
    # A zombie still has its process ID. The start time is in clock ticks since boot.
    return "" if state in "ZX" else f"{container} {fields[18]}"


def _machine() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:  # not Linux
        return f"{uuid.getnode():x}"
