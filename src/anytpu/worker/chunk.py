"""A chunk: a part of a large array on the wire. A fixed head, and then the bytes, as they are or compressed.

Idea: zeros at the end of a chunk are not sent, so the unused end of a stack of batches costs nothing. On a
connection that is slower than zlib, chunks are compressed, as long as that makes them smaller. Both rates are measured
by the same clock: on a busy machine both are slow, and compression would cost time there.

Rule: the chunks of an array come in order, and those of two arrays are never mixed. So a receiver has one array that is
not complete, at most.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import final

import numpy as np

from anytpu.errors import DataError

CHUNK_BYTES = 2**20
"""Maximum number of bytes of an array in one chunk."""

_HEAD = struct.Struct("<QIBQQ")
HEAD_BYTES = _HEAD.size
_PLAIN, _ZLIB = range(2)
_SLOW_BYTES_PER_S = 40e6
"""Rate of a connection below which zlib at its fastest level may save time."""
_WORTHWHILE = 0.9
"""Maximum ratio of sizes at which compression goes on."""
_PAUSE = 16
"""Number of chunks sent as they are after one whose compression did not pay; then zlib is tried again."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A part of an array.

    Attributes:
        operation: number of the request or reply to which the array belongs.
        index: index of the array in it, from 0.
        offset: offset of the part in the array, in bytes.
        size_bytes: size of the array.
        content: the bytes of the part, without the zeros at its end.
        end: offset of the end of the part in the array, in bytes.
    """

    operation: int
    index: int
    offset: int
    size_bytes: int
    content: bytes | memoryview
    end: int

    @property
    def is_first(self) -> bool:
        """Whether an array begins with it."""
        return self.offset == 0

    @property
    def is_last(self) -> bool:
        """Whether an array ends with it."""
        return self.end == self.size_bytes


def read_head(head: bytes) -> tuple[int, int, int]:
    """Return operation, index and size in bytes of an array, from the head of one of its chunks."""
    operation, index, _, _, size_bytes = _HEAD.unpack(head)
    return operation, index, size_bytes


@final
class ChunkWriter:
    """Divides arrays into chunks, and chooses how each is sent.

    Args:
        rate: returns the rate of the connection in bytes per second; None does not compress.
    """

    def __init__(self, rate: Callable[[], float] | None = None) -> None:
        self._rate, self._plain_left = rate, 0

    def chunks(self, operation: int, index: int, content: memoryview) -> Iterator[tuple[bytes, bytes | memoryview]]:
        """Yield the heads and the bytes of the chunks of an array.

        Args:
            operation: number of the request or reply to which the array belongs.
            index: index of the array in it, from 0.
            content: the bytes of the array.
        """
        for offset in range(0, len(content), CHUNK_BYTES):
            coding, part = self._coded(content[offset : offset + CHUNK_BYTES])
            yield _HEAD.pack(operation, index, coding, offset, len(content)), part

    def _coded(self, part: memoryview) -> tuple[int, bytes | memoryview]:
        content = _without_zeros(part)
        rate = math.inf if self._rate is None else self._rate()
        if rate > _SLOW_BYTES_PER_S:
            return _PLAIN, content
        if self._plain_left:
            self._plain_left -= 1
            return _PLAIN, content
        began_s = time.perf_counter()
        coded = zlib.compress(content, 1)
        is_smaller = len(coded) <= _WORTHWHILE * len(content)
        # It does not pay if the connection would have carried the plain bytes in the time of the compression.
        if not is_smaller or len(content) < rate * (time.perf_counter() - began_s):
            self._plain_left = _PAUSE
        return (_ZLIB, coded) if is_smaller else (_PLAIN, content)


def _without_zeros(part: memoryview) -> memoryview:
    """Return a chunk without the zeros at its end."""
    if part[-1]:
        return part
    # The first test is the faster one, and most stacks end with many chunks of zeros.
    return part[: len(bytes(part).rstrip(b"\0"))] if np.frombuffer(part, np.uint8).any() else part[:0]


@final
class ChunkReader:
    """Reads chunks, and checks that each follows the previous one."""

    def __init__(self) -> None:
        self._next: tuple[int, int, int, int] | None = None
        """Operation, index, offset and size of the array of the next chunk; None between two arrays."""

    def next(self, message: bytes | memoryview) -> Chunk:
        """Return the chunk in a message.

        Raises:
            DataError: it is none, or it does not follow the previous one.
        """
        if len(message) < HEAD_BYTES:
            raise DataError(f"a chunk has {len(message)} bytes, and its head takes {HEAD_BYTES}")
        operation, index, coding, offset, size_bytes = _HEAD.unpack_from(message)
        if not size_bytes:
            raise DataError("a chunk belongs to an array of no bytes")
        place = operation, index, offset, size_bytes
        if self._next is None and offset:
            raise DataError(f"a chunk starts at byte {offset}, and byte 0 is next")
        if self._next is not None and place != self._next:
            raise DataError(f"a chunk has the head {place}, and {self._next} is next")
        end = min(offset + CHUNK_BYTES, size_bytes)
        content = _decoded(coding, memoryview(message)[HEAD_BYTES:], end - offset)
        self._next = None if end == size_bytes else (operation, index, end, size_bytes)
        return Chunk(operation, index, offset, size_bytes, content, end)


def _decoded(coding: int, coded: memoryview, max_bytes: int) -> bytes | memoryview:
    """Return the bytes of a part of an array, without the zeros at its end."""
    if coding == _PLAIN and len(coded) <= max_bytes:
        return coded
    if coding == _ZLIB:
        decoder = zlib.decompressobj()
        try:
            # One byte more than is allowed: so the decoder also reads the checksum at the end.
            content = decoder.decompress(coded, max(max_bytes, 0) + 1)
        except zlib.error as error:
            raise DataError(f"a chunk cannot be decompressed: {error}") from error
        if decoder.eof and not decoder.unused_data and len(content) <= max_bytes:
            return content
    raise DataError(f"a chunk of {len(coded)} bytes and coding {coding} is not a part of {max_bytes} bytes")
