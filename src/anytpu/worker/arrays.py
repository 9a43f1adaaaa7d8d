"""Arrays on the wire: their description, their bytes in chunks, and the store of those that have arrived.

Rule: no pickle. An array is a dtype's name, a shape and bytes. A typed random key is its words and its generator.
"""

from __future__ import annotations

import math
import threading
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine.feeds import empty_aligned
from anytpu.errors import DataError
from anytpu.files.npy import named_dtype
from anytpu.worker.chunk import ChunkReader
from anytpu.worker.wire import INLINE_BYTES, messages

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


def bytes_apart(array: np.ndarray) -> memoryview:
    """Return the bytes of an array that are sent in chunks: none if its message contains them."""
    return memoryview(b"") if array.nbytes <= INLINE_BYTES else array.reshape(-1).view(np.uint8).data


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


class ArrayStore:
    """Large arrays that have arrived, until the request or reply that they belong to takes them.

    Rule: nothing grows with the number of operations. So refused operations are a range of numbers, and requests are
    executed in the order of theirs.

    Args:
        max_bytes: maximum size of the arrays that wait in the store.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._arrived = threading.Condition()
        self._arrays: dict[tuple[int, int], np.ndarray] = {}
        self._over = -1
        """Number of the last operation that is over."""
        self._refused = range(0)
        """Numbers of operations with an array that did not fit; those between them are refused, too."""
        self._held_bytes = 0
        self._closed = False

    def add(self, operation: int, index: int, content: np.ndarray | None) -> None:
        """Add the bytes of an array; None, or more than fits, refuses its operation."""
        with self._arrived:
            if operation > self._over and operation not in self._refused and (operation, index) not in self._arrays:
                if content is None or self._held_bytes + len(content) > self._max_bytes:
                    self._refuse(operation)
                else:
                    self._held_bytes += len(content)
                    self._arrays[operation, index] = content
            self._arrived.notify_all()

    def end(self, operation: int) -> None:
        """Drop the arrays of an operation that is over and of those before it, also those that come later."""
        with self._arrived:
            self._over = max(self._over, operation)
            self._drop(range(self._over + 1))

    def _refuse(self, operation: int) -> None:
        first, last = operation, operation
        if self._refused.stop > self._over + 1:
            first, last = min(first, self._refused[0]), max(last, self._refused[-1])
        self._refused = range(first, last + 1)
        self._drop(self._refused)

    def _drop(self, operations: range) -> None:
        for key in [key for key in self._arrays if key[0] in operations]:
            self._held_bytes -= len(self._arrays.pop(key))

    def close(self) -> None:
        """Wake all waiting threads: no more arrays come."""
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
            if operation <= self._over:
                raise DataError(f"request {operation} came after request {self._over}")
            self._arrived.wait_for(lambda: self._closed or operation in self._refused or key in self._arrays)
            if operation in self._refused:
                raise DataError(f"arrays of more than {self._max_bytes} bytes were sent ahead")
            content = self._arrays.pop(key, np.empty(0, np.uint8))
            self._held_bytes -= len(content)
        return from_wire(described, content)


@final
class ChunkStore:
    """Puts the chunks of arrays together, each in its place, for an `ArrayStore`.

    Args:
        store: receives the complete arrays.
        max_bytes: maximum size of one array.
    """

    def __init__(self, store: ArrayStore, max_bytes: int) -> None:
        self._store, self._order, self._max_bytes = store, ChunkReader(), max_bytes
        self._content = np.empty(0, np.uint8)

    def add(self, message: bytes | memoryview) -> None:
        """Add one chunk.

        Raises:
            DataError: it does not follow the previous one, or its array is too large.
        """
        chunk = self._order.next(message)
        if chunk.is_first and chunk.size_bytes > self._max_bytes:
            raise DataError(f"a chunk is of an array of {chunk.size_bytes} bytes, and {self._max_bytes} are the most")
        if chunk.is_first:
            self._content = empty_aligned((chunk.size_bytes,), np.uint8, np.zeros)
        self._content[chunk.offset :][: len(chunk.content)] = np.frombuffer(chunk.content, np.uint8)
        if chunk.is_last:
            self._store.add(chunk.operation, chunk.index, self._content)
