"""The few steps that grain leaves to us: generators, rows of arrays, orders, every so many, passes one after the other.

Idea: grain maps, batches, prefetches, and knows its position. What it has no step for, or a slow one, is a step of
ours, on grain's own public base classes, so that the others work on it.

Rule: an element is a tree of arrays, numbers, strings. The state of an iterator is plain JSON.

This file imports grain; only what builds a data set imports this file.
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
    """The numbers of the rows of arrays, from which the rows are taken as late as can be.

    Args:
        length: how many rows.
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
    """What can be indexed, in a random order: one permutation a pass, drawn when the pass is first read and then kept.

    grain works out each place by itself, which costs microseconds an element, and milliseconds whenever it begins.

    Args:
        parent: the elements.
        seed: of the orders.
        number: the number of the first pass; places after its end are those of the passes that follow.
    """

    def __init__(self, parent: grain.MapDataset, seed: int, number: int) -> None:
        super().__init__(parent)
        self._orders = _Orders(len(parent), seed)
        self._number = number
        self._length = len(parent)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        (parent,) = self.parents
        past, place = divmod(index, self._length)
        return parent[past * self._length + int(self._orders.of_pass(self._number + past)[place])]

    def _getitems(self, indices: Sequence[int]) -> Sequence[Any]:
        (parent,) = self.parents
        past, places = np.divmod(np.asarray(indices, np.int64), self._length)
        numbers = past * self._length
        for one in np.unique(past).tolist():
            chosen = past == one
            numbers[chosen] += self._orders.of_pass(self._number + one)[places[chosen]]
        return parent._getitems(numbers.tolist())


class _Orders:
    """The orders of the passes that are being read: two, or more if one that has gone by is asked for again."""

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed
        self._kept: dict[int, np.ndarray] = {}
        self._most, self._newest = 2, -1
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Orders, (self._length, self._seed)

    def of_pass(self, number: int) -> np.ndarray:
        """Return the order of a pass, `(length,)`. Threads that need the same one wait for the first of them."""
        order = self._kept.get(number)
        if order is not None:
            return order
        with self._lock:
            if number not in self._kept:
                # A shuffle after `repeat` jumps between passes: then all of them are kept, like its own order.
                self._most += number < self._newest
                self._newest = max(self._newest, number)
                order = permutation(self._length, self._seed, number)
                if len(self._kept) == self._most:
                    del self._kept[min(self._kept)]
                self._kept[number] = order
            return self._kept[number]


def permutation(length: int, *seeds: int) -> np.ndarray:
    """Return the numbers below `length` in the random order of these seeds, in 4 bytes each where they fit."""
    order = np.random.default_rng(seeds).permutation(length)
    return order.astype(np.int32) if length < 2**31 else order


class RowBatches(grain.MapDataset):
    """Batches of rows of arrays, each taken from the arrays in one go: a hundred times faster than row by row.

    Args:
        positions: the rows, in their order.
        arrays: tree of arrays.
        rows: the rows of a batch.
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
        past, index = divmod(index, self._length)
        start = index * self._rows
        stop = min(start + self._rows, len(positions))
        shift = past * len(positions)
        # grain's own way to ask for many elements at once; one by one costs ten microseconds each.
        numbers = np.asarray(positions._getitems(range(start + shift, stop + shift)))
        return jax.tree.map(lambda array: array[numbers], self._arrays)


class Generated(grain.IterDataset):
    """What a generator function yields. A position in it is restored by running it again up to there.

    Args:
        function: takes nothing, returns an iterator; it is called for each pass.
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
    """A stream in a random order, so many elements at a time, each window in an order of its own.

    A position is that of the window's beginning: restoring one reads the window again.

    Args:
        parent: the stream.
        size: the elements of a window.
        seed: of the orders.
        number: the number of the pass.
    """

    def __init__(self, parent: grain.IterDataset, size: int, seed: int, number: int) -> None:
        super().__init__(parent)
        self._size, self._seed, self._number = size, seed, number

    def __iter__(self) -> grain.DatasetIterator:
        (parent,) = self.parents
        return _WindowsIterator(iter(parent), self._size, (self._seed, self._number))


