"""A data set's recipe: its source and steps, and their translation to grain nodes.

Idea: each pass is built from the recipe and the index of the pass. So each pass has its own shuffle order, streams
included, and a position consists of the pass and the offset in it.

Rule: nothing is read while a recipe is written or a pass is built.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any, Literal

import grain
from absl import flags

from anytpu.pipeline.nodes import (
    Node,
    RepeatedPasses,
    RowBatches,
    Shuffled,
    ShuffledWindows,
    StridedShard,
    row_of,
    stack,
)

Tree = Any
Length = float | None
"""Number of elements: an integer, `math.inf`, or None if known only after a pass."""
Kind = Literal["rows", "list", "sparse", "stream"]
"""Output of a step: row indices of arrays, elements by index, elements by index with gaps, or elements in order."""
Make = Callable[[int], Any]
"""Builds the node of a pass from the index of the pass."""

SEED_LIMIT = 2**32
"""Upper limit of seeds, exclusive: grain's."""
_THREADS = min(os.cpu_count() or 1, 16)
_ELEMENTS_PER_THREAD = 16
_STREAM_BUFFER = 2


@dataclasses.dataclass(frozen=True)
class ElementSource:
    """The source of a data set's elements.

    Attributes:
        text: its call, as the data set's `repr` shows it.
        make: builds its node.
        length: returns its number of elements, possibly by a scan of files.
        arrays: the arrays whose rows are the elements, or None.
    """

    text: str
    make: Callable[[], Node]
    length: Callable[[], Length]
    arrays: Tree = None


@dataclasses.dataclass(frozen=True)
class DatasetStep:
    """A step of a data set.

    Attributes:
        text: its call, as the data set's `repr` shows it; "" for a step that changes neither elements nor order.
        make: builds its node of a pass from the builder of the steps before it and the index of the pass.
        length: maps the number of elements before the step to the number after it.
        kind: kind of its output; None: that of its input.
        computes: whether it runs functions of the user.
        reads_ahead: whether it configures prefetching.
    """

    text: str
    make: Callable[[Make, int], Any]
    length: Callable[[Length], Length] = lambda length: length
    kind: Kind | None = None
    computes: bool = False
    reads_ahead: bool = False


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A source and steps.

    Attributes:
        source: the source of the elements.
        kind: kind of the last step's output.
        steps: the steps, in order.
    """

    source: ElementSource
    kind: Kind
    steps: tuple[DatasetStep, ...] = ()

    def then(self, step: DatasetStep) -> Recipe:
        """Return this recipe with a step appended."""
        return Recipe(self.source, step.kind or self.kind, (*self.steps, step))

    def by_element(self) -> Recipe:
        """Return the recipe with row indices replaced by the rows themselves."""
        if self.kind != "rows":
            return self
        row = functools.partial(row_of, self.source.arrays)
        return self.then(DatasetStep("", lambda before, pass_index: before(pass_index).map(row), kind="list"))

    @functools.cached_property
    def text(self) -> str:
        """The calls of the recipe with their integers and seeds, without functions."""
        return ".".join(text for text in (self.source.text, *(step.text for step in self.steps)) if text)

    @functools.cached_property
    def length(self) -> Length:
        """Number of elements in a pass."""
        length = self.source.length()
        for step in self.steps:
            length = step.length(length)
        return length

    @property
    def is_endless(self) -> bool:
        """True after `repeat()`."""
        return any(step.text == "repeat()" for step in self.steps)

    @property
    def is_batched(self) -> bool:
        """True after `batch`."""
        return any(step.text.startswith("batch(") for step in self.steps)

    def stream(self, pass_index: int) -> grain.IterDataset:
        """Return the elements of a pass as a stream with prefetching."""
        recipe = self.by_element()
        make: Make = lambda _: recipe.source.make()  # noqa: E731
        for step in recipe.steps:
            make = functools.partial(step.make, make)
        node = make(pass_index)
        if isinstance(node, grain.MapDataset):
            return read_ahead(self, node)
        if any(step.reads_ahead for step in self.steps):
            return node
        return grain.experimental.ThreadPrefetchIterDataset(node, prefetch_buffer_size=_STREAM_BUFFER)


def read_ahead(recipe: Recipe, node: Any, buffer: int | None = None, threads: int | None = None) -> grain.IterDataset:
    """Convert a node that can be indexed to a stream whose elements threads compute ahead."""
    if buffer == 0 or (buffer is threads is None and not _is_worth_threads(recipe)):
        return node.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    threads = threads or _THREADS
    buffer = buffer or max(2, threads * (1 if recipe.is_batched else _ELEMENTS_PER_THREAD))
    return node.to_iter_dataset(grain.ReadOptions(num_threads=min(threads, buffer), prefetch_buffer_size=buffer))


def _is_worth_threads(recipe: Recipe) -> bool:
    # Rows of arrays are in memory already: threads would only wait for Python's global lock.
    return recipe.source.arrays is None or any(step.computes for step in recipe.steps)


def _mark_flags_parsed() -> None:
    """Mark absl's flags as parsed: grain reads flags to start workers, and most programs do not use absl."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def shuffled(recipe: Recipe, buffer: int | None, seed: int) -> DatasetStep:
    """Return the step that shuffles: a stream in windows of `buffer` elements, anything else as a whole."""
    if recipe.kind != "stream":
        return DatasetStep(
            f"shuffle(seed={seed})", lambda before, pass_index: Shuffled(before(pass_index), seed, pass_index)
        )
    return DatasetStep(
        f"shuffle({buffer}, seed={seed})",
        lambda before, pass_index: ShuffledWindows(before(pass_index), buffer or 1, seed, pass_index),
    )


