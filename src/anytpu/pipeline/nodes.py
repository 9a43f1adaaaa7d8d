"""Dataset nodes that grain lacks: generators, row batches, shuffles, strided shards, repeats.

Idea: grain maps, batches, prefetches and tracks the position. Nodes that it lacks, or has only in a slow form, are
defined here. They use grain's public base classes, so that they combine with its own nodes.

Rule: an element is a tree of arrays, numbers and strings. The state of an iterator is plain JSON.

This file imports grain; only modules that build a data set import this file.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grain
import jax
import numpy as np

from anytpu.errors import DataError

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
        seed: seed of the orders.
        first_pass: index of the first pass; indices beyond its end belong to the following passes.
    """

    def __init__(self, parent: grain.MapDataset, seed: int, first_pass: int) -> None:
        super().__init__(parent)
        self._orders = _Orders(len(parent), seed)
        self._first_pass = first_pass
        self._length = len(parent)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        (parent,) = self.parents
        repeat, offset = divmod(index, self._length)
        return parent[repeat * self._length + int(self._orders.of_pass(self._first_pass + repeat)[offset])]

    def _getitems(self, indices: Sequence[int]) -> Sequence[Any]:
        (parent,) = self.parents
        repeats, offsets = np.divmod(np.asarray(indices, np.int64), self._length)
        shuffled = repeats * self._length
        for repeat in np.unique(repeats).tolist():
            selected = repeats == repeat
            shuffled[selected] += self._orders.of_pass(self._first_pass + repeat)[offsets[selected]]
        return parent._getitems(shuffled.tolist())


class _Orders:
    """A cache of the permutations of recent passes: two, and one more for each return to an earlier pass."""

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed
        self._cached: dict[int, np.ndarray] = {}
        self._max_cached, self._newest = 2, -1
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Orders, (self._length, self._seed)

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
                order = permutation(self._length, self._seed, pass_index)
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


class Generated(grain.IterDataset):
    """The elements of a generator function. A position is restored by running the function again up to it.

    Args:
        function: function without arguments that returns an iterator; it is called for each pass.
    """

    def __init__(self, function: Callable[[], Iterable[Tree]]) -> None:
        super().__init__()
        self._function = function

    def __iter__(self) -> grain.DatasetIterator:
        return _GeneratedIterator(self._function)


