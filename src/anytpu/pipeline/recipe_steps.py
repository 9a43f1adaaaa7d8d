"""The steps of a data set: each function returns a recipe with one more step.

Idea: a step keeps the index of the elements where it can, so that threads compute them in any order and a position is
one integer. Otherwise it makes a stream. grain's nodes are used where grain has them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import grain
import numpy as np
from absl import flags

from anytpu.pipeline.caches import FileCache, MemoryCache
from anytpu.pipeline.columns import stack, unstack
from anytpu.pipeline.nodes import Cached, Node, RowBatches, Shuffled, unshared
from anytpu.pipeline.recipe import (
    SEED_LIMIT,
    STREAM_BUFFER,
    DatasetStep,
    ElementSource,
    Length,
    Make,
    Recipe,
    read_ahead,
    watch_parent,
)
from anytpu.pipeline.streams import CachedStream, Chained, Interleaved, ShuffledWindows, Strided

Tree = Any


def mapped(recipe: Recipe, function: Callable[[Tree], Tree]) -> Recipe:
    """Apply a function to each element."""
    step = DatasetStep("map()", lambda before, pass_index: before(pass_index).map(function), computes=True)
    return recipe.by_element().then(step)


def randomly_mapped(recipe: Recipe, function: Callable[[Tree, np.random.Generator], Tree], seed: int) -> Recipe:
    """Apply a function to each element and a generator of random numbers."""

    def make(before: Make, pass_index: int) -> Node:
        return before(pass_index).random_map(function, seed=(seed + pass_index) % SEED_LIMIT)

    return recipe.by_element().then(DatasetStep(f"random_map(seed={seed})", make, computes=True))


def filtered(recipe: Recipe, predicate: Callable[[Tree], bool]) -> Recipe:
    """Keep the elements for which a predicate returns True."""
    step = DatasetStep(
        "filter()",
        lambda before, pass_index: before(pass_index).filter(predicate),
        _unless_finite,
        "stream" if recipe.kind == "stream" else "sparse",
        computes=True,
    )
    return recipe.by_element().then(step)


def shuffled(recipe: Recipe, buffer: int | None, seed: int, *, is_fixed: bool) -> Recipe:
    """Shuffle a stream or endless elements in windows of `buffer` elements, anything else as a whole.

    Args:
        recipe: the recipe.
        buffer: size of the windows.
        seed: seed of the orders.
        is_fixed: whether every pass has the order of the first.
    """

    def make(before: Make, pass_index: int) -> Node:
        node, order = before(pass_index), 0 if is_fixed else pass_index
        if recipe.kind == "stream":
            return ShuffledWindows(node, buffer or 1, seed, order)
        if recipe.is_endless:
            return Shuffled(node, buffer or 1, (seed, order), 0)
        return Shuffled(node, len(node), (seed,), order, is_fixed=is_fixed)

    is_whole = recipe.kind != "stream" and not recipe.is_endless
    arguments = f"seed={seed}" if is_whole else f"{buffer}, seed={seed}"
    fixed = ", reshuffle_each_iteration=False" if is_fixed else ""
    return recipe.then(DatasetStep(f"shuffle({arguments}{fixed})", make))


def repeated(recipe: Recipe, count: int | None) -> Recipe:
    """Concatenate `count` passes; None: endless."""

    def make(before: Make, pass_index: int) -> Node:
        first = pass_index * (count or 0)
        if recipe.kind == "stream":
            return Chained(lambda completed: before(first + completed), count)
        return before(first).repeat(count)

    text = "repeat()" if count is None else f"repeat({count})"
    step = DatasetStep(
        text, make, lambda length: length and length * (count or math.inf), is_endless=True if count is None else None
    )
    return recipe.then(step)


def taken(recipe: Recipe, count: int) -> Recipe:
    """Keep the first `count` elements."""

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        if isinstance(node, grain.MapDataset):
            return node.slice(slice(0, count))
        return grain.experimental.LimitIterDataset(node, count) if count else Chained(lambda _: node, 0)

    def length(before: Length) -> Length:
        return None if before is None and count else min(before or 0, count)

    step = DatasetStep(f"take({count})", make, length, is_endless=False)
    return (recipe if recipe.has_index else recipe.in_order()).then(step)


def skipped(recipe: Recipe, count: int) -> Recipe:
    """Leave out the first `count` elements."""

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        return node.slice(slice(count, None)) if isinstance(node, grain.MapDataset) else Strided(node, count)

    step = DatasetStep(f"skip({count})", make, lambda length: None if length is None else max(length - count, 0))
    return (recipe if recipe.has_index else recipe.in_order()).then(step)


def enumerated(recipe: Recipe, start: int) -> Recipe:
    """Make pairs of the index of an element in its pass and the element."""

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        count = len(node) if isinstance(node, grain.MapDataset) else None
        return node.map_with_index(functools.partial(_with_index, start, count))

    recipe = recipe.by_element() if recipe.kind in ("rows", "list") else recipe.in_order()
    return recipe.then(DatasetStep("enumerate()" if not start else f"enumerate({start})", make))


def _with_index(start: int, count: int | None, index: int, element: Tree) -> tuple[np.int64, Tree]:
    # An index beyond the end belongs to a following pass.
    return np.int64(start + (index % count if count else index)), element


def batched(
    recipe: Recipe, rows: int, drop_remainder: bool, name: str = "batch", stack_rows: Callable[..., Tree] = stack
) -> Recipe:
    """Make batches.

    Args:
        recipe: the recipe.
        rows: number of elements in a batch.
        drop_remainder: leave out a last batch that is not full.
        name: name of the step.
        stack_rows: makes a batch of elements.
    """

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        if recipe.kind == "rows":
            return RowBatches(node, recipe.source.arrays, rows, drop_remainder)
        return node.batch(rows, drop_remainder=drop_remainder, batch_fn=stack_rows)

    def length(before: Length) -> Length:
        if before is None or before == math.inf:
            return before
        return before // rows if drop_remainder else -(-before // rows)

    text = f"{name}({rows}, drop_remainder=True)" if drop_remainder else f"{name}({rows})"
    if recipe.kind == "rows" and name != "batch":
        recipe = recipe.by_element()
    recipe = recipe.in_order() if recipe.kind == "sparse" else recipe
    return recipe.then(DatasetStep(text, make, length, "list" if recipe.kind == "rows" else None, is_batched=True))


class _UnstackedRows(grain.experimental.FlatMapTransform):
    max_fan_out = 2**62

    def flat_map(self, element: Tree) -> list[Tree]:
        return unstack(element)


def unbatched(recipe: Recipe) -> Recipe:
    """Make the rows of batches elements."""
    step = DatasetStep(
        "unbatch()",
        lambda before, pass_index: grain.experimental.FlatMapIterDataset(before(pass_index), _UnstackedRows()),
        _unless_finite,
        is_batched=False,
    )
    return recipe.in_order().then(step)


def sharded(recipe: Recipe, index: int, count: int) -> Recipe:
    """Keep one of every `count` elements; after a filter, of the remaining elements."""

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        if isinstance(node, grain.MapDataset):
            return node.slice(slice(index, None, count))
        return Strided(node, index, count)

    def length(before: Length) -> Length:
        return before if before is None or before == math.inf else max(-(-(before - index) // count), 0)

    recipe = recipe.in_order() if recipe.kind == "sparse" else recipe
    return recipe.then(DatasetStep(f"shard({index}, {count})", make, length))


def concatenated(recipe: Recipe, other: Recipe) -> Recipe:
    """Append the elements of another recipe."""
    has_index = recipe.has_index and other.has_index
    recipe, other = [part.by_element() if has_index else part.in_order() for part in (recipe, other)]

    def make(before: Make, pass_index: int) -> Node:
        if has_index:
            return grain.MapDataset.concatenate([before(pass_index), other.node(pass_index)])
        return Chained(lambda index: (before, other.node)[index](pass_index), 2)

    def length(before: Length) -> Length:
        return None if before is None or other.length is None else before + other.length

    step = DatasetStep(
        f"concatenate({other.text})",
        make,
        length,
        computes=other.computes,
        is_endless=recipe.is_endless or other.is_endless,
        is_batched=recipe.is_batched if recipe.is_batched == other.is_batched else None,
    )
    return recipe.then(step)


def interleaved(
    recipe: Recipe, open_recipe: Callable[[Tree], Recipe], cycle_length: int, block_length: int, text: str
) -> Recipe:
    """Make a data set of each element, and take their elements in turns."""

    def make(before: Make, pass_index: int) -> Node:
        def open_stream(element: Tree) -> grain.IterDataset:
            return open_recipe(element).stream(pass_index)

        return Interleaved(before(pass_index), open_stream, cycle_length, block_length)

    return recipe.in_order().then(DatasetStep(text, make, _unless_finite, computes=True))


def cached(recipe: Recipe, path: str | None) -> Recipe:
    """Store the elements of the first pass, in memory or in a file."""
    has_index = path is None and recipe.kind != "stream"
    recipe = recipe if has_index else recipe.in_order()
    computed: dict[int, Tree] = {}
    store = MemoryCache() if path is None else FileCache(path, recipe.text)

    def make(before: Make, pass_index: int) -> Node:
        return Cached(before(0), computed) if has_index else CachedStream(before(0), store)

    text = "cache()" if path is None else "cache(file)"
    return recipe.then(DatasetStep(text, make, computes=path is not None))


def prefetched(recipe: Recipe, buffer: int | None, threads: int | None, workers: int) -> Recipe:
    """Compute elements ahead, in threads or in worker processes."""
    recipe = recipe.by_element()

    def make(before: Make, pass_index: int) -> Node:
        node = before(pass_index)
        if recipe.kind == "stream":
            size = STREAM_BUFFER if buffer is None else buffer
            if not size:
                return node
            return grain.experimental.ThreadPrefetchIterDataset(node, prefetch_buffer_size=size)
        if not workers:
            return read_ahead(recipe, node, buffer, threads)
        _mark_flags_parsed()
        options = grain.MultiprocessingOptions(workers, per_worker_buffer_size=buffer or STREAM_BUFFER)
        return read_ahead(recipe, node, 0).mp_prefetch(options, worker_init_fn=watch_parent).map(unshared)

    text = f"prefetch(workers={workers})" if workers else ""
    return recipe.then(DatasetStep(text, make, kind="stream", reads_ahead=True))


def _mark_flags_parsed() -> None:
    """Mark absl's flags as parsed: grain reads flags to start workers, and most programs do not use absl."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def _unless_finite(length: Length) -> Length:
    """Return the number of elements of a step that keeps an unknown number of them."""
    return math.inf if length == math.inf else None


