"""Feeds: the transfer of batches to the device, as row indices of resident arrays or as stacked batches.

Idea: arrays that fit are uploaded once. Each step gathers its rows on the device, so an epoch transfers only a few
kilobytes of row indices. Generators, data loaders and data sets larger than memory are stacked on the host. A stack
holds as many batches as fit in 64 MiB, and is made while the device runs the previous call.

A pass over the data has three levels.

1. A `FeedSource` is one pass. `take` returns groups until the pass is over.
2. A `StepGroup` is the input of one call of Keras's train function: the batches of up to `max_steps` steps.
3. A `FeedSegment` is a run of consecutive steps on batches of one shape: the input of one call of one executable.

Rule: a group creates its segments lazily, during that call, so that nothing is transferred early. Keras builds an
unbuilt model from one real batch of a group (`next(group)`).
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
from anytpu.engine.shards import feed_layouts
from anytpu.program.program import ROWS, Layout, Tree, spec_of

MAX_STEPS = 1024
"""Maximum number of steps in one feed."""

BUFFER_BYTES = 64 * 2**20
"""Maximum bytes of a stack of batches or predictions, and of a data set that is padded to a power of two of rows."""

LayoutOf = Callable[[Tree], Tree]
"""Returns the layouts of a batch, `layout_of(specs)`: a tree of `Layout`."""

LoopOf = Callable[[Tree, Loop], Loop]
"""Completes a loop for batches of these specs: `loop_of(specs, loop)` sets its guard, and may lower its capacity."""


def split_rows(batch: Tree) -> Tree:
    """Return the layouts of a batch whose rows are split over all cores."""
    return jax.tree.map(lambda _: ROWS, batch)


@dataclasses.dataclass(frozen=True)
class FeedSegment:
    """Consecutive steps on batches of one shape.

    Attributes:
        batch: specs of one batch.
        loop: form of the loop that runs the steps.
        feed: handles of the feed; see `Executable.steps`.
        start: index of the first step in the feed, from 0.
        count: number of steps.
    """

    batch: Tree
    loop: Loop
    feed: Tree
    start: int
    count: int


class StepGroup(abc.ABC):
    """The steps of one call of Keras's train, test or predict function.

    Attributes:
        steps: number of steps.
    """

    steps: int

    @abc.abstractmethod
    def segments(self, loop_of: LoopOf) -> Iterator[FeedSegment]:
        """Transfer the steps to the device, one segment at a time."""

    @abc.abstractmethod
    def example(self) -> Tree:
        """Return the first batch, on the host."""

    def __iter__(self) -> Iterator[Tree]:
        return self

    def __next__(self) -> Tree:
        # Keras traces the batch unchanged, and JAX warns when it narrows a dtype itself.
        batch = jax.tree.map(_narrow, self.example())
        # Keras treats a subclass of tuple as one array.
        return tuple(batch) if isinstance(batch, tuple) else batch


def _narrow(leaf: Any) -> Any:
    """Cast an array to JAX's canonical dtype, such as float32 for float64."""
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return leaf if dtype == leaf.dtype else leaf.astype(dtype)


class FeedSource(abc.ABC):
    """One pass over the data."""

    @abc.abstractmethod
    def take(self, max_steps: int) -> StepGroup | None:
        """Return the next group, of at most `max_steps` steps; None when the pass is over."""

    @abc.abstractmethod
    def skip(self, steps: int) -> None:
        """Skip the first steps of a pass that has not begun."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the pass, and stop the threads and processes that produce its batches."""


