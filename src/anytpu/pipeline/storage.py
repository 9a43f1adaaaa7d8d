"""Access to files by path or URL: local files, gs://, s3://, https:// and others.

Idea: `stored`, `expand` and `created` accept a path or a URL, so that no other module distinguishes them. Reading a
local record is one `pread`, from any thread, on a file that remains open.

Rule: files are written atomically: a new file appears at its path only when it is complete. Every failure is a
`FileError` that names the file and says what to do. About a missing file it lists the files in its folder.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from anytpu.errors import FileError, SettingError
from anytpu.files.replacing import replaced
from anytpu.pipeline.remote_file import RemoteFile, is_url, remote_matches, upload
from anytpu.units import MIB

AnyPath = str | os.PathLike[str]
"""A path or a URL, as a user writes it."""

_MAX_OPEN_FILES = 256
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk, a quota or a limit without room."""
_OPENING = threading.Lock()


class LocalFile:
    """A local file with random access from any thread; it remains open after its first read.

    If 256 files are open already, it is opened for each read.

    Args:
        path: the path.
    """

    chunk_bytes = MIB // 16
    open_files: ClassVar[weakref.WeakSet[LocalFile]] = weakref.WeakSet()

    def __init__(self, path: str):
        self.path = path
        self._descriptor: int | None = None

    @functools.cached_property
    def size_bytes(self) -> int:
        """Length of the file, cached on first use."""
        with _explained(self.path, "read"):
            return os.stat(self.path).st_size

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read a range of bytes; fewer at the end of the file."""
        try:
            if self._descriptor is None and not self._keep_open():
                with open(self.path, "rb", buffering=0) as file:
                    return os.pread(file.fileno(), length_bytes, offset_bytes)
            assert self._descriptor is not None
            return os.pread(self._descriptor, length_bytes, offset_bytes)
        except OSError as error:
            raise FileError(_reason(self.path, "read", error)) from error

    @contextlib.contextmanager
    def stream(self) -> Iterator[Any]:
        """Open the file for reading in order."""
        with _explained(self.path, "read"):
            file = open(self.path, "rb", buffering=MIB // 4)  # noqa: SIM115 - errors of the caller's block must not be explained
        with file:
            yield file

    def _keep_open(self) -> bool:
        """Open the file for all further reads; return False if too many files are open."""
        with _OPENING:
            if self._descriptor is None and len(self.open_files) < _MAX_OPEN_FILES:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._descriptor).atexit = False
                self.open_files.add(self)
        return self._descriptor is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalFile, (self.path,)


StoredFile = LocalFile | RemoteFile


def stored(path: AnyPath) -> StoredFile:
    """Return the file at a path or URL, without opening it."""
    return RemoteFile(os.fspath(path)) if is_remote(path) else LocalFile(_local_path(path))


def expand(paths: AnyPath | Sequence[AnyPath]) -> tuple[str, ...]:
    """Return the files of a path, a URL, a glob pattern or a list of them; those of a pattern are sorted by name.

    Args:
        paths: such as "train.tfrecord", "gs://bucket/train-?????-of-00004.tfrecord" or ["a.tfrecord", "b.tfrecord"].

    Raises:
        FileError: a pattern matches nothing, or a file is missing.
        SettingError: a path is not text, or the list is empty.
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for path in listed:
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise SettingError(f'a path must be text, such as "train-*.tfrecord", not {path!r}')
    if not listed:
        raise SettingError('paths must contain at least one file, not []; pass a path such as "train-*.tfrecord"')
    texts = [os.fspath(path) for path in listed]
    return tuple(file for text in texts for file in (remote_matches(text) if is_remote(text) else _matches(text)))


@contextlib.contextmanager
def created(path: AnyPath) -> Iterator[str]:
    """Yield a temporary local path to write to; the file is moved to `path` when the block ends without an error.

    Args:
        path: destination, a path or a URL; an existing file is replaced.

    Raises:
        FileError: `path` cannot be written, or the disk is full.
    """
    with contextlib.ExitStack() as stack:
        if is_remote(path):
            unfinished = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "unfinished")
            yield unfinished
            upload(unfinished, os.fspath(path))
            return
        final = _local_path(path)
        with _explained(final, "write"):
            unfinished = stack.enter_context(replaced(Path(final)))
        try:
            yield str(unfinished)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise FileError(_reason(final, "write", error)) from error
        with _explained(final, "write"):
            stack.pop_all().close()


def shard_names(path: AnyPath, shards: int) -> tuple[str, ...]:
    """Return the names of a file's shards.

    Args:
        path: path of the unsharded file.
        shards: number of shards, 1 to 99,999.

    Raises:
        SettingError: `shards` is out of range.

    Example:
        >>> shard_names("train.tfrecord.gz", 2)
        ('train-00000-of-00002.tfrecord.gz', 'train-00001-of-00002.tfrecord.gz')
    """
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= 99_999:
        raise SettingError(f"shards must be an integer from 1 to 99,999, not {shards!r}")
    text = os.fspath(path)
    if shards == 1:
        return (text,)
    stem, ending = os.path.splitext(text)
    if ending in (".gz", ".zlib", ".zz"):
        stem, before = os.path.splitext(stem)
        ending = before + ending
    return tuple(f"{stem}-{index:05d}-of-{shards:05d}{ending}" for index in range(shards))


def is_remote(path: AnyPath) -> bool:
    """Return whether a path is a URL outside the local file system."""
    text = os.fspath(path)
    return is_url(text) and not text.startswith("file://")


def _matches(path: str) -> list[str]:
    local = _local_path(path)
    if os.path.isdir(local):
        raise FileError(_folder(path))
    if os.path.exists(local):
        return [local]
    if glob.has_magic(local) and (matches := sorted(glob.glob(local, recursive=True))):
        return matches
    raise FileError(_missing(path))


def _local_path(path: AnyPath) -> str:
    """Return a local path with `file://` removed and `~` expanded."""
    return os.path.expanduser(os.fspath(path).removeprefix("file://"))


@contextlib.contextmanager
def _explained(path: str, verb: str) -> Iterator[None]:
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
    folder = os.path.dirname(_local_path(path)) or "."
    fault = f"no file matches {path!r}" if glob.has_magic(path) else f"there is no file {path!r}"
    if not os.path.isdir(folder):
        return f"{fault}: the folder {folder!r} does not exist; the current folder is {os.getcwd()!r}"
    names = sorted(os.listdir(folder))
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{fault}; {folder!r} contains {shown or 'no files'}"
