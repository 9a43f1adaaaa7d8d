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
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import jax
import numpy as np

from anytpu.engine.backend import Backend, Loop
from anytpu.program.program import REPLICATED, ROWS, Layout, Tree, spec_of

MOST_STEPS = 1024
BUFFER_BYTES = 64 * 2**20
"""The most that a stack of batches or of predictions takes, and a data set that is given room to spare."""
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
        # Keras traces it as it is, and JAX warns of a dtype that it then narrows.
        batch = jax.tree.map(_narrow, self.example())
        # Keras takes a tuple of its own kind for one array.
        return tuple(batch) if isinstance(batch, tuple) else batch


def _narrow(leaf: Any) -> Any:
    """Return an array in the dtype that JAX would give it."""
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return leaf if dtype == leaf.dtype else leaf.astype(dtype)


class Source(abc.ABC):
    """One pass over the data."""

    @abc.abstractmethod
    def take(self, most: int) -> Group | None:
        """Return the next group, of at most `most` steps; None when the pass is over."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the pass, and the threads and processes that make its batches."""


class ResidentArrays:
    """A data set that lies on the device whole, copied there when it is first used.

    A small one is given room for the next power of two of examples, so that data sets of other lengths run in the same
    executable; no row number reaches the room that is left.

    Args:
        backend: where.
        arrays: tree of NumPy arrays with equal first axes.
    """

    def __init__(self, backend: Backend, arrays: Tree) -> None:
        self.backend = backend
        self.arrays = arrays
        leaves = jax.tree.leaves(arrays)
        is_small = sum(leaf.nbytes for leaf in leaves) <= BUFFER_BYTES
        self.room = power_of_two(len(leaves[0])) if is_small else len(leaves[0])
        self._handles: Tree = None
        self._held: Tree = None
        self._batches: dict[int, Tree] = {}

    @property
    def handles(self) -> Tree:
        """Handles of the arrays."""
        if self._handles is None:
            self._handles = self.backend.put(jax.tree.map(self._roomy, self.arrays), REPLICATED)
        return self._handles

    def stack_on_host(self, rows: np.ndarray) -> Tree:
        """Return a stack of one batch, of these rows, as arrays of the host; for a backend that computes there."""
        if self._held is None:
            self._held = jax.tree.flatten(jax.tree.map(np.asarray, self.backend.get(self.handles)))
        leaves, form = self._held
        stacks = [aligned((1, len(rows), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for leaf, stack in zip(leaves, stacks, strict=True):
            leaf.take(rows, 0, stack[0], "clip")
        return form.unflatten(stacks)

    def batch(self, rows: int) -> Tree:
        """Return the specs of a batch of so many rows; the same object each time."""
        if rows not in self._batches:
            specs = spec_of(self.arrays)
            batch = jax.tree.map(lambda spec: jax.ShapeDtypeStruct((rows, *spec.shape[1:]), spec.dtype), specs)
            self._batches[rows] = batch
        return self._batches[rows]

    def _roomy(self, array: np.ndarray) -> np.ndarray:
        """Copy an array into its room. Always a copy: what its owner writes there later is for the next fit."""
        copy = aligned((self.room, *array.shape[1:]), array.dtype)
        copy[: len(array)] = array
        copy[len(array) :] = 0
        return copy


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
        self.loop: Loop | None = None

    def take(self, most: int) -> Group | None:
        """Return the next group."""
        if self._rows is None:
            self._rows = list(self._start())
        first, self._taken = self._taken, min(self._taken + most, len(self._rows))
        return _RowGroup(self, first, self._taken - first) if self._taken > first else None

    def close(self) -> None:
        """Let go of the row numbers on the device."""
        self._chunk = (-1, None)

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
        put = self.data.backend.put_once if capacity == 1 else self.data.backend.put
        return put(numbers, _STACK)


@final
class _RowGroup(Group):
    def __init__(self, source: RowSource, first: int, steps: int) -> None:
        self._source, self._first, self.steps = source, first, steps

    def example(self) -> Tree:
        rows = self._source.rows(self._first)
        return jax.tree.map(lambda array: array[rows], self._source.data.arrays)

    def segments(self, loop_of: LoopOf) -> Iterator[Segment]:
        source, full = self._source, self._source.full_steps()
        examples = source.data.room
        step, end = self._first, self._first + self.steps
        while step < min(end, full):
            batch = source.data.batch(len(source.rows(step)))
            loop = source.loop or loop_of(batch, Loop(min(MOST_STEPS, power_of_two(full)), "rows", examples=examples))
            if loop.capacity == 1 and source.data.backend.is_host:
                # XLA's CPU compiler gathers in a loop, row by row; and all steps of the pass run in this one.
                if source.loop is None:
                    source.loop = loop = dataclasses.replace(loop, feed="batches", examples=None)
                yield Segment(batch, loop, source.data.stack_on_host(source.rows(step)), 0, 1)
                step += 1
                continue
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
        layout_of: from the specs of a batch to its tree of layouts; None splits the rows of every leaf over the cores.
    """

    def __init__(
        self,
        backend: Backend,
        batches: Iterator[Tree],
        capacity: Callable[[int], int],
        layout_of: Callable[[Tree], Tree] | None = None,
    ) -> None:
        self.backend = backend
        self.capacity = capacity
        self.layout_of = layout_of or (lambda batch: jax.tree.map(lambda _: ROWS, batch))
        self._batches = batches

    def take(self, most: int) -> Group | None:
        """Return the next group, of no more batches than a stack holds."""
        first = next(self._batches, None)
        if first is None:
            return None
        most = min(most, self.capacity(_bytes_of(first)))
        if most == 1:
            return _BatchGroup(self, [first])
        # Copies: whoever yields these may fill one buffer again and again.
        batches = itertools.chain([first], itertools.islice(self._batches, most - 1))
        return _BatchGroup(self, [jax.tree.map(np.array, batch) for batch in batches])

    def close(self) -> None:
        """Close the iterator, where it can be closed."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def put(self, stack: Tree) -> Tree:
        """Bring a stack of batches to the device, the axis of each layout being behind that of the steps."""

        def one(leaf: Any, layout: Layout) -> Any:
            return self.backend.put(leaf, Layout(None if layout.axis is None else layout.axis + 1))

        return jax.tree.map(one, stack, self.layout_of(stack))


@final
class SingleSource(Source):
    """A pass over one batch.

    Args:
        backend: where it runs.
        batch: tree of arrays with equal first axes.
    """

    def __init__(self, backend: Backend, batch: Tree) -> None:
        self._groups = [one_batch(backend, batch)]

    def take(self, most: int) -> Group | None:
        """Return the batch, once."""
        return self._groups.pop() if self._groups else None

    def close(self) -> None:
        """Forget the batch."""
        self._groups.clear()


def one_batch(backend: Backend, batch: Tree) -> Group:
    """Return a group of one step.

    Args:
        backend: where it runs.
        batch: tree of arrays with equal first axes.
    """
    return _OneBatch(backend, batch)


@final
class _OneBatch(Group):
    steps = 1

    def __init__(self, backend: Backend, batch: Tree) -> None:
        self._backend, self._batch = backend, batch

    def example(self) -> Tree:
        return self._batch

    def segments(self, loop_of: LoopOf) -> Iterator[Segment]:
        specs = spec_of(self._batch)
        stack = jax.tree.map(functools.partial(_stacked, 1), specs, self._batch)
        yield Segment(specs, loop_of(specs, Loop(1, "batches")), self._backend.put_once(stack, _STACK), 0, 1)


@final
class _BatchGroup(Group):
    def __init__(self, source: BatchSource, batches: list[Tree]) -> None:
        self._source, self._batches, self.steps = source, batches, len(batches)

    def example(self) -> Tree:
        return self._batches[0]

    def segments(self, loop_of: LoopOf) -> Iterator[Segment]:
        for _, run in itertools.groupby(self._batches, key=shapes_of):
            batches = list(run)
            specs = spec_of(batches[0])
            loop = loop_of(specs, Loop(self._source.capacity(_bytes_of(batches[0])), "batches"))
            for first in range(0, len(batches), loop.capacity):
                part = batches[first : first + loop.capacity]
                stacked = jax.tree.map(functools.partial(_stacked, loop.capacity), specs, *part)
                yield Segment(specs, loop, self._source.put(stacked), 0, len(part))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less.

    Example:
        >>> [power_of_two(number) for number in (1, 5, 64)]
        [1, 8, 64]
    """
    return 1 << (number - 1).bit_length()


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array that starts on a cache line, so that a CPU device can use it where it is."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(dtype).reshape(shape)


def _stacked(capacity: int, spec: jax.ShapeDtypeStruct, *parts: Any) -> np.ndarray:
    """Stack arrays in a buffer of fixed capacity."""
    stack = aligned((capacity, *spec.shape), spec.dtype)
    for index, part in enumerate(parts):
        stack[index] = part
    return stack


def _bytes_of(batch: Tree) -> int:
    return sum(int(np.prod(spec.shape)) * spec.dtype.itemsize for spec in jax.tree.leaves(spec_of(batch)))


def shapes_of(batch: Tree) -> tuple:
    """Return what tells batches apart: their structure, shapes and dtypes."""
    leaves, tree = jax.tree.flatten(spec_of(batch))
    return tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