class _GeneratedIterator(grain.DatasetIterator):
    def __init__(self, function: Callable[[], Iterable[Tree]]) -> None:
        super().__init__()
        self._function = function
        self._taken = 0
        self._iterator: Iterator[Tree] | None = None

    def __next__(self) -> Tree:
        if self._iterator is None:
            self._iterator = itertools.islice(self._function(), self._taken, None)
        element = next(self._iterator)
        self._taken += 1
        return element

    def get_state(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        self._taken, self._iterator = state["taken"], None


class ShuffledWindows(grain.IterDataset):
    """A shuffle of a stream in windows, each with its own permutation.

    The saved position is that of the window's beginning: restoring it reads the window again.

    Args:
        parent: the stream.
        size: number of elements in a window.
        seed: seed of the orders.
        pass_index: index of the pass.
    """

    def __init__(self, parent: grain.IterDataset, size: int, seed: int, pass_index: int) -> None:
        super().__init__(parent)
        self._size, self._seed, self._pass_index = size, seed, pass_index

    def __iter__(self) -> grain.DatasetIterator:
        (parent,) = self.parents
        return _WindowsIterator(iter(parent), self._size, (self._seed, self._pass_index))


class _WindowsIterator(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator, size: int, seeds: tuple[int, int]) -> None:
        super().__init__(parent)
        self._iterator = parent
        self._size, self._seeds = size, seeds
        self._window = self._taken = 0
        self._start = copy.deepcopy(parent.get_state())
        self._remaining: list[Tree] = []  # the rest of the window, last element first
        self._is_last = False

    def __next__(self) -> Tree:
        if not self._remaining and not self._is_last:
            if self._taken:
                self._window, self._taken = self._window + 1, 0
                self._start = copy.deepcopy(self._iterator.get_state())
            self._fill()
        if not self._remaining:
            raise StopIteration
        self._taken += 1
        return self._remaining.pop()

    def _fill(self) -> None:
        window = list(itertools.islice(self._iterator, self._size))
        order = permutation(len(window), *self._seeds, self._window)
        self._remaining = [window[index] for index in order[self._taken :][::-1]]
        self._is_last = len(window) < self._size

    def get_state(self) -> dict[str, Any]:
        return {"start": self._start, "window": self._window, "taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        self._start = copy.deepcopy(state["start"])
        self._iterator.set_state(copy.deepcopy(state["start"]))
        self._window, self._taken = state["window"], state["taken"]
        self._fill()


class StridedShard(grain.IterDataset):
    """Every `count`-th element of a stream.

    Args:
        parent: the stream.
        index: index of the first element, from 0 to `count - 1`.
        count: stride, which is the number of shards.
    """

    def __init__(self, parent: grain.IterDataset, index: int, count: int) -> None:
        super().__init__(parent)
        self._index, self._count = index, count

    def __iter__(self) -> grain.DatasetIterator:
        (parent,) = self.parents
        return _StridedIterator(iter(parent), self._index, self._count)


class _StridedIterator(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator, index: int, count: int) -> None:
        super().__init__(parent)
        self._iterator = parent
        self._index, self._count = index, count
        self._is_inside = False

    def __next__(self) -> Tree:
        for _ in range(self._count - 1 if self._is_inside else self._index):
            next(self._iterator)
        element = next(self._iterator)
        self._is_inside = True
        return element

    def get_state(self) -> dict[str, Any]:
        return {"parent": self._iterator.get_state(), "is_inside": self._is_inside}

    def set_state(self, state: dict[str, Any]) -> None:
        self._iterator.set_state(state["parent"])
        self._is_inside = state["is_inside"]


class RepeatedPasses(grain.IterDataset):
    """The concatenation of passes over a stream, each built separately, so that each has its own shuffle order.

    Args:
        make: builds the stream of a pass from its index.
        first: index of the first pass.
        count: number of passes; None: endless.
    """

    def __init__(self, make: Callable[[int], grain.IterDataset], first: int, count: int | None) -> None:
        super().__init__()
        self._make, self._first, self._count = make, first, count

    def __iter__(self) -> grain.DatasetIterator:
        return _RepeatedIterator(self._make, self._first, self._count)


class _RepeatedIterator(grain.DatasetIterator):
    def __init__(self, make: Callable[[int], grain.IterDataset], first: int, count: int | None) -> None:
        super().__init__()
        self._make, self._first, self._count = make, first, count
        self._begin(0)

    def _begin(self, completed: int) -> None:
        self._completed, self._is_empty = completed, True
        self._iterator = iter(self._make(self._first + completed))

    def __next__(self) -> Tree:
        while self._count is None or self._completed < self._count:
            for element in self._iterator:
                self._is_empty = False
                return element
            if self._is_empty:  # an empty pass ends an endless repetition too
                break
            self._iterator.close()
            self._begin(self._completed + 1)
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        return {"done": self._completed, "is_empty": self._is_empty, "pass": self._iterator.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._iterator.close()
        self._begin(state["done"])
        self._is_empty = state["is_empty"]
        self._iterator.set_state(state["pass"])

    def close(self) -> None:
        super().close()
        self._iterator.close()


def row_of(arrays: Tree, position: int) -> Tree:
    """Return the row at a position of each array."""
    return jax.tree.map(lambda array: array[position], arrays)


def stack(elements: Sequence[Tree]) -> Tree:
    """Make a batch: stack each column along a new first axis; strings and bytes become arrays of objects.

    Raises:
        DataError: the elements have different columns, or a column has different shapes.
    """
    flat = [jax.tree_util.tree_flatten_with_path(element) for element in elements]
    paths, tree = [path for path, _ in flat[0][0]], flat[0][1]
    for index, (leaves, other) in enumerate(flat):
        if other != tree:
            raise DataError(
                f"element {index} of a batch has other columns than its first: {_columns(leaves)}, not "
                f"{_columns(flat[0][0])}. Return the same columns for every element in map"
            )
    columns = zip(paths, *([leaf for _, leaf in leaves] for leaves, _ in flat), strict=True)
    return tree.unflatten([_stacked(path, values) for path, *values in columns])


def _stacked(path: Any, values: list[Any]) -> np.ndarray:
    if isinstance(values[0], str | bytes):
        # NumPy's fixed-width strings drop trailing zero bytes, which an image file may have.
        column = np.empty(len(values), object)
        column[:] = values
        return column
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1:
        raise DataError(
            f"{name_of(path)} has elements of different shapes in one batch, {_listed(shapes)}: convert them to one "
            "shape in map, such as by tpu.pipeline.resize for images, or by padding for sequences"
        )
    return np.stack(values)


def name_of(path: Any) -> str:
    """Return a column's name: its keys and indices in the element, such as "image" or "0.image"."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path) or "it"


def _columns(leaves: list[tuple[Any, Any]]) -> str:
    return ", ".join(name_of(path) for path, _ in leaves) or "nothing"


def _listed(shapes: set[tuple[int, ...]]) -> str:
    first = sorted(shapes)[:3]
    return " and ".join(str(shape) for shape in first) + (" and others" if len(shapes) > 3 else "")
