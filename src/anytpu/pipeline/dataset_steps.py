"""The methods of `Dataset` that call functions, make batches, and change the speed.

Idea: as in `dataset_order.py`, each method makes one step of the recipe: the step's text, the node of a pass, and the
number of its elements.

Rule: a step returns a new data set and leaves the old one unchanged.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import grain

from anytpu._calls import refuse_attribute
from anytpu.errors import SettingError
from anytpu.pipeline import checks
from anytpu.pipeline.caches import FileCache, MemoryCache
from anytpu.pipeline.checks import takes_tensorflow_names
from anytpu.pipeline.columns import PaddedStack, stack, unstack
from anytpu.pipeline.dataset_order import OrderSteps
from anytpu.pipeline.functions import BatchFunction, ElementFunction
from anytpu.pipeline.nodes import Cached, Node, RowBatches
from anytpu.pipeline.recipe import SEED_LIMIT, STREAM_BUFFER, Length, in_workers, read_ahead
from anytpu.pipeline.streams import Interleaved, Recorded, Stream

Tree = Any

_CYCLE_LENGTH = 4


class DatasetSteps(OrderSteps):
    """The steps of a data set."""

    if not TYPE_CHECKING:
        __getattr__ = refuse_attribute

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
        called = BatchFunction(checked) if self._recipe.is_batched else checked
        recipe = self._recipe.by_element()
        return self._with(recipe.then("map()", lambda index: recipe.make(index).map(called), computes=True))

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
        checked, recipe = ElementFunction("random_map", function), self._recipe.by_element()

        def make(pass_index: int) -> Node:
            return recipe.make(pass_index).random_map(checked, seed=(seed + pass_index) % SEED_LIMIT)

        return self._with(recipe.then(f"random_map(seed={seed})", make, computes=True))

    @takes_tensorflow_names(name=None)
    def filter(self, predicate: Callable[..., bool]) -> Self:
        """Keep the elements for which a predicate returns True. Their number is not known before they are read."""
        checked, recipe = ElementFunction("filter", predicate, returns_element=False), self._recipe.by_element()

        def make(pass_index: int) -> Node:
            return recipe.make(pass_index).filter(checked)

        kind = "stream" if recipe.kind == "stream" else "sparse"
        return self._with(recipe.then("filter()", make, _unless_finite, kind=kind, computes=True))

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
        checked, recipe = ElementFunction(name, function, returns_element=False), self._recipe.in_order()

        def make(pass_index: int) -> Node:
            def open_stream(element: Tree) -> grain.IterDataset:
                inner = checked(element)
                checks.check_result(name, inner, DatasetSteps, "for arrays, Dataset.from_tensor_slices(arrays)")
                return inner._recipe.stream(pass_index)

            return Stream(Interleaved, open_stream, cycle_length, block_length, parent=recipe.make(pass_index))

        text = "flat_map()" if name == "flat_map" else f"interleave({cycle_length}, {block_length})"
        return self._with(recipe.then(text, make, _unless_finite, computes=True))

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
        return self._batched("batch", rows, stack, drop_remainder)

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
        return self._batched("padded_batch", rows, PaddedStack(padded_shapes, padding_values), drop_remainder)

    def _batched(self, name: str, rows: int, stack_rows: Callable[..., Tree], drop_remainder: bool) -> Self:
        checks.check_count("rows", rows)
        recipe = self._recipe
        # A batch of rows of arrays is gathered at once; padding needs the elements.
        gathers = recipe.kind == "rows" and name == "batch"
        if not gathers:
            recipe = recipe.in_order() if recipe.kind == "sparse" else recipe.by_element()

        def make(pass_index: int) -> Node:
            node = recipe.make(pass_index)
            if gathers:
                return RowBatches(node, recipe.arrays, rows, drop_remainder)
            return node.batch(rows, drop_remainder=drop_remainder, batch_fn=stack_rows)

        def length(before: Length) -> Length:
            if before is None or before == math.inf:
                return before
            return before // rows if drop_remainder else -(-before // rows)

        text = f"{name}({rows}, drop_remainder=True)" if drop_remainder else f"{name}({rows})"
        return self._with(recipe.then(text, make, length, kind="list" if gathers else None, is_batched=True))

    @takes_tensorflow_names(name=None)
    def unbatch(self) -> Self:
        """Make the rows of batches elements. Iteration raises DataError if columns have different numbers of rows."""
        recipe = self._recipe.in_order()

        def make(pass_index: int) -> Node:
            return grain.experimental.FlatMapIterDataset(recipe.make(pass_index), _UnstackedRows())

        return self._with(recipe.then("unbatch()", make, _unless_finite, is_batched=False))

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
        file = os.path.expanduser(os.fspath(path))
        has_index = not file and self._recipe.kind != "stream"
        recipe = self._recipe if has_index else self._recipe.in_order()
        computed: dict[int, Tree] = {}
        store = FileCache(file, recipe.text) if file else MemoryCache()

        def make(pass_index: int) -> Node:
            return Cached(recipe.make(0), computed) if has_index else Stream(Recorded, recipe.make(0), store)

        return self._with(recipe.then("cache(file)" if file else "cache()", make, computes=bool(file)))

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
        recipe = self._recipe.by_element()
        if workers and recipe.kind != "list":
            raise SettingError(
                f"workers divide elements by index, and {self!r} is "
                f"{'a stream' if recipe.kind == 'stream' else 'filtered'}: put prefetch(workers={workers}) before "
                "filter, on a source that can be indexed, or omit workers"
            )

        def make(pass_index: int) -> Node:
            node = recipe.make(pass_index)
            if recipe.kind == "stream":
                size = STREAM_BUFFER if buffer is None else buffer
                return grain.experimental.ThreadPrefetchIterDataset(node, prefetch_buffer_size=size) if size else node
            if not workers:
                return read_ahead(recipe, node, buffer, threads)
            return in_workers(read_ahead(recipe, node, 0), workers, buffer or STREAM_BUFFER)

        text = f"prefetch(workers={workers})" if workers else ""
        return self._with(recipe.then(text, make, kind="stream", reads_ahead=True))

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


class _UnstackedRows(grain.experimental.FlatMapTransform):
    max_fan_out = 2**62

    def flat_map(self, element: Tree) -> list[Tree]:
        return unstack(element)


def _unless_finite(length: Length) -> Length:
    """Return the number of elements of a step that keeps an unknown number of them."""
    return math.inf if length == math.inf else None
