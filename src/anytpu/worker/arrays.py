"""Arrays on the wire: their description, and the chunks that follow the message of a large one.

Idea: a stream is in order, and a message tells how many bytes of arrays come next. So a chunk is a part of an array and
nothing else. Zeros at its end are not sent: the unused end of a stack of batches costs nothing.

Rule: no pickle. An array is a dtype's name, a shape and bytes. A typed random key is its words and its generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine.feeds import empty_aligned
from anytpu.errors import DataError
from anytpu.files.npy import named_dtype
from anytpu.worker.wire import INLINE_BYTES, messages

CHUNK_BYTES = 2**20
"""Maximum number of bytes of an array in one chunk."""

_MAX_RANK = 64


def is_key(leaf: Any) -> bool:
    """Return whether a value is an array of typed random keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_host(leaf: Any) -> tuple[np.ndarray, str]:
    """Return a value as a contiguous array with a dtype that JAX keeps, and the generator of a typed key or ""."""
    generator = ""
    if is_key(leaf):
        generator, leaf = str(jax.random.key_impl(leaf)), jax.random.key_data(leaf)
    array = np.asarray(leaf)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return np.ascontiguousarray(array, dtype).reshape(array.shape), generator


def describe(array: np.ndarray, generator: str = "") -> Any:
    """Return the `Array` message of an array; a small one contains its bytes."""
    content = array.tobytes() if array.nbytes <= INLINE_BYTES else b""
    return messages().Array(
        dtype=array.dtype.name, shape=array.shape, generator=generator, size_bytes=array.nbytes, content=content
    )


def chunks(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the chunks of an array, each of at least one byte; none of an array that is in its message."""
    content = array.reshape(-1).view(np.uint8).data if array.nbytes > INLINE_BYTES else memoryview(b"")
    for offset in range(0, len(content), CHUNK_BYTES):
        yield _without_zeros(content[offset : offset + CHUNK_BYTES])


def _without_zeros(part: memoryview) -> memoryview:
    """Return a chunk without the zeros at its end, or its first byte."""
    if part[-1]:
        return part
    # The first test is the faster one, and most stacks end with many chunks of zeros.
    size = len(bytes(part).rstrip(b"\0")) if np.frombuffer(part, np.uint8).any() else 0
    return part[: max(size, 1)]


def checked_size(described: Any) -> int:
    """Return the bytes of a described array.

    Raises:
        DataError: its dtype is unknown, or its shape and bytes differ.
    """
    try:
        dtype = named_dtype(described.dtype)
    except TypeError as error:
        raise DataError(f"there is no dtype {described.dtype[:80]!r}") from error
    size_bytes = math.prod(described.shape) * dtype.itemsize
    is_numeric = dtype.kind in "biufcV" and dtype.names is None
    if not is_numeric or len(described.shape) > _MAX_RANK or size_bytes != described.size_bytes:
        shape = list(described.shape)[:8]
        raise DataError(f"{dtype.name} of shape {shape} is not an array of {described.size_bytes} bytes")
    if described.content and len(described.content) != size_bytes:
        raise DataError(f"an array of {size_bytes} bytes came with {len(described.content)} bytes")
    return size_bytes


def from_wire(described: Any, content: Any) -> Any:
    """Return the array of a description and its bytes; a typed random key as a JAX array.

    Raises:
        DataError: they do not fit.
    """
    size_bytes = checked_size(described)
    if len(content) != size_bytes:
        raise DataError(f"an array of {size_bytes} bytes came with {len(content)} bytes")
    array = np.frombuffer(content, np.uint8).view(jnp.dtype(described.dtype)).reshape(tuple(described.shape))
    if not described.generator:
        return array
    try:
        return jax.random.wrap_key_data(jnp.asarray(array), impl=described.generator)
    except (ValueError, TypeError) as error:
        raise DataError(f"there is no random key of {described.generator[:80]!r} with these words") from error


@final
class MessageReader:
    """Reads a stream: each message, and then the chunks of its large arrays.

    Args:
        parse: returns the message of its bytes.
        may_take: returns whether there is memory for an array of a number of bytes. Its chunks are dropped otherwise.
        take: receives a message that is complete, and the bytes of its large arrays, in order; None for one that was
            dropped.
    """

    def __init__(
        self,
        parse: Callable[[bytes | memoryview], Any],
        may_take: Callable[[int], bool],
        take: Callable[[Any, list[np.ndarray | None]], None],
    ) -> None:
        self._parse, self._may_take, self._take = parse, may_take, take
        self._message: Any = None
        self._sizes: list[int] = []
        """Sizes of the arrays whose chunks are still to come."""
        self._contents: list[np.ndarray | None] = []
        self._offset = 0
        """Number of bytes of the present array that have come."""

    def add(self, content: bytes | memoryview) -> None:
        """Read the next message, or the next chunk.

        Raises:
            DataError: it is a chunk of more bytes than its array has left.
            google.protobuf.message.DecodeError: it is no message.
        """
        if self._message is None:
            self._message, self._contents = self._parse(content), []
            sizes = [array.size_bytes for array in described_arrays(self._message)]
            self._sizes = [size for size in sizes if size > INLINE_BYTES]
        else:
            self._add_chunk(content)
        if not self._sizes:
            message, self._message = self._message, None
            self._take(message, self._contents)

    def _add_chunk(self, chunk: bytes | memoryview) -> None:
        left = self._sizes[0] - self._offset
        if len(chunk) > (size := min(CHUNK_BYTES, left)):
            raise DataError(f"a chunk of {len(chunk)} bytes is not a part of {size} bytes")
        if self._offset == 0:
            is_taken = self._may_take(self._sizes[0])
            self._contents.append(empty_aligned((self._sizes[0],), np.uint8, np.zeros) if is_taken else None)
        if (array := self._contents[-1]) is not None:
            array[self._offset :][: len(chunk)] = np.frombuffer(chunk, np.uint8)
        self._offset += size
        if size == left:
            self._sizes.pop(0)
            self._offset = 0


def described_arrays(message: Any) -> list[Any]:
    """Return the arrays of a request or a reply whose bytes may follow it."""
    kind = message.WhichOneof("kind")
    if kind == "compile":
        return [message.compile.code]
    return list(getattr(message, kind).arrays) if kind in ("put", "arrays") else []


def arrays_of(message: Any, contents: list[np.ndarray | None]) -> list[Any]:
    """Return the arrays of a request or a reply, from the bytes of the large ones; see `from_wire`.

    Raises:
        DataError: their bytes do not fit their descriptions, or were dropped.
    """
    large = iter(contents)
    arrays = []
    for array in described_arrays(message):
        content = array.content if array.size_bytes <= INLINE_BYTES else next(large)
        if content is None:
            raise DataError(f"an array of {array.size_bytes} bytes was sent ahead, and there is no memory for it")
        arrays.append(from_wire(array, content))
    return arrays
