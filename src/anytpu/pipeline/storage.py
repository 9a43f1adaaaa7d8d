"""Files, wherever they are: on this machine, or behind a URL such as gs://, s3:// or https://.

Idea: a path says where a file lies; from here on nobody asks again. `stored`, `expand` and `created` take a path and a
URL alike.

Rule: nothing is left half written: a new file is in its place when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence

from anytpu.errors import SettingError
from anytpu.pipeline.buckets import RemoteFile, protocol_of, remote_matches, upload
from anytpu.pipeline.local_file import LocalFile, created_here, local_matches, local_path
from anytpu.pipeline.stored_file import AnyPath, StoredFile
from anytpu.pipeline.web_file import WebFile


def stored(path: AnyPath) -> StoredFile:
    """Return the file at a path or a URL. It is not touched yet.

    Raises:
        FileError: the URL is of a kind that nothing installed here can read.
    """
    if not is_remote(path):
        return LocalFile(local_path(path))
    url = os.fspath(path)
    return WebFile(url) if protocol_of(url) in ("http", "https") else RemoteFile(url)


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
    if not is_remote(path):
        with created_here(path) as unfinished:
            yield unfinished
        return
    with tempfile.TemporaryDirectory() as folder:
        unfinished = os.path.join(folder, "unfinished")
        yield unfinished
        upload(unfinished, os.fspath(path))


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


def _matches(path: str) -> list[str]:
    return remote_matches(path) if is_remote(path) else local_matches(path)
