"""Streaming compression and decompression: gzip and zlib.

Idea: content is decompressed only as far as it is read. So a small file that unpacks to a huge one takes no more memory
than one record.

Rule: only damage of the compressed stream is reported here, as `CompressionError`; the caller adds the record's origin.
"""

from __future__ import annotations

import io
import zlib
from typing import IO

from anytpu.errors import SettingError
from anytpu.files.zips import Readable
from anytpu.units import MIB

MAX_RATIO = 1032
"""Maximum compression ratio of deflate, the algorithm of both gzip and zlib."""

_WINDOW_BITS = {"gzip": 31, "zlib": 15}
_PIECE_BYTES = MIB // 4


class CompressionError(Exception):
    """The content is not compressed in the stated format, or is damaged."""


def compression_of(name: str | None) -> str | None:
    """Convert a user's setting to "gzip", "zlib" or None; TensorFlow's names "GZIP", "ZLIB" and "" are accepted.

    Raises:
        SettingError: the name is unknown.
    """
    if name is None or name == "":
        return None
    if not isinstance(name, str) or name.lower() not in _WINDOW_BITS:
        raise SettingError(f'compression must be None, "gzip" or "zlib", not {name!r}')
    return name.lower()


class Inflated(io.RawIOBase):
    """The decompressed content of a stream, as a stream.

    Args:
        stream: the compressed bytes.
        compression: "gzip" or "zlib"; a gzip stream may have several members.
    """

    def __init__(self, stream: Readable, compression: str):
        self._stream, self._compression = stream, compression
        self._state = _new_state(compression)
        self._input = b""
        self._has_begun = False

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run one step of decompression into the buffer and return its length in bytes: 0 at the end.

        Raises:
            CompressionError: the stream is damaged or ends too early.
        """
        piece = b""
        while not piece and self._has_input():
            piece = self._inflate(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def _has_input(self) -> bool:
        self._input = self._input or self._stream.read(_PIECE_BYTES)
        if self._state.eof:
            self._begin_next_member()
        if not self._input and self._has_begun and not self._state.eof:
            raise CompressionError(f"the {self._compression} stream ends before its end mark")
        return bool(self._input)

    def _begin_next_member(self) -> None:
        # A gzip file may have zero padding after a member: skip it.
        while self._input and not (rest := self._input.lstrip(b"\0")):
            self._input = self._stream.read(_PIECE_BYTES)
        self._input = rest if self._input else b""
        if self._input:
            self._state = _new_state(self._compression)

    def _inflate(self, length_bytes: int) -> bytes:
        self._has_begun = True
        try:
            piece = self._state.decompress(self._input, length_bytes)
        except zlib.error as error:
            raise CompressionError(f"the content is not {self._compression}, or is damaged: {error}") from error
        # Behind an end mark the rest belongs to the next member.
        self._input = self._state.unused_data if self._state.eof else self._state.unconsumed_tail
        return piece


def _new_state(compression: str) -> zlib._Decompress:
    return zlib.decompressobj(_WINDOW_BITS[compression])


class Deflated:
    """A stream that compresses written bytes into another stream; call `finish` at the end."""

    def __init__(self, stream: IO[bytes], compression: str):
        self._stream = stream
        self._state = zlib.compressobj(wbits=_WINDOW_BITS[compression])

    def write(self, content: bytes) -> None:
        """Compress these bytes."""
        self._stream.write(self._state.compress(content))

    def finish(self) -> None:
        """Write the remaining output and the end mark."""
        self._stream.write(self._state.flush())
