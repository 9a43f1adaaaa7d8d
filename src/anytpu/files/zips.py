"""A reader of untrusted zip files: each member is unpacked up to its declared size, and no further.

Idea: a zip of a few megabytes may unpack to gigabytes, may declare a wrong unpacked size, and may list the same bytes
many times. A member's declared size is compared with the free memory, and at most that many bytes are unpacked. A
caller that reads all members calls `check_ratio` first: it compares the sum of their sizes with the size of the file.

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

_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, KeyError, IndexError, TypeError, OverflowError, OSError),
)
"""Errors that `zipfile` raises for an invalid file."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Zip:
    """The members of a zip file. It is a context manager that holds the file open.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not a zip file, or is damaged.

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
        except _ZIP_ERRORS as error:
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
        """Return a member's declared unpacked size."""
        return self._members[name].file_size

    def unpacked_bytes(self) -> int:
        """Return the sum of the members' declared unpacked sizes."""
        return sum(map(self.size_bytes, self))

    def check_ratio(self) -> None:
        """Check the total unpacked size against the size of the file.

        Raises:
            ValueError: it is above 1 GiB and above 100 times the size of the file.
        """
        check_ratio(self._packed_bytes, self.unpacked_bytes())

    def read(self, name: str) -> bytes:
        """Return a member's content.

        Raises:
            ValueError: it is damaged, or larger than the free memory.
        """
        size_bytes = self.size_bytes(name)
        check_memory(size_bytes)
        with self.open(name) as stream:
            return read_exactly(stream, size_bytes)

    def open(self, name: str) -> IO[bytes]:
        """Return a member as a stream; its reads raise ValueError for damaged content.

        Raises:
            ValueError: it is damaged, or its compression method is neither stored nor deflated.
        """
        info = self._members[name]
        if info.compress_type not in _METHODS:
            raise ValueError(f"{name!r} is packed by method {info.compress_type}, neither stored nor deflated")
        try:
            return _Member(self._zip.open(info))  # pyright: ignore[reportReturnType]
        except _ZIP_ERRORS as error:
            raise ValueError(_reason(error)) from error


class _Member:
    """A stream of a member that raises only ValueError."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, length_bytes: int) -> bytes:
        try:
            return self._stream.read(length_bytes)
        except _ZIP_ERRORS as error:
            raise ValueError(_reason(error)) from error

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stream.close()


def _reason(error: Exception) -> str:
    # The message may quote a damaged name, which can be as long as the file.
    return str(error)[:200] or type(error).__name__


class Readable(Protocol):
    """A sequential source of bytes."""

    def read(self, length_bytes: int, /) -> bytes:
        """Return the next bytes, fewer at the end."""
        ...


def read_exactly(stream: Readable, size_bytes: int) -> bytes:
    """Return the next `size_bytes` bytes of a stream, read in pieces.

    Raises:
        ValueError: the stream ends earlier.
    """
    content = read_up_to(stream, size_bytes)
    if len(content) < size_bytes:
        raise ValueError(f"it ends {size_bytes - len(content):,} bytes too early")
    return content


def read_up_to(stream: Readable, size_bytes: int, start: bytes = b"") -> bytes:
    """Return up to `size_bytes` bytes of a stream, fewer if it ends; memory grows with the bytes that arrive.

    Args:
        stream: the stream to read.
        size_bytes: maximum length of the result, `start` included.
        start: bytes that were read already.
    """
    # `getvalue` of a BytesIO shares its buffer: no copy.
    gathered = io.BytesIO()
    left = size_bytes - gathered.write(start)
    while left > 0 and (piece := stream.read(min(left, MIB))):
        left -= gathered.write(piece)
    return gathered.getvalue()
