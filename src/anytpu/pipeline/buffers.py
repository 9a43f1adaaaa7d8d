"""Memory for batches, used again as soon as nobody holds the batch that was in it.

Idea: a batch of images is tens of megabytes. Fresh memory of that size comes from the operating system page by page,
each of them cleared first: a tenth of the time of decoding into it. Batches come one after another in one size, so the
memory of one that is gone serves the next.

Rule: memory is given back by the array itself, when the last reference to it and to all views of it is gone; nobody has
to say so. At most four pieces lie idle, all of one size.
"""

from __future__ import annotations

import collections
import math
import weakref
from typing import Any

import numpy as np

from anytpu.units import MIB

_LEAST_BYTES = MIB
_LINE_BYTES = 64
# Where in a cache line an array begins. libjpeg-turbo 3 writes rows that begin at a multiple of 32 bytes around the
# cache: 10 % slower for images of 192 x 192.
_BEGIN_BYTES = 16
_MOST_IDLE = 4

_idle: dict[int, collections.deque[memoryview]] = {}


def batch_array(shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """Return an array with anything in it, to be filled.

    Args:
        shape: of the array.
        dtype: of the array; a type of numbers.

    Example:
        >>> batch_array((64, 192, 192, 3)).shape
        (64, 192, 192, 3)
    """
    dtype = np.dtype(dtype)
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes < _LEAST_BYTES:
        return np.empty(shape, dtype)
    memory = _taken(size_bytes)
    start = (_BEGIN_BYTES - np.frombuffer(memory, np.uint8).ctypes.data) % _LINE_BYTES
    # All views of it hang on what frombuffer makes of a memoryview (of an array they would hang on that array).
    base = np.frombuffer(memory, dtype, math.prod(shape), start)
    weakref.finalize(base, _give_back, size_bytes, memory).atexit = False
    return base.reshape(shape)


def _taken(size_bytes: int) -> memoryview:
    try:
        return _idle[size_bytes].pop()
    except (KeyError, IndexError):
        # NumPy asks for huge pages, where the system has them.
        return np.empty(size_bytes + _LINE_BYTES, np.uint8).data


def _give_back(size_bytes: int, memory: memoryview) -> None:
    # This may run in any thread at any moment, also within itself: no lock, and only what happens in one step.
    idle = _idle.get(size_bytes)
    if idle is None:
        _idle.clear()
        idle = _idle.setdefault(size_bytes, collections.deque(maxlen=_MOST_IDLE))
    idle.append(memory)
