"""A chunk: a part of a large array on the wire. A fixed head, and then the bytes.

Rule: the chunks of an array come in order, and those of two arrays are never mixed. So a receiver has one array that is
not complete, at most.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import final

from anytpu.errors import DataError

CHUNK_BYTES = 2**20
"""Maximum number of bytes of an array in one chunk."""

_HEAD = struct.Struct("<QIQQ")
HEAD_BYTES = _HEAD.size


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A part of an array.

    Attributes:
        operation: number of the request or reply to which the array belongs.
        index: index of the array in it, from 0.
        offset: offset of the part in the array, in bytes.
        size_bytes: size of the array.
        content: the bytes of the part.
    """

    operation: int
    index: int
    offset: int
    size_bytes: int
    content: memoryview

    @property
    def is_first(self) -> bool:
        """Whether an array begins with it."""
        return self.offset == 0

    @property
    def is_last(self) -> bool:
        """Whether an array ends with it."""
        return self.offset + len(self.content) == self.size_bytes


def chunks_of(operation: int, index: int, content: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the heads and the bytes of the chunks of an array, without a copy."""
    for offset in range(0, len(content), CHUNK_BYTES):
        yield _HEAD.pack(operation, index, offset, len(content)), content[offset : offset + CHUNK_BYTES]


def read_head(head: bytes) -> tuple[int, int, int]:
    """Return operation, index and size in bytes of an array, from the head of one of its chunks."""
    operation, index, _, size_bytes = _HEAD.unpack(head)
    return operation, index, size_bytes


@final
class ChunkOrder:
    """Reads chunks, and checks that each follows the previous one."""

    def __init__(self) -> None:
        self._next: tuple[int, int, int, int] | None = None
        """Head of the next chunk; None between two arrays."""

    def next(self, message: bytes | memoryview) -> Chunk:
        """Return the chunk in a message.

        Raises:
            DataError: it is none, or it does not follow the previous one.
        """
        if len(message) <= HEAD_BYTES:
            raise DataError(f"a chunk has {len(message)} bytes, and its head takes {HEAD_BYTES}")
        operation, index, offset, size_bytes = head = _HEAD.unpack_from(message)
        if self._next is None and offset:
            raise DataError(f"a chunk starts at byte {offset}, and byte 0 is next")
        if self._next is not None and head != self._next:
            raise DataError(f"a chunk has the head {head}, and {self._next} is next")
        chunk = Chunk(operation, index, offset, size_bytes, memoryview(message)[HEAD_BYTES:])
        end = offset + len(chunk.content)
        if end > size_bytes:
            raise DataError(f"a chunk ends at byte {end} of {size_bytes}")
        self._next = None if end == size_bytes else (operation, index, end, size_bytes)
        return chunk