class _WindowsIterator(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator, size: int, seeds: tuple[int, int]) -> None:
        super().__init__(parent)
        self._iterator = parent
        self._size, self._seeds = size, seeds
        self._number = self._taken = 0
        self._start = copy.deepcopy(parent.get_state())
        self._left: list[Tree] = []
        self._is_last = False

    def __next__(self) -> Tree:
        if not self._left and not self._is_last:
            if self._taken:
                self._number, self._taken = self._number + 1, 0
                self._start = copy.deepcopy(self._iterator.get_state())
            self._fill()
        if not self._left:
            raise StopIteration
        self._taken += 1
        return self._left.pop()

    def _fill(self) -> None:
        window = list(itertools.islice(self._iterator, self._size))
        order = permutation(len(window), *self._seeds, self._number)
        self._left = [window[place] for place in order[self._taken :][::-1]]
        self._is_last = len(window) < self._size

    def get_state(self) -> dict[str, Any]:
        return {"start": self._start, "window": self._number, "taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        self._start = copy.deepcopy(state["start"])
        self._iterator.set_state(copy.deepcopy(state["start"]))
        self._number, self._taken = state["window"], state["taken"]
        self._fill()


class Every(grain.IterDataset):
    """One element of each `count`, of a stream.

    Args:
        parent: the stream.
        index: which of them, from 0.
        count: how many.
    """

    def __init__(self, parent: grain.IterDataset, index: int, count: int) -> None:
        super().__init__(parent)
        self._index, self._count = index, count

    def __iter__(self) -> grain.DatasetIterator:
        (parent,) = self.parents
        return _EveryIterator(iter(parent), self._index, self._count)


class _EveryIterator(grain.DatasetIterator):
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


class Passes(grain.IterDataset):
    """Passes over a stream, one after the other, each made anew, so that each is shuffled in an order of its own.

    Args:
        make: makes the stream of a pass, by its number.
        first: the number of the first.
        count: how many; None: without end.
    """

    def __init__(self, make: Callable[[int], grain.IterDataset], first: int, count: int | None) -> None:
        super().__init__()
        self._make, self._first, self._count = make, first, count

    def __iter__(self) -> grain.DatasetIterator:
        return _PassesIterator(self._make, self._first, self._count)


class _PassesIterator(grain.DatasetIterator):
    def __init__(self, make: Callable[[int], grain.IterDataset], first: int, count: int | None) -> None:
        super().__init__()
        self._make, self._first, self._count = make, first, count
        self._begin(0)

    def _begin(self, done: int) -> None:
        self._done, self._is_empty = done, True
        self._iterator = iter(self._make(self._first + done))

    def __next__(self) -> Tree:
        while self._count is None or self._done < self._count:
            for element in self._iterator:
                self._is_empty = False
                return element
            if self._is_empty:
                break
            self._iterator.close()
            self._begin(self._done + 1)
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        return {"done": self._done, "is_empty": self._is_empty, "pass": self._iterator.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._iterator.close()
        self._begin(state["done"])
        self._is_empty = state["is_empty"]
        self._iterator.set_state(state["pass"])

    def close(self) -> None:
        super().close()
        self._iterator.close()


def row_of(arrays: Tree, position: int) -> Tree:
    """Return one row of each array."""
    return jax.tree.map(lambda array: array[position], arrays)


def stack(elements: Sequence[Tree]) -> Tree:
    """Make a batch: each column of the elements stacked along a new first axis; strings and bytes as they are.

    Raises:
        DataError: the elements differ in their columns, or a column in its shapes.
    """
    flat = [jax.tree_util.tree_flatten_with_path(element) for element in elements]
    paths, tree = [path for path, _ in flat[0][0]], flat[0][1]
    for number, (leaves, other) in enumerate(flat):
        if other != tree:
            raise DataError(
                f"element {number} of a batch is built differently from its first: {_columns(leaves)}, not "
                f"{_columns(flat[0][0])}. Let the function of map return the same columns for every element"
            )
    columns = zip(paths, *([leaf for _, leaf in leaves] for leaves, _ in flat), strict=True)
    return tree.unflatten([_stacked(path, values) for path, *values in columns])


def _stacked(path: Any, values: list[Any]) -> np.ndarray:
    if isinstance(values[0], str | bytes):
        # NumPy's own fixed-width strings lose zero bytes at the end, which an image file may well have.
        column = np.empty(len(values), object)
        column[:] = values
        return column
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1:
        raise DataError(
            f"{name_of(path)} has elements of different shapes in one batch, {_listed(shapes)}: bring them to "
            "one shape first, with map, such as tpu.pipeline.resize for images or a padded array for sequences"
        )
    return np.stack(values)


def name_of(path: Any) -> str:
    """Return the name of a column: its keys and positions in the element, "image" or "0.image"."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path) or "it"


def _columns(leaves: list[tuple[Any, Any]]) -> str:
    return ", ".join(name_of(path) for path, _ in leaves) or "nothing"


def _listed(shapes: set[tuple[int, ...]]) -> str:
    first = sorted(shapes)[:3]
    return " and ".join(str(shape) for shape in first) + (" and others" if len(shapes) > 3 else "")