def zipped(recipes: Sequence[Recipe], arrange: Callable[[tuple[Tree, ...]], Tree] | None) -> Recipe:
    """Make elements of one element of each recipe, up to the end of the shortest.

    Args:
        recipes: the recipes.
        arrange: makes an element of the tuple of their elements; None: the tuple is the element.
    """
    has_index = all(recipe.has_index for recipe in recipes)
    parts = [recipe.by_element() if has_index else recipe.in_order() for recipe in recipes]

    def make(pass_index: int) -> Node:
        nodes = [part.node(pass_index) for part in parts]
        if has_index:
            # grain zips only nodes of the same length.
            rows = min(map(len, nodes))
            nodes = [node if len(node) == rows else node.slice(slice(0, rows)) for node in nodes]
            node = grain.experimental.ZipMapDataset(nodes)
        else:
            node = grain.experimental.ZipIterDataset(nodes, strict=False)
        return node.map(arrange) if arrange else node

    def length() -> Length:
        lengths = [part.length for part in parts]
        return None if None in lengths else min(length for length in lengths if length is not None)

    batched = {recipe.is_batched for recipe in recipes}
    source = ElementSource(
        f"zip({', '.join(recipe.text for recipe in recipes)})",
        make,
        length,
        computes=any(recipe.computes for recipe in recipes),
        is_endless=all(recipe.is_endless for recipe in recipes),
        is_batched=batched.pop() if len(batched) == 1 else None,
    )
    return Recipe(source, "list" if has_index else "stream")
