"""Zip files that somebody else wrote: each member read up to the size that the file declares, and no further.

Idea: a zip of a few megabytes may unpack to gigabytes, may declare another size than it unpacks to, and may list the
same bytes many times. What a member declares is compared with the free memory, and that many bytes are unpacked. What
all of them declare is compared with the size of the file.

Rule: members are stored or deflated; the other methods unpack in steps whose size cannot be bounded.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from anytpu.files.memory import check_memory, check_ratio
from anytpu.files.opening import open_file
from anytpu.units import MIB

_FOREIGN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, KeyError, IndexError, TypeError, OverflowError, OSError),
)
"""What `zipfile` raises for a file that it cannot make sense of."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Zip:
    """The members of a zip file. A context manager: it holds the file open.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is no zip file, or is damaged.

    Example:
        >>> with Zip(path) as archive:  # doctest: +SKIP
        ...     archive.read("x.npy")
    """

    def __init__(self, path: Path) -> None:
        self._file = open_file(path)
        try:
            self._zip = zipfile.ZipFile(self._file)
            self._members = {info.filename: info for info in self._zip.infolist()}
            self._packed_bytes = path.stat().st_size
        except _FOREIGN as error:
            self._file.close()
            raise ValueError(_reason(error)) from error

    def __enter__(self) -> Zip:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._zip.close()
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def size_bytes(self, name: str) -> int:
        """Return the size that a member declares, unpacked."""
        return self._members[name].file_size

    def unpacked_bytes(self) -> int:
        """Return the size that all members declare together, unpacked."""
        return sum(map(self.size_bytes, self))

    def check_ratio(self) -> None:
        """Check what all members unpack to against the size of the file.

        Raises:
            ValueError: it is more than 1 GiB and more than 100 times as much.
        """
        check_ratio(self._packed_bytes, self.unpacked_bytes())

    def read(self, name: str) -> bytes:
        """Return a member.

        Raises:
            ValueError: it is damaged, or larger than the memory that is free.
        """
        size_bytes = self.size_bytes(name)
        check_memory(size_bytes)
        with self.open(name) as stream:
            return read_exactly(stream, size_bytes)

    def open(self, name: str) -> IO[bytes]:
        """Return a member as a stream, which raises ValueError when it is damaged.

        Raises:
            ValueError: it is damaged, or is packed in another way.
        """
        info = self._members[name]
        if info.compress_type not in _METHODS:
            raise ValueError(f"{name!r} is packed by method {info.compress_type}, neither stored nor deflated")
        try:
            return _Member(self._zip.open(info))  # pyright: ignore[reportReturnType]
        except _FOREIGN as error:
            raise ValueError(_reason(error)) from error


class _Member:
    """A stream of a member whose errors are ValueErrors."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, length_bytes: int) -> bytes:
        try:
            return self._stream.read(length_bytes)
        except _FOREIGN as error:
            raise ValueError(_reason(error)) from error

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stream.close()


def _reason(error: Exception) -> str:
    # A damaged name is quoted in it, and may be as long as the file.
    return str(error)[:200] or type(error).__name__


class _Stream(Protocol):
    def read(self, length_bytes: int, /) -> bytes: ...


def read_exactly(stream: _Stream, size_bytes: int) -> bytes:
    """Return so many bytes of a stream, read in pieces.

    Raises:
        ValueError: the stream ends before.
    """
    content = read_up_to(stream, size_bytes)
    if len(content) < size_bytes:
        raise ValueError(f"it ends {size_bytes - len(content):,} bytes too early")
    return content


def read_up_to(stream: _Stream, size_bytes: int, start: bytes = b"") -> bytes:
    """Return so many bytes of a stream, read in pieces, or fewer where it ends; memory is taken as they come.

    Args:
        stream: what is read.
        size_bytes: how many bytes, with `start`.
        start: what was read before.
    """
    # Its value is what it has gathered, not a copy of it.
    gathered = io.BytesIO()
    left = size_bytes - gathered.write(start)
    while left > 0 and (piece := stream.read(min(left, MIB))):
        left -= gathered.write(piece)
    return gathered.getvalue()
