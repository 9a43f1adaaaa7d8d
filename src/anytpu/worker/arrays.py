"""Arrays on the wire: their description, their bytes in chunks, and the store that collects the chunks.

Rule: no pickle. An array is a dtype's name, a shape and bytes. A typed random key is its words and its generator.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.errors import DataError
from anytpu.worker.wire import CHUNK_BYTES, INLINE_BYTES, messages

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


def chunks(operation: int, index: int, array: np.ndarray) -> Iterator[bytes]:
    """Yield the chunks of an array that is too large for its message."""
    if array.nbytes <= INLINE_BYTES:
        return
    content = array.reshape(-1).view(np.uint8)
    for offset in range(0, len(content), CHUNK_BYTES):
        part = content[offset : offset + CHUNK_BYTES].tobytes()
        chunk = messages().Chunk(operation=operation, index=index, offset=offset, content=part)
        yield chunk.SerializeToString()


def checked_size(described: Any) -> int:
    """Return the bytes of a described array.

    Raises:
        DataError: its dtype is unknown, or its shape and bytes differ.
    """
    try:
        dtype = jnp.dtype(described.dtype)
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


class ChunkStore:
    """Collects the chunks of arrays. One thread adds, another waits.

    Args:
        max_bytes: maximum number of bytes that wait in the store.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._arrived = threading.Condition()
        self._parts: dict[tuple[int, int], bytearray] = {}
        self._refused: set[int] = set()
        self._held_bytes = 0
        self._closed = False

    def add(self, message: bytes | memoryview) -> None:
        """Add one chunk.

        Raises:
            DataError: it does not follow the previous chunk of its array.
        """
        chunk = messages().Chunk.FromString(message)
        with self._arrived:
            if chunk.operation in self._refused:
                return
            part = self._parts.setdefault((chunk.operation, chunk.index), bytearray())
            if chunk.offset != len(part):
                raise DataError(f"a chunk starts at byte {chunk.offset}, and byte {len(part)} is next")
            self._held_bytes += len(chunk.content)
            part += chunk.content
            if self._held_bytes > self._max_bytes:
                self._drop(chunk.operation)
            self._arrived.notify_all()

    def refuse(self, operation: int) -> None:
        """Drop the chunks of a failed operation, also those that come later."""
        with self._arrived:
            self._drop(operation)

    def _drop(self, operation: int) -> None:
        self._refused.add(operation)
        for key in [key for key in self._parts if key[0] == operation]:
            self._held_bytes -= len(self._parts.pop(key))

    def close(self) -> None:
        """Wake all waiting threads: no more chunks come."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()

    def take(self, operation: int, index: int, described: Any) -> Any:
        """Wait for an array, and return it; see `from_wire`.

        Raises:
            DataError: its bytes do not fit its description, or the sender stopped.
        """
        size_bytes = checked_size(described)
        if size_bytes <= INLINE_BYTES:
            return from_wire(described, described.content)
        key = (operation, index)
        with self._arrived:
            self._arrived.wait_for(
                lambda: self._closed or operation in self._refused or len(self._parts.get(key, b"")) >= size_bytes
            )
            if operation in self._refused:
                raise DataError(f"arrays of more than {self._max_bytes} bytes were sent ahead")
            content = self._parts.pop(key, bytearray())
            self._held_bytes -= len(content)
        return from_wire(described, content)
