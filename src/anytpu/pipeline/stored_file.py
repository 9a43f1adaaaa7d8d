"""What a reader of records needs of a file, wherever it lies: its size, some bytes of it, and all of it in order.

Rule: what goes wrong with a file is a `FileError` that names it and says what to do; no error of a library below gets
through as the message.
"""

from __future__ import annotations

import abc
import contextlib
import os
from typing import Protocol

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
