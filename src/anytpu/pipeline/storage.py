"""Files, wherever they are: on this machine, or behind a URL such as gs://, s3:// or https://.

Idea: a reader of records needs three things of a file: its size, some bytes of it, and all of it in order.
`stored(path)` gives them for a path and for a URL alike.

Rule: what goes wrong with a file is a `FileError` that names the file and says what to do; no error of a library below
gets through as the message.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import glob
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from anytpu.errors import FileError, SettingError
from anytpu.units import MIB

AnyPath = str | os.PathLike[str]
"""A path or a URL, as a user writes it."""


class Readable(Protocol):
    """What can be read in order."""

    def read(self, length_bytes: int, /) -> bytes:
        """Return the next bytes: as many as asked for unless the end comes first."""
        ...


class Writable(Protocol):
    """What can be written in order."""

    def write(self, content: bytes, /) -> object:
        """Add these bytes."""
        ...


_MAX_OPEN_FILES = 256
_OPENING = threading.Lock()


class StoredFile(abc.ABC):
    """A file that can be read in any order, from any thread; it can be pickled.

    Attributes:
        path: where it is.
        chunk_bytes: how much to read at once when looking through it.
    """

    path: str
    chunk_bytes: int

    @property
    @abc.abstractmethod
    def size_bytes(self) -> int:
        """The file's length when it was first asked for."""

    def known_size_bytes(self) -> int | None:
        """Return the file's length, or None when its server does not say."""
        return self.size_bytes

    @abc.abstractmethod
    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read these bytes: fewer where the file ends."""

    @abc.abstractmethod
    def stream(self) -> contextlib.AbstractContextManager[Readable]:
        """Open the file for reading in order."""


class LocalFile(StoredFile):
    """A file of this machine. It stays open once it was read, unless 256 others already are."""

    chunk_bytes = MIB // 16
    _open_files = 0

    def __init__(self, path: str):
        self.path = path
        self._descriptor: int | None = None

    @functools.cached_property
    def size_bytes(self) -> int:
        """The file's length when it was first asked for."""
        with explained(self.path, "read"):
            return os.stat(self.path).st_size

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read these bytes: fewer where the file ends."""
        if self._descriptor is not None:  # the usual case, a third faster than below
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
            file = open(self.path, "rb", buffering=MIB // 4)  # noqa: SIM115 - what its user raises is not explained
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

    # When Python ends, the names of modules may be gone before the last file is.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor is not None:
            close(self._descriptor)
            type(self)._open_files -= 1


def stored(path: AnyPath) -> StoredFile:
    """Return the file at a path or a URL. It is not touched yet.

    Raises:
        FileError: the URL is of a kind that nothing installed here can read.
    """
    if is_remote(path):
        from anytpu.pipeline.buckets import RemoteFile

        return RemoteFile(os.fspath(path))
    return LocalFile(local_path(path))


def expand(paths: AnyPath | Sequence[AnyPath]) -> tuple[str, ...]:
    """Return the files that a path, a URL, a glob pattern or a list of them names; those of a pattern in order of name.

    Args:
        paths: such as "train.tfrecord", "gs://bucket/train-?????-of-00004.tfrecord" or ["a.tfrecord", "b.tfrecord"].

    Raises:
        FileError: a pattern matches nothing, or a path names no file.
        SettingError: a path is not text, or there is none.
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for path in listed:
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise SettingError(f'a path must be text, such as "train-*.tfrecord", not {path!r}')
    if not listed:
        raise SettingError('there is no file to read in []; write a path such as "train-*.tfrecord", or a list of them')
    return tuple(file for path in listed for file in _matches(os.fspath(path)))


@contextlib.contextmanager
def created(path: AnyPath) -> Iterator[str]:
    """Give a path of this machine to write a new file to; it is at `path`, whole, when the block ends without an error.

    Args:
        path: a path or a URL. What is there is replaced.

    Raises:
        FileError: it cannot be written there.
    """
    if is_remote(path):
        from anytpu.pipeline.buckets import upload

        with tempfile.TemporaryDirectory() as folder:
            unfinished = os.path.join(folder, "unfinished")
            yield unfinished
            upload(unfinished, os.fspath(path))
        return
    final = local_path(path)
    unfinished = f"{final}.{os.getpid()}.unfinished"
    with explained(final, "write"):
        open(unfinished, "wb").close()
    try:
        yield unfinished
        with explained(final, "write"):
            os.replace(unfinished, final)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def shard_names(path: AnyPath, shards: int) -> tuple[str, ...]:
    """Return the names of the files that a file in several shards consists of.

    Args:
        path: of the whole.
        shards: how many, 1 to 99,999.

    Raises:
        SettingError: there is no such number of shards.

    Example:
        >>> shard_names("train.tfrecord.gz", 2)
        ('train-00000-of-00002.tfrecord.gz', 'train-00001-of-00002.tfrecord.gz')
    """
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= 99_999:
        raise SettingError(f"shards must be a whole number from 1 to 99,999, not {shards!r}")
    text = os.fspath(path)
    if shards == 1:
        return (text,)
    stem, ending = os.path.splitext(text)
    if ending in (".gz", ".zlib", ".zz"):
        stem, before = os.path.splitext(stem)
        ending = before + ending
    return tuple(f"{stem}-{number:05d}-of-{shards:05d}{ending}" for number in range(shards))


def is_remote(path: AnyPath) -> bool:
    """Tell whether this is a URL of something beyond this machine's file system."""
    text = os.fspath(path)
    return "://" in text and not text.startswith("file://")


def local_path(path: AnyPath) -> str:
    """Return a path of this machine without `file://` and `~`."""
    return os.path.expanduser(os.fspath(path).removeprefix("file://"))


@contextlib.contextmanager
def explained(path: str, verb: str) -> Iterator[None]:
    """Turn an error of the file system into a FileError that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        raise FileError(_reason(path, verb, error)) from error


def _matches(path: str) -> list[str]:
    if is_remote(path):
        from anytpu.pipeline.buckets import remote_matches

        return remote_matches(path)
    local = local_path(path)
    if os.path.isdir(local):
        raise FileError(_folder(path))
    if os.path.exists(local):
        return [local]
    if glob.has_magic(local) and (found := sorted(glob.glob(local, recursive=True))):
        return found
    raise FileError(_missing(path))


def _reason(path: str, verb: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return _missing(path)
    if isinstance(error, IsADirectoryError):
        return _folder(path)
    return f"cannot {verb} {path!r}: {error.strerror or error}"


def _folder(path: str) -> str:
    return f"{path!r} is a folder; write which files of it: {os.path.join(path, '*.tfrecord')!r}"


def _missing(path: str) -> str:
    folder = os.path.dirname(local_path(path)) or "."
    what = f"no file matches {path!r}" if glob.has_magic(path) else f"there is no file {path!r}"
    if not os.path.isdir(folder):
        return f"{what}: there is no folder {folder!r} either; the current folder is {os.getcwd()!r}"
    names = sorted(os.listdir(folder))
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{what}; in {folder!r} there {'is' if len(names) == 1 else 'are'} {shown or 'no files'}"
