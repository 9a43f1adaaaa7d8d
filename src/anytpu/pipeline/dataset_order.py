"""The methods of `Dataset` that choose, repeat or order elements.

Idea: a step takes a recipe and returns a longer one; nothing is read. It keeps the index of the elements where it can,
so that threads compute them in any order and a position is one integer. Otherwise it makes a stream. grain's nodes are
used where grain has them.

Rule: a step returns a new data set and leaves the old one unchanged. The names and the order of the arguments are those
of tf.data, with `shard` as the exception.
"""

from __future__ import annotations

import abc
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Self

import grain
import jax
import numpy as np

from anytpu.errors import SettingError
from anytpu.pipeline import checks
from anytpu.pipeline.checks import takes_tensorflow_names
from anytpu.pipeline.nodes import Node, Shuffled
from anytpu.pipeline.recipe import SEED_LIMIT, Length, Recipe
from anytpu.pipeline.streams import Chained, ShuffledWindows, Stream, Strided

Tree = Any


class OrderSteps(abc.ABC):
    """The steps of a data set that choose, repeat or order its elements."""

    _recipe: Recipe

    @abc.abstractmethod
    def _with(self, recipe: Recipe) -> Self:
        """Return a data set of another recipe."""

    @takes_tensorflow_names(buffer_size="buffer", name=None)
    def shuffle(
        self, buffer: int | None = None, seed: int | None = 0, reshuffle_each_iteration: bool | None = True
    ) -> Self:
        """Shuffle the elements, in another order in each pass.

        Args:
            buffer: window size, in elements, of the shuffle of a stream or of endless elements. Elements that can be
                indexed are shuffled as a whole otherwise, without being read.
            seed: seed of the orders, 0 to 2**32 - 1; None: 0.
            reshuffle_each_iteration: False: each pass has the order of the first.

        Raises:
            SettingError: `buffer` is missing for a stream or after an endless `repeat`; the seed is out of range.
        """
        seed = 0 if seed is None else seed
        checks.check_seed(seed, SEED_LIMIT)
        if buffer is not None:
            checks.check_count("buffer", buffer)
        if self._recipe.kind == "stream" and buffer is None:
            raise SettingError(
                f"{self!r} is a stream, which cannot be shuffled as a whole: pass the size of the window, "
                "shuffle(1000), or shuffle before filter, batch and prefetch"
            )
        if self._recipe.is_endless and buffer is None:
            raise SettingError(
                f"{self!r} is endless, so it cannot be shuffled as a whole: shuffle before repeat(), or pass the size "
                "of the window, shuffle(1000)"
            )
        recipe, is_fixed = self._recipe, reshuffle_each_iteration is False

        def make(pass_index: int) -> Node:
            node, order = recipe.make(pass_index), 0 if is_fixed else pass_index
            if recipe.kind == "stream":
                return Stream(ShuffledWindows, buffer or 1, (seed, order), parent=node)
            if recipe.is_endless:
                return Shuffled(node, buffer or 1, (seed, order), 0)
            return Shuffled(node, len(node), (seed,), order, is_fixed=is_fixed)

        is_whole = recipe.kind != "stream" and not recipe.is_endless
        arguments = f"seed={seed}" if is_whole else f"{buffer}, seed={seed}"
        fixed = ", reshuffle_each_iteration=False" if is_fixed else ""
        return self._with(recipe.then(f"shuffle({arguments}{fixed})", make))

    @takes_tensorflow_names(name=None)
    def repeat(self, count: int | None = None) -> Self:
        """Concatenate passes into one.

        Args:
            count: number of passes; None or -1: endless. An endless data set stays as it is.

        Raises:
            SettingError: `count` is not an integer of at least 1.
        """
        count = None if checks.is_integer(count) and count == -1 else count
        if count is not None:
            checks.check_count("count", count)
        recipe = self._recipe
        if recipe.is_endless:
            return self._with(recipe)

        def make(pass_index: int) -> Node:
            first = pass_index * (count or 0)
            if recipe.kind == "stream":
                return Stream(Chained, lambda completed: recipe.make(first + completed), count)
            return recipe.make(first).repeat(count)

        def length(before: Length) -> Length:
            return before and before * (count or math.inf)

        text = "repeat()" if count is None else f"repeat({count})"
        return self._with(recipe.then(text, make, length, is_endless=count is None))

    @takes_tensorflow_names(name=None)
    def take(self, count: int) -> Self:
        """Keep the first elements of each pass.

        Args:
            count: number of elements; -1: all.

        Raises:
            SettingError: `count` is not an integer of at least -1.
        """
        checks.check_size(count)
        if count < 0:
            return self._with(self._recipe)
        return self._sliced(f"take({count})", slice(count))

    @takes_tensorflow_names(name=None)
    def skip(self, count: int) -> Self:
        """Leave out the first elements of each pass.

        Args:
            count: number of elements; -1: all, so that none is left.

        Raises:
            SettingError: `count` is not an integer of at least -1.
        """
        checks.check_size(count)
        return self._sliced(f"skip({count})", slice(count, None)) if count >= 0 else self.take(0)

    @takes_tensorflow_names(num_shards="count", name=None)
    def shard(self, index: int | None = None, count: int | None = None) -> Self:
        """Keep one of every `count` elements: the part that one of several hosts reads. Put it before expensive steps.

        After `filter` it counts the remaining elements. Each host reads all of them, the shards' sizes differ by at
        most one, and the result is a stream.

        Args:
            index: index of the shard, from 0; None: the index of this process, `jax.process_index()`.
            count: number of shards; None: the number of processes, `jax.process_count()`. tf.data has it first; pass
                both by name, `shard(num_shards=4, index=0)`.

        Raises:
            SettingError: the shard does not exist.

        Example:
            >>> import numpy as np
            >>> from anytpu.pipeline import Dataset
            >>> [int(row) for row in Dataset.from_arrays(np.arange(5)).shard(1, 2)]
            [1, 3]
        """
        index = jax.process_index() if index is None else index
        count = jax.process_count() if count is None else count
        checks.check_shard(index, count)
        return self._sliced(f"shard({index}, {count})", slice(index, None, count), keeps_endless=True)

    @takes_tensorflow_names(dataset="other", name=None)
    def concatenate(self, other: OrderSteps) -> Self:
        """Append the elements of another data set.

        Raises:
            DataError: `other` is not a data set.
        """
        checks.check_dataset("concatenate", other, OrderSteps)
        has_index = self._recipe.has_index and other._recipe.has_index
        first, second = (part.indexed_or_in_order(has_index) for part in (self._recipe, other._recipe))

        def make(pass_index: int) -> Node:
            if has_index:
                return grain.MapDataset.concatenate([first.make(pass_index), second.make(pass_index)])
            return Stream(Chained, lambda index: (first, second)[index].make(pass_index), 2)

        recipe = first.then(
            f"concatenate({second.text})",
            make,
            lambda before: None if before is None or second.length is None else before + second.length,
            computes=second.computes,
            is_endless=first.is_endless or second.is_endless,
            is_batched=first.is_batched if first.is_batched == second.is_batched else None,
        )
        return self._with(recipe)

    @takes_tensorflow_names(name=None)
    def enumerate(self, start: int = 0) -> Self:
        """Make pairs `(index, element)`; the index is an int64 that begins with `start` in each pass."""
        checks.check_integer("start", start)
        recipe = self._recipe.indexed_or_in_order(self._recipe.kind in ("rows", "list"))

        def make(pass_index: int) -> Node:
            node = recipe.make(pass_index)
            # An index beyond the end belongs to a following pass.
            count = len(node) if isinstance(node, grain.MapDataset) else sys.maxsize
            return node.map_with_index(lambda index, element: (np.int64(start + index % count), element))

        return self._with(recipe.then("enumerate()" if not start else f"enumerate({start})", make))

    def _sliced(self, text: str, part: slice, *, keeps_endless: bool = False) -> Self:
        """Keep a part of the elements.

        Args:
            text: the step's call.
            part: the elements to keep, by index.
            keeps_endless: whether elements of an endless data set keep their index.
        """
        recipe = self._recipe
        if not (recipe.kind != "sparse" if keeps_endless else recipe.has_index):
            recipe = recipe.in_order()

        def make(pass_index: int) -> Node:
            node = recipe.make(pass_index)
            if isinstance(node, grain.MapDataset):
                return node.slice(part)
            if part.stop is None:
                return Stream(Strided, part.start, part.step or 1, parent=node)
            if not part.stop:
                return Stream(Chained, lambda _: node, 0)
            return grain.experimental.LimitIterDataset(node, part.stop)

        def length(before: Length) -> Length:
            if part.stop is not None:
                return None if before is None and part.stop else min(before or 0, part.stop)
            return before if before in (None, math.inf) else len(range(int(before))[part])

        return self._with(recipe.then(text, make, length, is_endless=recipe.is_endless and part.stop is None))


def zipped(recipes: Sequence[Recipe], arrange: Callable[[tuple[Tree, ...]], Tree] | None) -> Recipe:
    """Make elements of one element of each recipe, up to the end of the shortest.

    Args:
        recipes: the recipes.
        arrange: makes an element of the tuple of their elements; None: the tuple is the element.
    """
    has_index = all(recipe.has_index for recipe in recipes)
    parts = [recipe.indexed_or_in_order(has_index) for recipe in recipes]

    def make(pass_index: int) -> Node:
        nodes = [part.make(pass_index) for part in parts]
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
    return Recipe(
        f"zip({', '.join(recipe.text for recipe in recipes)})",
        make,
        length,
        "list" if has_index else "stream",
        computes=any(recipe.computes for recipe in recipes),
        is_endless=all(recipe.is_endless for recipe in recipes),
        is_batched=batched.pop() if len(batched) == 1 else None,
    )
