"""A free list of memory for batches.

Idea: a batch of images takes tens of megabytes. The operating system supplies fresh memory of that size page by page
and clears each page, which costs a tenth of the decoding time. Successive batches have the same size, so the memory of
a released batch serves the next.

Rule: memory returns to the free list when the last reference to the array and its views is gone, with no call by the
user. At most four buffers are on the free list, all of one size.
"""

from __future__ import annotations

import collections
import math
import weakref
from typing import Any

import numpy as np

from anytpu.units import MIB

_MIN_BYTES = MIB
_CACHE_LINE_BYTES = 64
# Offset of an array in its cache line. libjpeg-turbo 3 writes rows aligned to 32 bytes with non-temporal stores, around
# the cache: 10 % slower for images of 192 x 192.
_START_BYTES = 16
_MAX_IDLE = 4

_idle: dict[int, collections.deque[memoryview]] = {}


def batch_array(shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """Return an uninitialized array.

    Args:
        shape: shape of the array.
        dtype: type of the values; a numeric type.

    Example:
        >>> batch_array((64, 192, 192, 3)).shape
        (64, 192, 192, 3)
    """
    dtype = np.dtype(dtype)
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes < _MIN_BYTES:
        return np.empty(shape, dtype)
    memory = _take(size_bytes)
    start = (_START_BYTES - np.frombuffer(memory, np.uint8).ctypes.data) % _CACHE_LINE_BYTES
    # Views keep their base alive. `frombuffer` of a memoryview is the base of all views; that of an array would not be:
    # NumPy would collapse the chain to that array, and the finalizer would run too early.
    base = np.frombuffer(memory, dtype, math.prod(shape), start)
    weakref.finalize(base, _give_back, size_bytes, memory).atexit = False
    return base.reshape(shape)


def _take(size_bytes: int) -> memoryview:
    try:
        return _idle[size_bytes].pop()
    except (KeyError, IndexError):
        # NumPy requests huge pages, where the system has them.
        return np.empty(size_bytes + _CACHE_LINE_BYTES, np.uint8).data


def _give_back(size_bytes: int, memory: memoryview) -> None:
    # A finalizer may run in any thread at any time, even inside itself. So it takes no lock, and each statement that
    # changes `_idle` is atomic.
    idle = _idle.get(size_bytes)
    if idle is None:
        _idle.clear()
        idle = _idle.setdefault(size_bytes, collections.deque(maxlen=_MAX_IDLE))
    idle.append(memory)
