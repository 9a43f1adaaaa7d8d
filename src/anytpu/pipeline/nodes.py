"""Dataset nodes that grain lacks for elements that can be indexed: row numbers, row batches, shuffles, a cache.

Idea: grain maps, batches, slices, concatenates and prefetches. Nodes that it lacks, or has only in a slow form, are
defined here and in `streams.py`. They use grain's public base classes, so that they combine with its own nodes.

Rule: an index beyond the end belongs to a following pass.

This file imports grain; only modules that build a data set import this file.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import grain
import jax
import numpy as np
from grain.multiprocessing import SharedMemoryArray

Tree = Any
Node = grain.MapDataset | grain.IterDataset


class Positions(grain.MapDataset):
    """The indices of the rows of arrays; a later node takes the rows themselves.

    Args:
        length: number of rows.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else index % self._length

    def _getitems(self, indices: Sequence[int]) -> list[int]:
        length = self._length
        return [index % length for index in indices]


class Shuffled(grain.MapDataset):
    """A shuffle of elements that can be indexed: one permutation per pass, drawn on first use and cached.

    grain's own shuffle computes each index separately, which costs microseconds per element, and milliseconds at the
    start of each iteration.

    Args:
        parent: the elements.
        size: number of elements that are shuffled together: those of a pass, or of a window of endless elements.
        seeds: seeds of the orders, beside the index of the pass or window.
        first: index of the first pass; indices beyond its end belong to the following passes.
        is_fixed: whether all passes have the order of the first.
    """

    def __init__(
        self, parent: grain.MapDataset, size: int, seeds: tuple[int, ...], first: int, *, is_fixed: bool = False
    ) -> None:
        super().__init__(parent)
        self._size, self._first, self._is_fixed = size, first, is_fixed
        self._orders = _Orders(size, seeds)

    def __len__(self) -> int:
        return len(self.parents[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        (parent,) = self.parents
        repeat, offset = divmod(index, self._size)
        return parent[repeat * self._size + int(self._order(repeat)[offset])]

    def _getitems(self, indices: Sequence[int]) -> Sequence[Any]:
        (parent,) = self.parents
        repeats, offsets = np.divmod(np.asarray(indices, np.int64), self._size)
        shuffled = repeats * self._size
        for repeat in np.unique(repeats).tolist():
            selected = repeats == repeat
            shuffled[selected] += self._order(repeat)[offsets[selected]]
        return parent._getitems(shuffled.tolist())

    def _order(self, repeat: int) -> np.ndarray:
        return self._orders.of_pass(self._first + (0 if self._is_fixed else repeat))


class _Orders:
    """A cache of the permutations of recent passes: two, and one more for each return to an earlier pass."""

    def __init__(self, length: int, seeds: tuple[int, ...]) -> None:
        self._length, self._seeds = length, seeds
        self._cached: dict[int, np.ndarray] = {}
        self._max_cached, self._newest = 2, -1
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Orders, (self._length, self._seeds)

    def of_pass(self, pass_index: int) -> np.ndarray:
        """Return the order of a pass, `(length,)`. Threads that need the same order wait for the first of them."""
        order = self._cached.get(pass_index)
        if order is not None:
            return order
        with self._lock:
            if pass_index not in self._cached:
                # A second shuffle after `repeat` jumps between passes. Each return to an earlier pass raises the limit,
                # so that in the end all passes are cached.
                self._max_cached += pass_index < self._newest
                self._newest = max(self._newest, pass_index)
                order = permutation(self._length, *self._seeds, pass_index)
                if len(self._cached) == self._max_cached:
                    del self._cached[min(self._cached)]
                self._cached[pass_index] = order
            return self._cached[pass_index]


def permutation(length: int, *seeds: int) -> np.ndarray:
    """Return a random permutation of `range(length)` for these seeds: int32 if the indices fit, else int64."""
    order = np.random.default_rng(seeds).permutation(length)
    return order.astype(np.int32) if length < 2**31 else order


class RowBatches(grain.MapDataset):
    """Batches of rows of arrays, each gathered in one indexing operation: a hundred times faster than row by row.

    Args:
        positions: indices of the rows, in their order.
        arrays: tree of arrays.
        rows: number of rows in a batch.
        drop_remainder: leave out a last batch that is not full.
    """

    def __init__(self, positions: grain.MapDataset, arrays: Tree, rows: int, drop_remainder: bool) -> None:
        super().__init__(positions)
        self._arrays = arrays
        self._rows = rows
        self._length = len(positions) // rows if drop_remainder else -(-len(positions) // rows)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        (positions,) = self.parents
        repeat, index = divmod(index, self._length)
        start = index * self._rows
        stop = min(start + self._rows, len(positions))
        shift = repeat * len(positions)
        # `_getitems` is grain's bulk access; single access costs ten microseconds per element.
        rows = np.asarray(positions._getitems(range(start + shift, stop + shift)))
        return jax.tree.map(lambda array: array[rows], self._arrays)


class Cached(grain.MapDataset):
    """Elements that can be indexed, each computed once; every later pass returns the same elements.

    Args:
        parent: the elements of the first pass.
        computed: the elements computed so far, by index. Each worker process has its own.
    """

    def __init__(self, parent: grain.MapDataset, computed: dict[int, Tree]) -> None:
        super().__init__(parent)
        self._computed = computed
        self._length = len(parent)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        (parent,) = self.parents
        kept = [index % self._length for index in indices]
        if missing := [index for index in kept if index not in self._computed]:
            self._computed.update(zip(missing, map(frozen, parent._getitems(missing)), strict=True))
        return [self._computed[index] for index in kept]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_computed": {}}


def frozen(element: Tree) -> Tree:
    """Return an element with read-only arrays: a change of a cached element would change every later pass."""

    def protected(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        view = leaf.view()
        view.flags.writeable = False
        return view

    return jax.tree.map(protected, element)


def unshared(element: Tree) -> Tree:
    """Return an element of a worker process with copies of its arrays in shared memory.

    Each array in shared memory takes a file descriptor of this process, and Python cannot free it late in its exit.
    """
    return jax.tree.map(lambda leaf: np.array(leaf) if isinstance(leaf, SharedMemoryArray) else leaf, element)