class ResidentArrays:
    """A data set that is on the device as a whole, copied there at its first use.

    A small data set is padded to the next power of two of rows. So data sets of different lengths run in the same
    executable. No row index points into the padding.

    Args:
        backend: backend that holds the arrays.
        arrays: tree of NumPy arrays with equal first axes.
        layout_of: layouts of a batch of their rows.

    Attributes:
        row_capacity: number of rows on the device, with the padding.
    """

    def __init__(self, backend: Backend, arrays: Tree, layout_of: LayoutOf = split_rows) -> None:
        self.backend = backend
        self.arrays = arrays
        self._layout_of = layout_of
        leaves = jax.tree.leaves(arrays)
        is_small = sum(leaf.nbytes for leaf in leaves) <= BUFFER_BYTES
        self.row_capacity = power_of_two(len(leaves[0])) if is_small else len(leaves[0])
        self._handles: Tree = None
        self._host_leaves: Tree = None
        self._batches: dict[int, Tree] = {}

    def handles(self, rows: int) -> Tree:
        """Return the handles of the padded arrays, for batches of this number of rows."""
        if self._handles is None:
            layouts, _ = self._layouts(rows)
            self._handles = jax.tree.map(self.backend.put, jax.tree.map(self._padded_copy, self.arrays), layouts)
        return self._handles

    def put_indices(self, indices: np.ndarray, once: bool = True) -> Any:
        """Put the row indices of some steps, `(steps, rows)`, for one call or for many, and return their handle."""
        put = self.backend.put_once if once else self.backend.put
        return put(indices, self._layouts(indices.shape[1])[1])

    def stack_on_host(self, rows: np.ndarray) -> Tree:
        """Gather these rows on the host into a stack of one batch, `(1, rows, ...)`; for a backend with `is_host`."""
        if self._host_leaves is None:
            self._host_leaves = jax.tree.flatten(jax.tree.map(np.asarray, self.backend.get(self.handles(len(rows)))))
        leaves, form = self._host_leaves
        stacks = [empty_aligned((1, len(rows), *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for leaf, stack in zip(leaves, stacks, strict=True):
            leaf.take(rows, 0, stack[0], "clip")
        return form.unflatten(stacks)

    def batch(self, rows: int) -> Tree:
        """Return the specs of a batch with this number of rows; equal calls return the same object."""
        if rows not in self._batches:
            specs = spec_of(self.arrays)
            batch = jax.tree.map(lambda spec: jax.ShapeDtypeStruct((rows, *spec.shape[1:]), spec.dtype), specs)
            self._batches[rows] = batch
        return self._batches[rows]

    def _layouts(self, rows: int) -> Tree:
        return feed_layouts(self._layout_of(self.batch(rows)), Loop(1, "rows"))

    def _padded_copy(self, array: np.ndarray) -> np.ndarray:
        """Return a copy padded with zero rows. Never a view: later writes of the owner belong to the next fit."""
        copy = empty_aligned((self.row_capacity, *array.shape[1:]), array.dtype)
        copy[: len(array)] = array
        copy[len(array) :] = 0
        return copy


@final
class RowSource(FeedSource):
    """A pass over resident arrays, as the row indices of each batch.

    The row indices of full batches are transferred in chunks of `capacity` batches, and a chunk serves several calls.
    Its first call takes it along, and is mostly its only one. It is transferred for the second while the first runs.

    Args:
        data: the resident arrays.
        batch_rows: starts the pass; returns an iterable of one array of row indices per batch, all of equal length but
            the last.

    Attributes:
        loop: form of the loop of a pass that gathers on the host, set by its first segment; None for a pass that
            gathers on the device.
    """

    def __init__(self, data: ResidentArrays, batch_rows: Callable[[], Iterable[np.ndarray]]) -> None:
        self.data = data
        self._batch_rows = batch_rows
        self._rows: list[np.ndarray] | None = None
        self._taken = 0
        self._chunk: tuple[int, Any] = (-1, None)
        self.loop: Loop | None = None

    def take(self, max_steps: int) -> StepGroup | None:
        """Return the next group, of at most `max_steps` steps; None when the pass is over."""
        if self._rows is None:
            self._rows = list(self._batch_rows())
        first, self._taken = self._taken, min(self._taken + max_steps, len(self._rows))
        return _RowGroup(self, first, self._taken - first) if self._taken > first else None

    def skip(self, steps: int) -> None:
        """Skip the first steps: the order of the rows is drawn, and nothing is transferred."""
        self._rows = list(self._batch_rows())
        self._taken = min(steps, len(self._rows))

    def close(self) -> None:
        """Release the row indices on the device."""
        self._chunk = (-1, None)

    def rows(self, step: int) -> np.ndarray:
        """Return the row indices of a step, `(rows,)`."""
        assert self._rows is not None
        return self._rows[step]

    def full_steps(self) -> int:
        """Return the number of full batches in the pass."""
        assert self._rows is not None
        return len(self._rows) - (len(self._rows[-1]) != len(self._rows[0]))

    def chunk(self, index: int, capacity: int) -> Any:
        """Return the handle of the row indices of the full batches from `index * capacity` on, `(capacity, rows)`."""
        if self._chunk[0] != index:
            assert self._rows is not None
            end = min((index + 1) * capacity, self.full_steps())
            self._chunk = (index, self._put(self._rows[index * capacity : end], capacity))
        elif isinstance(self._chunk[1], np.ndarray):
            self._chunk = (index, self.data.put_indices(self._chunk[1], once=False))
        return self._chunk[1]

    def single(self, step: int) -> Any:
        """Return the handle of the row indices of one step, `(1, rows)`."""
        return self._put([self.rows(step)], 1)

    def _put(self, rows: list[np.ndarray], capacity: int) -> Any:
        # A chunk always has the executable's shape. The call's step count ends before the unused entries.
        indices = np.zeros((capacity, len(rows[0])), np.int32)
        indices[: len(rows)] = rows
        return self.data.put_indices(indices)


@final
class _RowGroup(StepGroup):
    def __init__(self, source: RowSource, first: int, steps: int) -> None:
        self._source, self._first, self.steps = source, first, steps

    def example(self) -> Tree:
        rows = self._source.rows(self._first)
        return jax.tree.map(lambda array: array[rows], self._source.data.arrays)

    def segments(self, loop_of: LoopOf) -> Iterator[FeedSegment]:
        source, full = self._source, self._source.full_steps()
        examples = source.data.row_capacity
        step, end = self._first, self._first + self.steps
        # 1. Full batches. Loop capacity depends on the pass and not on the group, so all groups use one executable.
        while step < min(end, full):
            batch = source.data.batch(len(source.rows(step)))
            loop = source.loop or loop_of(batch, Loop(min(MAX_STEPS, power_of_two(full)), "rows", examples=examples))
            # 1a. One step per call on the host: gather here, because XLA:CPU gathers row by row in a loop.
            if loop.capacity == 1 and source.data.backend.is_host:
                # Every later step of the pass uses this loop.
                if source.loop is None:
                    source.loop = loop = dataclasses.replace(loop, feed="batches", examples=None)
                yield FeedSegment(batch, loop, source.data.stack_on_host(source.rows(step)), 0, 1)
                step += 1
                continue
            # 1b. Otherwise gather on the device. A segment ends at a chunk boundary, so it reads one chunk.
            index, start = divmod(step, loop.capacity)
            count = min(end, full, (index + 1) * loop.capacity) - step
            handles = source.data.handles(len(source.rows(step)))
            yield FeedSegment(batch, loop, (handles, source.chunk(index, loop.capacity)), start, count)
            step += count
        # 2. The shorter last batch has another shape, so it is a loop of one step.
        if step < end:
            batch = source.data.batch(len(source.rows(step)))
            loop = loop_of(batch, Loop(1, "rows", examples=examples))
            handles = source.data.handles(len(source.rows(step)))
            yield FeedSegment(batch, loop, (handles, source.single(step)), 0, 1)


@final
class BatchSource(FeedSource):
    """A pass over an iterator of batches on the host.

    Args:
        backend: backend that runs the steps.
        batches: iterator over trees of arrays.
        capacity: function from the bytes of one batch to the number of steps in one stack.
        layout_of: layouts of a batch.
    """

    def __init__(
        self,
        backend: Backend,
        batches: Iterator[Tree],
        capacity: Callable[[int], int],
        layout_of: LayoutOf = split_rows,
    ) -> None:
        self.backend = backend
        self.capacity = capacity
        self._layout_of = layout_of
        self._batches = batches

    def take(self, max_steps: int) -> StepGroup | None:
        """Return the next group, of at most `max_steps` steps and one stack; None when the pass is over."""
        first = next(self._batches, None)
        if first is None:
            return None
        max_steps = min(max_steps, self.capacity(_bytes_of(first)))
        if max_steps == 1:
            return _BatchGroup(self, [first])
        # Copies, because the iterator may reuse one buffer for every batch.
        batches = itertools.chain([first], itertools.islice(self._batches, max_steps - 1))
        return _BatchGroup(self, [jax.tree.map(np.array, batch) for batch in batches])

    def skip(self, steps: int) -> None:
        """Take the first batches, and drop them."""
        for _ in itertools.islice(self._batches, steps):
            pass

    def close(self) -> None:
        """Close the iterator if it has a `close` method."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def put(self, batch: Tree, stack: Tree) -> Tree:
        """Transfer a stack of batches.

        Args:
            batch: specs of one batch.
            stack: the batches, `(steps, rows, ...)`.
        """
        return _put_stack(self.backend.put, self._layout_of(batch), stack)


@final
class SingleSource(FeedSource):
    """A pass over one batch.

    Args:
        backend: backend that runs the step.
        batch: tree of arrays with equal first axes.
        layout_of: layouts of the batch.
    """

    def __init__(self, backend: Backend, batch: Tree, layout_of: LayoutOf = split_rows) -> None:
        self._groups = [one_batch(backend, batch, layout_of)]

    def take(self, max_steps: int) -> StepGroup | None:
        """Return the batch at the first call; None afterwards."""
        return self._groups.pop() if self._groups else None

    def skip(self, steps: int) -> None:
        """Drop the batch if it is skipped."""
        if steps:
            self._groups.clear()

    def close(self) -> None:
        """Release the batch."""
        self._groups.clear()


def one_batch(backend: Backend, batch: Tree, layout_of: LayoutOf = split_rows) -> StepGroup:
    """Return a group of one step.

    Args:
        backend: backend that runs the step.
        batch: tree of arrays with equal first axes.
        layout_of: layouts of the batch.
    """
    return _OneBatch(backend, batch, layout_of)


@final
class _OneBatch(StepGroup):
    steps = 1

    def __init__(self, backend: Backend, batch: Tree, layout_of: LayoutOf) -> None:
        self._backend, self._batch, self._layout_of = backend, batch, layout_of

    def example(self) -> Tree:
        return self._batch

    def segments(self, loop_of: LoopOf) -> Iterator[FeedSegment]:
        specs = spec_of(self._batch)
        stack = jax.tree.map(functools.partial(_stack, 1), specs, self._batch)
        loop = loop_of(specs, Loop(1, "batches"))
        yield FeedSegment(specs, loop, _put_stack(self._backend.put_once, self._layout_of(specs), stack), 0, 1)


@final
class _BatchGroup(StepGroup):
    def __init__(self, source: BatchSource, batches: list[Tree]) -> None:
        self._source, self._batches, self.steps = source, batches, len(batches)

    def example(self) -> Tree:
        return self._batches[0]

    def segments(self, loop_of: LoopOf) -> Iterator[FeedSegment]:
        # 1. Consecutive batches of one shape form a run.
        for _, run in itertools.groupby(self._batches, key=shapes_of):
            batches = list(run)
            specs = spec_of(batches[0])
            loop = loop_of(specs, Loop(self._source.capacity(_bytes_of(batches[0])), "batches"))
            # 2. Each stack has room for the whole capacity, so that a shorter run uses the same executable.
            for first in range(0, len(batches), loop.capacity):
                part = batches[first : first + loop.capacity]
                stack = jax.tree.map(functools.partial(_stack, loop.capacity), specs, *part)
                yield FeedSegment(specs, loop, self._source.put(specs, stack), 0, len(part))


def _put_stack(put: Callable[[Tree, Layout], Tree], layouts: Tree, stack: Tree) -> Tree:
    """Put a stack of batches with the layouts of one batch."""
    return jax.tree.map(lambda layout, leaf: put(leaf, layout.stacked()), layouts, stack)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`.

    Example:
        >>> [power_of_two(number) for number in (1, 5, 64)]
        [1, 8, 64]
    """
    return 1 << (number - 1).bit_length()


def empty_aligned(shape: tuple[int, ...], dtype: Any, make: Callable[..., np.ndarray] = np.empty) -> np.ndarray:
    """Return a new array aligned to 64 bytes, a cache line, so that a CPU device can use it in place.

    Args:
        shape: shape of the array.
        dtype: dtype of the array.
        make: `np.empty` or `np.zeros`.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = make(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def _stack(capacity: int, spec: jax.ShapeDtypeStruct, *arrays: Any) -> np.ndarray:
    """Stack arrays in a buffer of `capacity` entries; entries past the arrays are zeros."""
    # Zeros are new pages, which cost time only where they are written, and no transfer to a worker.
    stack = empty_aligned((capacity, *spec.shape), spec.dtype, np.empty if len(arrays) == capacity else np.zeros)
    for index, array in enumerate(arrays):
        stack[index] = array
    return stack


def _bytes_of(batch: Tree) -> int:
    return sum(int(np.prod(spec.shape)) * spec.dtype.itemsize for spec in jax.tree.leaves(spec_of(batch)))


def shapes_of(batch: Tree) -> tuple:
    """Return the structure, shapes and dtypes of a batch, as a key to compare and hash."""
    leaves, tree = jax.tree.flatten(spec_of(batch))
    return tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
