"""Workers: a thread pool with a worker for each core.

Idea: a BLAS shares each product among threads of its own, which spin while they wait for one another. The work before
and after a product then runs on one thread. Here each worker takes some rows through all of it, with a BLAS limited to
the worker's thread. That is faster when the cores are free, and many times faster when they are not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")


@functools.cache
def count() -> int:
    """Return the number of workers: one for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(items: Sequence[Item], work: Callable[[Item], None]) -> None:
    """Do `work` for each item; a free worker takes the next item. Return when all items are done."""
    left = iter(items)

    def take() -> None:
        for item in left:
            work(item)

    others = [_pool().submit(take) for _ in range(min(count(), len(items)) - 1)]
    take()
    for other in others:
        other.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, count() - 1), "anytpu-chip")


class _ThreadArrays(threading.local):
    """Thread-local arrays, by name."""

    def __init__(self):
        self.arrays: dict[str, np.ndarray] = {}


_own = _ThreadArrays()


def scratch(name: str, shape: tuple[int, int]) -> np.ndarray:
    """Return an array of float32 that belongs to this thread until it asks again by the same name."""
    size = shape[0] * shape[1]
    array = _own.arrays.get(name)
    if array is None or array.size < size:
        array = _own.arrays[name] = np.empty(size, np.float32)
    return array[:size].reshape(shape)


class _Blas:
    """The BLAS of this process, and the number of contexts that limit it to one thread."""

    def __init__(self):
        self._lock = threading.Lock()
        self._wanted = 0
        self._limit: contextlib.AbstractContextManager | None = None

    @contextlib.contextmanager
    def one_thread(self) -> Iterator[None]:
        with self._lock:
            if self._wanted == 0:
                self._limit = _controller().limit(limits=1, user_api="blas")
                self._limit.__enter__()
            self._wanted += 1
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1
                if self._wanted == 0:
                    assert self._limit is not None
                    self._limit.__exit__(None, None, None)


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


_blas = _Blas()


def one_thread_blas() -> contextlib.AbstractContextManager[None]:
    """Return a context in which the BLAS of this process keeps each product to the thread that asks for it."""
    return _blas.one_thread()
