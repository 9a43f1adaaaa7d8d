"""`FolderLock`: allow one writer for each folder of checkpoints.

Idea: the writer holds an advisory lock (flock) on a file in the folder. The kernel releases it when the process ends,
also after a crash, so a dead writer blocks no other. The file names the writer.

Rule: the lock decides on this machine, including its containers. It may not reach other machines (a mounted bucket, NFS
with local locks). So a file that names a writer on another machine is respected until a person deletes it. Readers need
no lock.

On a file system without locks, the file alone decides. A writer that it names is respected until it releases the lock,
or a person deletes the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import logging
import os
import socket
import weakref
from pathlib import Path
from typing import Any

from anytpu.errors import FileError
from anytpu.files.json_text import read_json

LOG = logging.getLogger("anytpu")

NAME = ".writer.json"
"""The locked file, in the folder of the checkpoints."""

_LOCKED_BY_OTHER = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass(frozen=True)
class Writer:
    """The process that writes checkpoints to a folder.

    Attributes:
        process_id: process ID.
        host: host name of the machine.
        machine: ID of the machine's boot: two writers with the same ID share a kernel.
        since: time when the process took the lock, in its own time zone.
    """

    process_id: int
    host: str
    machine: str
    since: str

    @classmethod
    def here(cls) -> Writer:
        """Return the writer for this process."""
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        return cls(os.getpid(), socket.gethostname(), _machine(), now)

    @classmethod
    def of(cls, content: bytes) -> Writer | None:
        """Return the writer named by a file's content; None if the content is empty or incomplete."""
        try:
            fields: Any = read_json(content)
            return cls(int(fields["process_id"]), *(str(fields[name]) for name in ("host", "machine", "since")))
        except (ValueError, TypeError, KeyError):
            return None

    def is_here(self) -> bool:
        """Return whether the writer runs, or ran, on this machine since its last boot."""
        return self.machine == _machine() and self.host == socket.gethostname()

    def is_elsewhere(self) -> bool:
        """Return whether the writer runs, or ran, on another machine than this process."""
        return self.machine != _machine() and self.host != socket.gethostname()

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
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
            # An empty file names no writer.
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
        # 3. Refuse if another writer is alive, or may be.
        if is_locked is False:
            raise FileError(
                f"another job writes checkpoints to {str(self._path.parent)!r}: {writer or 'a process just started'}. "
                "Wait until it ends, end it, or train in another folder"
            )
        if writer is not None and (writer.is_elsewhere() or is_locked is None):
            where = "a job on another machine writes" if writer.is_elsewhere() else "another job may still write"
            raise FileError(
                f"{where} checkpoints to {str(self._path.parent)!r}: {writer}. Whether it is alive cannot be seen from "
                f"here. If it has ended, type: rm {str(self._path)!r}"
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


os.register_at_fork(after_in_child=_close_in_child)


def _try_lock(descriptor: int, path: Path) -> bool | None:
    """Lock a file, and return True; return False if another process holds the lock, None without lock support."""
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


def _machine() -> str:
    return _BOOT.read_text().strip()
