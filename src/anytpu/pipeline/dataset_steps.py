"""The methods of `Dataset` that return a new data set.

Idea: a step takes a recipe and returns a longer one; nothing is read. The names and the order of the arguments are
those of tf.data, with `shard` as the exception.

Rule: a step returns a new data set and leaves the old one unchanged.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable
from typing import Any, Self

import jax

from anytpu.errors import SettingError
from anytpu.pipeline import checks, recipe_steps
from anytpu.pipeline.checks import takes_tensorflow_names
from anytpu.pipeline.columns import PaddedStack
from anytpu.pipeline.functions import BatchFunction, ElementFunction
from anytpu.pipeline.recipe import SEED_LIMIT, Recipe

Tree = Any

_CYCLE_LENGTH = 4


class DatasetSteps(abc.ABC):
    """The steps of a data set."""

    _recipe: Recipe

    @abc.abstractmethod
    def _with(self, recipe: Recipe) -> Self:
        """Return a data set of another recipe."""

    # Functions of elements.

    @takes_tensorflow_names(map_func="function", num_parallel_calls=None, deterministic=None, name=None)
    def map(self, function: Callable[..., Tree]) -> Self:
        """Apply a function to each element.

        Args:
            function: maps an element to a new element; several threads may call it at once. If it has several
                parameters, they are the parts of a tuple. Iteration raises DataError if it returns None. After `batch`,
                a function that computes with JAX or `keras.ops` is compiled for the host's CPU, together with the
                values that it reads from outside.

        Example:
            >>> import numpy as np
            >>> from anytpu.pipeline import Dataset
            >>> pairs = Dataset.from_arrays((np.arange(3), np.arange(3)))
            >>> [int(total) for total in pairs.map(lambda x, y: x + 10 * y)]
            [0, 11, 22]
        """
        checked = ElementFunction("map", function)
        return self._with(
            recipe_steps.mapped(self._recipe, BatchFunction(checked) if self._recipe.is_batched else checked)
        )

    def random_map(self, function: Callable[..., Tree], *, seed: int = 0) -> Self:
        """Apply a function to each element and a random generator.

        Args:
            function: maps an element and a NumPy generator to a new element. The generator is seeded by `seed`, the
                element's index and the pass; threads and processes do not change its numbers.
            seed: seed of the generators, 0 to 2**32 - 1.

        Example:
            >>> import numpy as np
            >>> from anytpu.pipeline import Dataset
            >>> noisy = Dataset.from_arrays(np.zeros(2)).random_map(lambda row, random: row + random.random(), seed=1)
            >>> first = [float(row) for row in noisy]
            >>> 0 < first[0] < 1 and first[0] != first[1]
            True
        """
        checks.check_seed(seed, SEED_LIMIT)
        return self._with(recipe_steps.randomly_mapped(self._recipe, ElementFunction("random_map", function), seed))

    @takes_tensorflow_names(name=None)
    def filter(self, predicate: Callable[..., bool]) -> Self:
        """Keep the elements for which a predicate returns True. Their number is not known before they are read."""
        return self._with(
            recipe_steps.filtered(self._recipe, ElementFunction("filter", predicate, returns_element=False))
        )

    @takes_tensorflow_names(map_func="function", num_parallel_calls=None, deterministic=None, name=None)
    def interleave(
        self, function: Callable[..., DatasetSteps], cycle_length: int = _CYCLE_LENGTH, block_length: int = 1
    ) -> Self:
        """Make a data set of each element, and take their elements in turns.

        Args:
            function: maps an element, such as a path of `list_files`, to a data set.
            cycle_length: number of data sets that are read at a time; each reads ahead in its own threads.
            block_length: number of elements taken from a data set in its turn.

        Raises:
            SettingError: a length is not an integer of at least 1.
            DataError: `function` does not return a data set; raised during iteration.

        Example:
            >>> from anytpu.pipeline import Dataset
            >>> three = Dataset.range(3).interleave(lambda n: Dataset.from_tensors(n).repeat(2), 2)
            >>> [int(number) for number in three]
            [0, 1, 0, 1, 2, 2]
        """
        checks.check_count("cycle_length", cycle_length)
        checks.check_count("block_length", block_length)
        return self._interleaved("interleave", function, cycle_length, block_length)

    @takes_tensorflow_names(map_func="function", name=None)
    def flat_map(self, function: Callable[..., DatasetSteps]) -> Self:
        """Make a data set of each element, and concatenate them: `interleave` with a cycle of one."""
        return self._interleaved("flat_map", function, 1, 1)

    def _interleaved(self, name: str, function: Callable[..., Any], cycle_length: int, block_length: int) -> Self:
        checked = ElementFunction(name, function, returns_element=False)

        def open_recipe(element: Tree) -> Recipe:
            inner = checked(element)
            checks.check_result(name, inner, DatasetSteps, "for arrays, Dataset.from_tensor_slices(arrays)")
            return inner._recipe

        text = "flat_map()" if name == "flat_map" else f"interleave({cycle_length}, {block_length})"
        return self._with(recipe_steps.interleaved(self._recipe, open_recipe, cycle_length, block_length, text))

    def apply(self, function: Callable[[Any], Any]) -> Self:
        """Return the result of a function of this data set, which makes chains of steps reusable.

        Args:
            function: maps a data set to a data set.

        Raises:
            DataError: it returns something else.
        """
        result = function(self)
        checks.check_result("apply", result, DatasetSteps, "end it with return dataset")
        return result

    # Order and number of elements.

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
        is_fixed = reshuffle_each_iteration is False
        return self._with(recipe_steps.shuffled(self._recipe, buffer, seed, is_fixed=is_fixed))

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
        if self._recipe.is_endless:
            return self._with(self._recipe)
        return self._with(recipe_steps.repeated(self._recipe, count))

    @takes_tensorflow_names(name=None)
    def take(self, count: int) -> Self:
        """Keep the first elements of each pass.

        Args:
            count: number of elements; -1: all.

        Raises:
            SettingError: `count` is not an integer of at least -1.
        """
        checks.check_size(count)
        return self._with(recipe_steps.taken(self._recipe, count)) if count >= 0 else self._with(self._recipe)

    @takes_tensorflow_names(name=None)
    def skip(self, count: int) -> Self:
        """Leave out the first elements of each pass.

        Args:
            count: number of elements; -1: all, so that none is left.

        Raises:
            SettingError: `count` is not an integer of at least -1.
        """
        checks.check_size(count)
        return self._with(
            recipe_steps.skipped(self._recipe, count) if count >= 0 else recipe_steps.taken(self._recipe, 0)
        )

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
        return self._with(recipe_steps.sharded(self._recipe, index, count))

    @takes_tensorflow_names(dataset="other", name=None)
    def concatenate(self, other: DatasetSteps) -> Self:
        """Append the elements of another data set.

        Raises:
            DataError: `other` is not a data set.
        """
        checks.check_dataset("concatenate", other, DatasetSteps)
        return self._with(recipe_steps.concatenated(self._recipe, other._recipe))

    @takes_tensorflow_names(name=None)
    def enumerate(self, start: int = 0) -> Self:
        """Make pairs `(index, element)`; the index is an int64 that begins with `start` in each pass."""
        checks.check_integer("start", start)
        return self._with(recipe_steps.enumerated(self._recipe, start))

    # Batches.

    @takes_tensorflow_names(batch_size="rows", num_parallel_calls=None, deterministic=None, name=None)
    def batch(self, rows: int, drop_remainder: bool = False) -> Self:
        """Stack every `rows` elements into a batch; strings and bytes become columns of Python objects.

        Args:
            rows: number of elements in a batch. Iteration raises DataError if their shapes differ.
            drop_remainder: leave out a last batch that is not full. `fit` on a strategy does not need that.

        Raises:
            SettingError: `rows` is not an integer of at least 1.
        """
        checks.check_count("rows", rows)
        return self._with(recipe_steps.batched(self._recipe, rows, drop_remainder))

    @takes_tensorflow_names(batch_size="rows", name=None)
    def padded_batch(
        self, rows: int, padded_shapes: Tree = None, padding_values: Tree = None, drop_remainder: bool = False
    ) -> Self:
        """Stack every `rows` elements of different shapes into a batch, padded at the end of each axis.

        Args:
            rows: number of elements in a batch.
            padded_shapes: tree of shapes with the structure of an element, or one shape for all columns. None, and an
                axis of size None or -1: as long as the longest element of each batch.
            padding_values: tree of values, or one value for all columns; None: 0, "" or b"".
            drop_remainder: leave out a last batch that is not full.

        Raises:
            SettingError: `rows` is not an integer of at least 1.
            DataError: an element is longer than its shape, or has another number of axes; raised during iteration.

        Example:
            >>> import numpy as np
            >>> from anytpu.pipeline import Dataset
            >>> sentences = Dataset.from_source([np.array([1, 2]), np.array([3])])
            >>> next(iter(sentences.padded_batch(2))).tolist()
            [[1, 2], [3, 0]]
        """
        checks.check_count("rows", rows)
        padded = PaddedStack(padded_shapes, padding_values)
        return self._with(recipe_steps.batched(self._recipe, rows, drop_remainder, "padded_batch", padded))

    @takes_tensorflow_names(name=None)
    def unbatch(self) -> Self:
        """Make the rows of batches elements. Iteration raises DataError if columns have different numbers of rows."""
        return self._with(recipe_steps.unbatched(self._recipe))

    # Speed.

    @takes_tensorflow_names(filename="path", name=None)
    def cache(self, path: str | os.PathLike[str] = "") -> Self:
        """Store the elements of the first pass; later passes read them instead of computing them.

        Random steps and shuffles before `cache` are stored with them, so put `cache` before these.

        Args:
            path: a file for the elements, which another process may use too; "": in memory. The file appears when a
                pass is complete. It stores numbers of up to 64 bits and text.

        Raises:
            SettingError: the data set is endless.
            DataError: the file is the cache of another data set; raised during iteration.
        """
        if self._recipe.is_endless:
            raise SettingError(f"{self!r} is endless, so it cannot be stored: put cache before repeat()")
        return self._with(recipe_steps.cached(self._recipe, os.path.expanduser(os.fspath(path)) or None))

    @takes_tensorflow_names(buffer_size="buffer", name=None)
    def prefetch(self, buffer: int | None = None, *, threads: int | None = None, workers: int = 0) -> Self:
        """Configure how elements are computed ahead. Without this step threads do it, if there is anything to compute.

        Args:
            buffer: number of elements computed ahead, after `batch` of batches. 0: each is computed on demand, by the
                thread that asks for it. None or -1: at least 2, one per thread for batches, 16 per thread for elements.
            threads: number of threads; None: one per CPU core, at most 16. A stream is read by one thread.
            workers: number of processes, for functions that hold Python's global lock. Elements and order do not
                depend on it. The processes end with this process, even if it is killed. A script needs
                `if __name__ == "__main__":` around its main code.

        Raises:
            SettingError: a number is out of range; `workers` is set for a stream, or after `filter`.
        """
        buffer = None if checks.is_integer(buffer) and buffer == -1 else buffer
        checks.check_prefetch(buffer, threads, workers)
        kind = self._recipe.kind
        if workers and kind not in ("rows", "list"):
            raise SettingError(
                f"workers divide elements by index, and {self!r} is "
                f"{'a stream' if kind == 'stream' else 'filtered'}: put prefetch(workers={workers}) before "
                "filter, on a source that can be indexed, or omit workers"
            )
        return self._with(recipe_steps.prefetched(self._recipe, buffer, threads, workers))

    def with_options(self, options: Any) -> Self:
        """Accept the options of a tf.data program; none of them changes the elements.

        Args:
            options: a dict, or an object with the options as attributes. Options for speed and for the order have no
                effect: the order is always the same. `experimental_distribute.auto_shard_policy` must be off.

        Raises:
            SettingError: an option is unknown or asks for sharding: call `shard` on each host.
        """
        checks.check_options(options)
        return self._with(self._recipe)
