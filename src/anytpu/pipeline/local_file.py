"""Files of the local file system.

Idea: reading a record is one `pread`, from any thread, on a file that remains open.

Rule: an error about a missing file lists the files that exist in its folder.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from anytpu.errors import FileError
from anytpu.files.replacing import replaced
from anytpu.pipeline.stored_file import AnyPath, Readable, StoredFile
from anytpu.units import MIB

_MAX_OPEN_FILES = 256
_OPENING = threading.Lock()


class LocalFile(StoredFile):
    """A local file. It remains open after its first read, unless 256 files are open already."""

    chunk_bytes = MIB // 16
    _open_files = 0

    def __init__(self, path: str):
        self.path = path
        self._descriptor: int | None = None

    @functools.cached_property
    def size_bytes(self) -> int:
        """Length of the file, cached on first use."""
        with explained(self.path, "read"):
            return os.stat(self.path).st_size

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read a range of bytes; fewer at the end of the file."""
        if self._descriptor is not None:  # the usual case, a third faster than the code below
            try:
                return os.pread(self._descriptor, length_bytes, offset_bytes)
            except OSError as error:
                raise FileError(_reason(self.path, "read", error)) from error
        with explained(self.path, "read"):
            if (descriptor := self._keep_open()) is not None:
                return os.pread(descriptor, length_bytes, offset_bytes)
            with open(self.path, "rb", buffering=0) as file:
                return os.pread(file.fileno(), length_bytes, offset_bytes)

    @contextlib.contextmanager
    def stream(self) -> Iterator[Readable]:
        """Open the file for reading in order."""
        with explained(self.path, "read"):
            file = open(self.path, "rb", buffering=MIB // 4)  # noqa: SIM115 - errors of the caller's block must not be explained
        with file:
            yield file

    def _keep_open(self) -> int | None:
        with _OPENING:
            if self._descriptor is None and LocalFile._open_files < _MAX_OPEN_FILES:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                type(self)._open_files += 1
        return self._descriptor

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_descriptor": None}

    # `os.close` is bound as a default: at interpreter exit, module globals may be gone before the last file is deleted.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor is not None:
            close(self._descriptor)
            type(self)._open_files -= 1


def local_matches(path: str) -> list[str]:
    """Return the files that match a path or a glob pattern, sorted by name.

    Raises:
        FileError: no file matches.
    """
    local = local_path(path)
    if os.path.isdir(local):
        raise FileError(_folder(path))
    if os.path.exists(local):
        return [local]
    if glob.has_magic(local) and (matches := sorted(glob.glob(local, recursive=True))):
        return matches
    raise FileError(_missing(path))


@contextlib.contextmanager
def created_here(path: AnyPath) -> Iterator[str]:
    """Yield a temporary path to write to; the file is moved to `path` when the block ends without an error.

    Raises:
        FileError: `path` cannot be written.
    """
    final = local_path(path)
    with contextlib.ExitStack() as stack:
        with explained(final, "write"):
            unfinished = stack.enter_context(replaced(Path(final)))
        yield str(unfinished)
        with explained(final, "write"):
            stack.pop_all().close()


def local_path(path: AnyPath) -> str:
    """Return a local path with `file://` removed and `~` expanded."""
    return os.path.expanduser(os.fspath(path).removeprefix("file://"))


@contextlib.contextmanager
def explained(path: str, verb: str) -> Iterator[None]:
    """Convert an OSError to a FileError that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        raise FileError(_reason(path, verb, error)) from error


def _reason(path: str, verb: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return _missing(path)
    if isinstance(error, IsADirectoryError):
        return _folder(path)
    return f"cannot {verb} {path!r}: {error.strerror or error}"


def _folder(path: str) -> str:
    return f"{path!r} is a folder; pass a pattern for its files: {os.path.join(path, '*.tfrecord')!r}"


def _missing(path: str) -> str:
    folder = os.path.dirname(local_path(path)) or "."
    fault = f"no file matches {path!r}" if glob.has_magic(path) else f"there is no file {path!r}"
    if not os.path.isdir(folder):
        return f"{fault}: the folder {folder!r} does not exist; the current folder is {os.getcwd()!r}"
    names = sorted(os.listdir(folder))
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{fault}; {folder!r} contains {shown or 'no files'}"
