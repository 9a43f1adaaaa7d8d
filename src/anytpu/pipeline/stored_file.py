"""The interface of a local or remote file for readers of records: size, byte ranges, and a sequential stream.

Rule: every failure is a `FileError` that names the file and says what to do. The message of a library below is never
passed on alone.
"""

from __future__ import annotations

import abc
import contextlib
import os
from typing import Protocol

AnyPath = str | os.PathLike[str]
"""A path or a URL, as a user writes it."""


class Readable(Protocol):
    """A sequential source of bytes."""

    def read(self, length_bytes: int, /) -> bytes:
        """Return the next bytes, fewer at the end."""
        ...


class Writable(Protocol):
    """A sequential sink of bytes."""

    def write(self, content: bytes, /) -> object:
        """Append bytes."""
        ...


class StoredFile(abc.ABC):
    """A file with random access from any thread; it can be pickled.

    Attributes:
        path: path or URL.
        chunk_bytes: size of the reads of a scan, in bytes.
    """

    path: str
    chunk_bytes: int

    @property
    @abc.abstractmethod
    def size_bytes(self) -> int:
        """Length of the file, cached on first use."""

    def known_size_bytes(self) -> int | None:
        """Return the file's length, or None if its server does not report it."""
        return self.size_bytes

    @abc.abstractmethod
    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read a range of bytes; fewer at the end of the file."""

    @abc.abstractmethod
    def stream(self) -> contextlib.AbstractContextManager[Readable]:
        """Open the file for reading in order."""