def repeated(recipe: Recipe, count: int | None) -> DatasetStep:
    """Return the step that concatenates `count` passes; None: endless."""

    def make(before: Make, pass_index: int) -> Node:
        first = pass_index * (count or 0)
        return RepeatedPasses(before, first, count) if recipe.kind == "stream" else before(first).repeat(count)

    text = "repeat()" if count is None else f"repeat({count})"
    return DatasetStep(text, make, lambda length: length and length * (count or math.inf))


def batched(recipe: Recipe, rows: int, drop_remainder: bool) -> DatasetStep:
    """Return the step that makes batches."""

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        if recipe.kind == "rows":
            return RowBatches(node, recipe.source.arrays, rows, drop_remainder)
        node = read_ahead(recipe, node) if recipe.kind == "sparse" else node
        return node.batch(rows, drop_remainder=drop_remainder, batch_fn=stack)

    def length(before: Length) -> Length:
        if before is None or before == math.inf:
            return before
        return before // rows if drop_remainder else -(-before // rows)

    text = f"batch({rows}, drop_remainder=True)" if drop_remainder else f"batch({rows})"
    return DatasetStep(text, make, length, "stream" if recipe.kind in ("sparse", "stream") else "list")


def sharded(recipe: Recipe, index: int, count: int) -> DatasetStep:
    """Return the step that keeps one of every `count` elements; after a filter, of the remaining elements."""

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        if recipe.kind in ("rows", "list"):
            return node.slice(slice(index, None, count))
        return StridedShard(read_ahead(recipe, node) if recipe.kind == "sparse" else node, index, count)

    def length(before: Length) -> Length:
        return before if before is None or before == math.inf else max(-(-(before - index) // count), 0)

    return DatasetStep(f"shard({index}, {count})", make, length, "stream" if recipe.kind == "sparse" else None)


def prefetched(recipe: Recipe, buffer: int | None, threads: int | None, workers: int) -> DatasetStep:
    """Return the step that computes elements ahead, in threads or in worker processes."""

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        if recipe.kind == "stream":
            size = _STREAM_BUFFER if buffer is None else buffer
            return grain.experimental.ThreadPrefetchIterDataset(node, prefetch_buffer_size=size)
        if not workers:
            return read_ahead(recipe, node, buffer, threads)
        _mark_flags_parsed()
        options = grain.MultiprocessingOptions(workers, per_worker_buffer_size=buffer or _STREAM_BUFFER)
        return read_ahead(recipe, node, 0).mp_prefetch(options, worker_init_fn=watch_parent)

    text = f"prefetch(workers={workers})" if workers else ""
    return DatasetStep(text, make, kind="stream", reads_ahead=True)


def watch_parent(index: int, count: int) -> None:
    """Start a thread that ends this worker process as soon as its parent has ended for any reason.

    A killed process (kill -9, out of memory) cannot notify its workers, which would keep memory and files for ever.

    Args:
        index: index of this worker; grain passes it.
        count: number of workers.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), name=f"worker {index} of {count}", daemon=True).start()


def _leave_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
