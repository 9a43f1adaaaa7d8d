"""Batches on their way to the device: row numbers of arrays that lie there already, or the batches themselves.

Idea: arrays that fit are uploaded once and a step gathers its rows on the device, so an epoch costs a few kilobytes of
row numbers. Everything else (generators, data loaders, data sets larger than memory) is stacked, as many batches as 64
MiB hold, while the device runs the call before.

Rule: a `Source` is one pass over the data; it gives `Group`s, each what one call of Keras's train function consumes. A
group becomes `Segment`s, steps on batches of one shape, only when that call is made. To build a model that is not built
yet, Keras asks a group for one real batch (`next(group)`).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import jax
import numpy as np

from anytpu.engine.backend import Backend, Loop
from anytpu.program.program import REPLICATED, Layout, Tree, spec_of

MOST_STEPS = 1024
_STACK = Layout(1)

LoopOf = Callable[[Tree, Loop], Loop]
"""Finishes a loop for batches of these specs: `loop_of(specs, loop)` may lower its capacity and sets its guard."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """Some steps on batches of one shape.

    Attributes:
        batch: specs of one batch.
        loop: the loop that runs them.
        feed: handles of the feed, see `Executable.steps`.
        start: the first step in the feed.
        count: how many.
    """

    batch: Tree
    loop: Loop
    feed: Tree
    start: int
    count: int


class Group(abc.ABC):
    """The steps of one call of Keras's train, test or predict function.

    Attributes:
        steps: how many.
    """

    steps: int

    @abc.abstractmethod
    def segments(self, loop_of: LoopOf) -> Iterator[Segment]:
        """Bring the steps to the device, segment by segment."""

    @abc.abstractmethod
    def example(self) -> Tree:
        """Return the first batch, on the host."""

    def __iter__(self) -> Iterator[Tree]:
        return self

    def __next__(self) -> Tree:
        return self.example()


class Source(abc.ABC):
    """One pass over the data."""

    @abc.abstractmethod
    def take(self, most: int) -> Group | None:
        """Return the next group, of at most `most` steps; None when the pass is over."""


class ResidentArrays:
    """A data set that lies on the device whole, uploaded when it is first used.

    Args:
        backend: where.
        arrays: tree of NumPy arrays with equal first axes.
    """

    def __init__(self, backend: Backend, arrays: Tree) -> None:
        self.backend = backend
        self.arrays = arrays
        self.examples = len(jax.tree.leaves(arrays)[0])
        self._handles: Tree = None

    @property
    def handles(self) -> Tree:
        """Handles of the arrays."""
        if self._handles is None:
            self._handles = self.backend.put(self.arrays, REPLICATED)
        return self._handles

    def batch(self, rows: int) -> Tree:
        """Return the specs of a batch of so many rows."""
        specs = spec_of(self.arrays)
        return jax.tree.map(lambda spec: jax.ShapeDtypeStruct((rows, *spec.shape[1:]), spec.dtype), specs)


@final
class RowSource(Source):
    """A pass over resident arrays, as the row numbers of each batch.

    Args:
        data: the arrays.
        numbers: starts the pass: an iterable of row numbers, one array a batch; all but the last of one length.
    """

    def __init__(self, data: ResidentArrays, numbers: Callable[[], Iterable[np.ndarray]]) -> None:
        self.data = data
        self._start = numbers
        self._rows: list[np.ndarray] | None = None
        self._taken = 0
        self._chunk: tuple[int, Any] = (-1, None)

    def take(self, most: int) -> Group | None:
        """Return the next group."""
        if self._rows is None:
            self._rows = list(self._start())
        first, self._taken = self._taken, min(self._taken + most, len(self._rows))
        return _RowGroup(self, first, self._taken - first) if self._taken > first else None

    def rows(self, step: int) -> np.ndarray:
        """Return the row numbers of a step."""
        assert self._rows is not None
        return self._rows[step]

    def full_steps(self) -> int:
        """Return how many batches of the pass are full."""
        assert self._rows is not None
        return len(self._rows) - (len(self._rows[-1]) != len(self._rows[0]))

    def chunk(self, number: int, capacity: int) -> Any:
        """Return the handle of the row numbers of the full batches `number * capacity` and on, `(capacity, rows)`."""
        if self._chunk[0] != number:
            steps = range(number * capacity, min((number + 1) * capacity, self.full_steps()))
            self._chunk = (number, self._put([self.rows(step) for step in steps], capacity))
        return self._chunk[1]

    def single(self, step: int) -> Any:
        """Return the handle of the row numbers of one step, `(1, rows)`."""
        return self._put([self.rows(step)], 1)

    def _put(self, rows: list[np.ndarray], capacity: int) -> Any:
        numbers = np.zeros((capacity, len(rows[0])), np.int32)
        numbers[: len(rows)] = rows
        return self.data.backend.put(numbers, _STACK)


@final
class _RowGroup(Group):
    def __init__(self, source: RowSource, first: int, steps: int) -> None:
        self._source, self._first, self.steps = source, first, steps

    def example(self) -> Tree:
        rows = self._source.rows(self._first)
        return jax.tree.map(lambda array: array[rows], self._source.data.arrays)

    def segments(self, loop_of: LoopOf) -> Iterator[Segment]:
        source, full = self._source, self._source.full_steps()
        examples = source.data.examples
        step, end = self._first, self._first + self.steps
        while step < min(end, full):
            batch = source.data.batch(len(source.rows(step)))
            loop = loop_of(batch, Loop(min(MOST_STEPS, full), "rows", examples=examples))
            number, start = divmod(step, loop.capacity)
            count = min(end, full, (number + 1) * loop.capacity) - step
            yield Segment(batch, loop, (source.data.handles, source.chunk(number, loop.capacity)), start, count)
            step += count
        if step < end:
            batch = source.data.batch(len(source.rows(step)))
            loop = loop_of(batch, Loop(1, "rows", examples=examples))
            yield Segment(batch, loop, (source.data.handles, source.single(step)), 0, 1)


@final
class BatchSource(Source):
    """A pass over batches that some iterator yields on the host.

    Args:
        backend: where they go.
        batches: yields trees of arrays.
        capacity: the steps that one stack holds, of batches of so many bytes.
    """

    def __init__(self, backend: Backend, batches: Iterator[Tree], capacity: Callable[[int], int]) -> None:
        self.backend = backend
        self.capacity = capacity
        self._batches = batches

    def take(self, most: int) -> Group | None:
        """Return the next group, of no more batches than a stack holds."""
        first = next(self._batches, None)
        if first is None:
            return None
        most = min(most, self.capacity(_bytes_of(first)))
        return _BatchGroup(self, [first, *itertools.islice(self._batches, most - 1)])


@final
class _BatchGroup(Group):
    def __init__(self, source: BatchSource, batches: list[Tree]) -> None:
        self._source, self._batches, self.steps = source, batches, len(batches)

    def example(self) -> Tree:
        return self._batches[0]

    def segments(self, loop_of: LoopOf) -> Iterator[Segment]:
        for _, run in itertools.groupby(self._batches, key=_shapes_of):
            batches = list(run)
            specs = spec_of(batches[0])
            loop = loop_of(specs, Loop(self._source.capacity(_bytes_of(batches[0])), "batches"))
            for first in range(0, len(batches), loop.capacity):
                part = batches[first : first + loop.capacity]
                stacked = jax.tree.map(functools.partial(_stacked, loop.capacity), specs, *part)
                yield Segment(specs, loop, self._source.backend.put(stacked, _STACK), 0, len(part))


def _stacked(capacity: int, spec: jax.ShapeDtypeStruct, *parts: Any) -> np.ndarray:
    """Stack arrays in a buffer of fixed capacity, on a cache line, so that a CPU device can use it where it is."""
    size = int(np.prod((capacity, *spec.shape))) * spec.dtype.itemsize
    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    stack = room[start : start + size].view(spec.dtype).reshape(capacity, *spec.shape)
    for index, part in enumerate(parts):
        stack[index] = part
    return stack


def _bytes_of(batch: Tree) -> int:
    return sum(int(np.prod(spec.shape)) * spec.dtype.itemsize for spec in jax.tree.leaves(spec_of(batch)))


def _shapes_of(batch: Tree) -> tuple:
    leaves, tree = jax.tree.flatten(spec_of(batch))
    return tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
