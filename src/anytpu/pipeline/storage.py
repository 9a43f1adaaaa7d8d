"""Access to files by path or URL: local files, gs://, s3://, https:// and others.

Idea: `stored`, `expand` and `created` accept a path or a URL, so that no other module distinguishes them.

Rule: files are written atomically: a new file appears at its path only when it is complete.
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
    """Return the file at a path or URL, without opening it.

    Raises:
        FileError: no installed package can read URLs of this protocol.
    """
    if not is_remote(path):
        return LocalFile(local_path(path))
    url = os.fspath(path)
    return WebFile(url) if protocol_of(url) in ("http", "https") else RemoteFile(url)


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
    return tuple(file for path in listed for file in _matches(os.fspath(path)))


@contextlib.contextmanager
def created(path: AnyPath) -> Iterator[str]:
    """Yield a temporary local path to write to; the file is moved to `path` when the block ends without an error.

    Args:
        path: destination, a path or a URL; an existing file is replaced.

    Raises:
        FileError: `path` cannot be written.
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
    return "://" in text and not text.startswith("file://")


def _matches(path: str) -> list[str]:
    return remote_matches(path) if is_remote(path) else local_matches(path)
