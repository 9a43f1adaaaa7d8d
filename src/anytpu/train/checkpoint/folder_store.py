"""`FolderStore`: checkpoints in a folder of this machine, written atomically.

Idea: `arrays.bin` holds the bytes of all arrays, one after the other. `manifest.json` holds the offset and a digest of
each. Both are written to a folder of a temporary name, the manifest last. The folder is renamed when both are on the
disk.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from anytpu.errors import DamageError, FileError
from anytpu.files.opening import open_file, read_file
from anytpu.train.checkpoint.arrays import ByteSource, Sink, write_all
from anytpu.train.checkpoint.lock import FolderLock
from anytpu.train.checkpoint.manifest import NAME
from anytpu.train.checkpoint.store import ARRAYS, number_of, parts_in

UNFINISHED, DISCARDED = ".unfinished-", ".discarded-"
"""Prefixes of folders that are being written or deleted. The step and a process ID follow."""

_LEFT_BEHIND = re.compile(f"({re.escape(UNFINISHED)}|{re.escape(DISCARDED)})[0-9]+-[0-9]+")

_DAMAGED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}
"""Read errors that show a damaged file. Other errors may be temporary, such as a missing permission."""

_NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class FolderStore:
    """The files of checkpoints in a folder. See `Store`.

    Args:
        path: the absolute path of the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder, and delete the folders of killed writers."""
        self._path.mkdir(parents=True, exist_ok=True)
        with FolderLock(self._path):
            # Only under the lock, because the folder that a living writer fills has such a name too.
            for name in os.listdir(self._path):
                if _LEFT_BEHIND.fullmatch(name):
                    shutil.rmtree(self._path / name, ignore_errors=True)
            yield

    def free_bytes(self) -> int:
        """Return the free bytes of the disk."""
        return shutil.disk_usage(self._path).free

    def steps(self) -> dict[int, bool]:
        """Return the steps of the checkpoints, each with whether it has a manifest."""
        try:
            steps = [self._step_at(self._path / name) for name in os.listdir(self._path)]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {step: os.path.isfile(self._folder(step) / NAME) for step in sorted(s for s in steps if s is not None)}

    def is_taken(self, step: int) -> bool:
        """Return whether there is anything under the name of a step."""
        return os.path.lexists(self._folder(step))

    def write(self, step: int, write: Callable[[Sink], bytes]) -> None:
        """Write the folder of a checkpoint and flush it to the disk."""
        # 1. All files are written to a folder with a temporary name.
        self._path.mkdir(parents=True, exist_ok=True)
        temporary = self._path / f"{UNFINISHED}{step}-{os.getpid()}"
        temporary.mkdir()
        try:
            # Unbuffered: with a buffer, closing a file after an error would write again, and fail again.
            with (temporary / ARRAYS).open("xb", buffering=0) as arrays:
                manifest = write(arrays)
                os.fsync(arrays.fileno())
            # 2. The manifest comes last, under a temporary name until it is on the disk.
            with (temporary / f"{NAME}.unfinished").open("xb", buffering=0) as file:
                write_all(file, memoryview(manifest))
                os.fsync(file.fileno())
            os.rename(file.name, temporary / NAME)
            _flush_folder(temporary)
            # 3. The rename makes the checkpoint visible in one step.
            os.rename(temporary, self._folder(step))
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _flush_folder(self._path)

    def read_manifest(self, step: int) -> bytes:
        """Return the manifest of a checkpoint."""
        with _reported_damage(NAME):
            return read_file(self._folder(step) / NAME)

    @contextlib.contextmanager
    def arrays(self, step: int) -> Iterator[tuple[ByteSource, int]]:
        """Return a context with the file of the arrays, or its parts, and their size."""
        folder = self._folder(step)
        with _reported_damage(ARRAYS), contextlib.ExitStack() as stack:
            names = parts_in(os.listdir(folder)) or [ARRAYS]
            files = [stack.enter_context(open_file(folder / name)) for name in names]
            yield _JoinedFiles(files), sum(os.fstat(file.fileno()).st_size for file in files)

    def set_aside(self, step: int) -> str:
        """Rename the folder of a checkpoint."""
        names = itertools.chain([f"{step}.damaged"], (f"{step}.damaged-{number}" for number in itertools.count(2)))
        free = next(path for name in names if not (path := self._path / name).exists())
        os.rename(self._folder(step), free)
        return str(free)

    def delete(self, step: int) -> None:
        """Delete the folder of a checkpoint."""
        # Renamed first: a partly deleted checkpoint would look like a damaged one.
        renamed = self._path / f"{DISCARDED}{step}-{os.getpid()}"
        os.rename(self._folder(step), renamed)
        shutil.rmtree(renamed, ignore_errors=True)

    def saved(self, step: int) -> tuple[float, int]:
        """Return the time of the last change of a checkpoint, and its size in bytes."""
        facts = [path.stat() for path in self._folder(step).iterdir() if path.is_file()]
        return max((fact.st_mtime for fact in facts), default=0.0), sum(fact.st_size for fact in facts)

    def empty_steps(self) -> list[int]:
        """Return the steps whose folders are empty."""
        with contextlib.suppress(OSError):
            folders = [path for path in self._path.iterdir() if number_of(path.name) is not None and path.is_dir()]
            return sorted(int(path.name) for path in folders if not os.listdir(path))
        return []

    def _folder(self, step: int) -> Path:
        return self._path / str(step)

    def _step_at(self, path: Path) -> int | None:
        """Return the step of the checkpoint in a folder, whole or damaged; None if the folder is not a checkpoint.

        A checkpoint's folder gets its number only after its files are written. So a numbered folder without any of
        these files is not a checkpoint.
        """
        step = number_of(path.name)
        if step is None:
            return None
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                return None
        except OSError as error:
            if error.errno in _NOT_FOUND:
                return None
            raise
        try:
            is_checkpoint = not {NAME, ARRAYS}.isdisjoint(os.listdir(path))
        except FileNotFoundError:
            return None
        except OSError:
            # A folder that cannot be listed may be a checkpoint; reading it later reports the reason.
            is_checkpoint = True
        return step if is_checkpoint else None


class _JoinedFiles:
    """The bytes of some files, one after the other. It is a `ByteSource`.

    Args:
        files: the open files.
    """

    def __init__(self, files: Iterable[IO[bytes]]) -> None:
        self._files = deque(files)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of a buffer, at most to the end of a file; return 0 at the end.

        Raises:
            OSError: a file cannot be read.
        """
        while self._files:
            if count := self._files[0].readinto(buffer):  # type: ignore[attr-defined]
                return count
            self._files.popleft()
        return 0


def _flush_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reported_damage(name: str) -> Iterator[None]:
    """Turn an `OSError` of reading a file into a `DamageError` or `FileError` that names the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileError):
            raise
        if error.errno == errno.ENOENT:
            raise DamageError(f"it has no {name}") from error
        # An open file's EINVAL has no name. With one, `open_file` has refused a named pipe, a socket or a device.
        is_no_file = error.errno == errno.EINVAL and error.filename is not None
        kind = DamageError if error.errno in _DAMAGED or is_no_file else FileError
        raise kind(f"its {name} cannot be read: {error.strerror or error}") from error
