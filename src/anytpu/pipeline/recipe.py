"""A data set's recipe: its source and its steps, and how grain's nodes are made of them.

Idea: a pass is made anew from the recipe and its number. So each pass is shuffled in an order of its own, a stream too,
and a position needs to name no more than the pass and the place in it.

Rule: nothing is read while a recipe is written or a pass is made.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any, Literal

import grain
from absl import flags

from anytpu.pipeline.nodes import Every, Node, Passes, RowBatches, Shuffled, ShuffledWindows, row_of, stack
from anytpu.pipeline.workers import watch_parent

Tree = Any
Length = float | None
"""How many elements: a whole number, `math.inf`, or None when only a pass can tell."""
Kind = Literal["rows", "list", "sparse", "stream"]
"""What comes out: numbers of rows of arrays, elements by number, the same with gaps, or one after the other."""
Make = Callable[[int], Any]
"""Makes the node of a pass, by its number."""

MOST_SEED = 2**32
_THREADS = min(os.cpu_count() or 1, 16)
_ELEMENTS_A_THREAD = 16
_STREAM_BUFFER = 2


@dataclasses.dataclass(frozen=True)
class Source:
    """Where elements come from.

    Attributes:
        text: what it is called.
        make: makes its node.
        length: returns its length, which may mean looking through files.
        arrays: the arrays that its rows are of, or None.
    """

    text: str
    make: Callable[[], Node]
    length: Callable[[], Length]
    arrays: Tree = None


@dataclasses.dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        text: what it is called; "" is for a step that changes no element and no order.
        make: makes its node of a pass, upon those of the steps before it.
        length: the length that it leaves of one.
        kind: what comes out of it, or None: what goes in.
        computes: True if functions of the user's run in it.
        reads_ahead: True if it says how elements are made ahead.
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
        source: where elements come from.
        kind: what comes out of the steps.
        steps: in their order.
    """

    source: Source
    kind: Kind
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Recipe:
        """Return this recipe and one more step."""
        return Recipe(self.source, step.kind or self.kind, (*self.steps, step))

    def by_element(self) -> Recipe:
        """Return the recipe with the rows taken from their arrays."""
        if self.kind != "rows":
            return self
        row = functools.partial(row_of, self.source.arrays)
        return self.then(Step("", lambda before, number: before(number).map(row), kind="list"))

    @functools.cached_property
    def text(self) -> str:
        """The recipe as it was written, its numbers and seeds, without functions."""
        return ".".join(text for text in (self.source.text, *(step.text for step in self.steps)) if text)

    @functools.cached_property
    def length(self) -> Length:
        """How many elements a pass has."""
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

    def stream(self, number: int) -> grain.IterDataset:
        """Return the elements of a pass as a stream that is read ahead."""
        recipe = self.by_element()
        make: Make = lambda _: recipe.source.make()  # noqa: E731
        for step in recipe.steps:
            make = functools.partial(step.make, make)
        node = make(number)
        if isinstance(node, grain.MapDataset):
            return read_ahead(self, node)
        if any(step.reads_ahead for step in self.steps):
            return node
        return grain.experimental.ThreadPrefetchIterDataset(node, prefetch_buffer_size=_STREAM_BUFFER)


def read_ahead(recipe: Recipe, node: Any, buffer: int | None = None, threads: int | None = None) -> grain.IterDataset:
    """Return the stream of what can be indexed, with elements made ahead by threads."""
    if buffer == 0 or (buffer is threads is None and not _is_worth_threads(recipe)):
        return node.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    threads = threads or _THREADS
    buffer = buffer or max(2, threads * (1 if recipe.is_batched else _ELEMENTS_A_THREAD))
    return node.to_iter_dataset(grain.ReadOptions(num_threads=min(threads, buffer), prefetch_buffer_size=buffer))


def _is_worth_threads(recipe: Recipe) -> bool:
    # Rows of arrays are there already: threads would only wait for Python's lock.
    return recipe.source.arrays is None or any(step.computes for step in recipe.steps)


def _settle_flags() -> None:
    """Let grain read its command-line flags, which it does for workers, in a program that has none of absl's."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def shuffled(recipe: Recipe, buffer: int | None, seed: int) -> Step:
    """Return the step that shuffles: a stream `buffer` elements at a time, anything else whole."""
    if recipe.kind != "stream":
        return Step(f"shuffle(seed={seed})", lambda before, number: Shuffled(before(number), seed, number))
    return Step(
        f"shuffle({buffer}, seed={seed})",
        lambda before, number: ShuffledWindows(before(number), buffer or 1, seed, number),
    )


def repeated(recipe: Recipe, count: int | None) -> Step:
    """Return the step that lets `count` passes follow each other, or passes without end."""

    def make(before: Make, number: int) -> Node:
        first = number * (count or 0)
        return Passes(before, first, count) if recipe.kind == "stream" else before(first).repeat(count)

    text = "repeat()" if count is None else f"repeat({count})"
    return Step(text, make, lambda length: length and length * (count or math.inf))


def batched(recipe: Recipe, rows: int, drop_remainder: bool) -> Step:
    """Return the step that makes batches."""

    def make(before: Make, number: int) -> Node:
        node = before(number)
        if recipe.kind == "rows":
            return RowBatches(node, recipe.source.arrays, rows, drop_remainder)
        node = read_ahead(recipe, node) if recipe.kind == "sparse" else node
        return node.batch(rows, drop_remainder=drop_remainder, batch_fn=stack)

    def length(before: Length) -> Length:
        if before is None or before == math.inf:
            return before
        return before // rows if drop_remainder else -(-before // rows)

    text = f"batch({rows}, drop_remainder=True)" if drop_remainder else f"batch({rows})"
    return Step(text, make, length, "stream" if recipe.kind in ("sparse", "stream") else "list")


def sharded(recipe: Recipe, index: int, count: int) -> Step:
    """Return the step that keeps one element of each `count`: after a filter, of those that are left."""

    def make(before: Make, number: int) -> Node:
        node = before(number)
        if recipe.kind in ("rows", "list"):
            return node.slice(slice(index, None, count))
        return Every(read_ahead(recipe, node) if recipe.kind == "sparse" else node, index, count)

    def length(before: Length) -> Length:
        return before if before is None or before == math.inf else max(-(-(before - index) // count), 0)

    return Step(f"shard({index}, {count})", make, length, "stream" if recipe.kind == "sparse" else None)


def prefetched(recipe: Recipe, buffer: int | None, threads: int | None, workers: int) -> Step:
    """Return the step that makes elements ahead, in threads or in worker processes."""

    def make(before: Make, number: int) -> Node:
        node = before(number)
        if recipe.kind == "stream":
            size = _STREAM_BUFFER if buffer is None else buffer
            return grain.experimental.ThreadPrefetchIterDataset(node, prefetch_buffer_size=size)
        if not workers:
            return read_ahead(recipe, node, buffer, threads)
        _settle_flags()
        each = grain.MultiprocessingOptions(workers, per_worker_buffer_size=buffer or _STREAM_BUFFER)
        return read_ahead(recipe, node, 0).mp_prefetch(each, worker_init_fn=watch_parent)

    text = f"prefetch(workers={workers})" if workers else ""
    return Step(text, make, kind="stream", reads_ahead=True)
