"""`Dataset`: a lazy input pipeline from rows or records to batches.

Idea: a data set is a source and a chain of steps; nothing is read before iteration. grain does the work: it maps,
batches, prefetches and tracks the position. This class adds the names, the errors, and a new order for each pass.

Rule: a step returns a new data set and leaves the old one unchanged. A pass depends only on the recipe and the index of
the pass.

This file imports grain, JAX and Keras; `anytpu.pipeline` loads it on first use of `Dataset`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grain
import jax
import numpy as np

from anytpu.errors import DataError, SettingError
from anytpu.pipeline import checks, keras_input, recipe
from anytpu.pipeline.columns import split
from anytpu.pipeline.nodes import Generated, Positions
from anytpu.pipeline.recipe import SEED_LIMIT, DatasetStep, ElementSource, Recipe
from anytpu.pipeline.walk import Position, Walk, check_position

Tree = Any


class Dataset:
    """Elements, or batches of them, that can be iterated any number of times.

    Make one with `from_arrays`, `from_source` or `from_generator`. An element is an array, or a tuple or dict of
    arrays. Keras's `fit` takes batches of `x`, `(x, y)` or `(x, y, sample_weight)`.

    If the data set is shuffled, each completed pass is followed by a pass in another order. A pass that was not
    completed is repeated from its beginning. Threads compute elements ahead: see `prefetch`.

    Example:
        >>> x = np.arange(5, dtype="float32")
        >>> dataset = Dataset.from_arrays({"x": x}).map(lambda row: row["x"] * 2).batch(2)
        >>> [batch.tolist() for batch in dataset]
        [[0.0, 2.0], [4.0, 6.0], [8.0]]
        >>> dataset
        Dataset.from_arrays(5 rows).map().batch(2)
    """

    def __init__(self, written: Recipe, resumed: Position | None = None) -> None:
        """Store a recipe. Users make a data set with one of the `from_` methods."""
        self._recipe = written
        self._resumed = resumed
        self._pass = resumed["pass"] if resumed else 0
        self._last = self._pass
        self._kept: dict[str, list[np.ndarray]] = {}
        self._has_reported = False

    @classmethod
    def from_arrays(cls, arrays: Tree) -> Dataset:
        """Make a data set from the rows of arrays.

        Args:
            arrays: an array, or a tuple or dict of arrays, with first axes of equal length. They are not copied.

        Raises:
            DataError: there are no rows, or the numbers of rows differ.

        Example:
            >>> dataset = Dataset.from_arrays((np.zeros((3, 2)), np.arange(3)))
            >>> [int(y) for x, y in dataset]
            [0, 1, 2]
        """
        arrays = jax.tree.map(np.asarray, arrays)
        rows = checks.rows_of(arrays)
        return cls(
            Recipe(ElementSource(f"from_arrays({rows} rows)", lambda: Positions(rows), lambda: rows, arrays), "rows")
        )

    @classmethod
    def from_source(cls, source: Any) -> Dataset:
        """Make a data set from a list of elements, or any object with a length and an index.

        Args:
            source: such as `tpu.pipeline.records("train-*.tfrecord")`. An object that can be iterated but not indexed,
                such as compressed records, makes a stream.

        Raises:
            DataError: it can neither be indexed nor iterated, or can be iterated only once.
        """
        checks.check_not_path(source)
        text = f"from_source({type(source).__name__})"
        if checks.is_list(source):
            return cls(
                Recipe(ElementSource(text, lambda: grain.MapDataset.source(source), lambda: len(source)), "list")
            )
        checks.check_iterable(source)
        return cls(Recipe(ElementSource(text, lambda: Generated(source.__iter__), lambda: None), "stream"))

    @classmethod
    def from_generator(cls, function: Callable[[], Iterable[Tree]], length: int | None = None) -> Dataset:
        """Make a data set from the elements of a generator function, which runs in this process.

        Args:
            function: function without arguments that returns an iterator; it is called for each pass. If it yields the
                same each time, a saved position is exact: restoring it runs the function again up to that position.
            length: number of elements that it yields; None: not known before a pass has ended.

        Raises:
            DataError: `function` is a generator, which ends with its first pass, and not its function.
            SettingError: `length` is not an integer of at least 1.

        Example:
            >>> def squares():
            ...     yield from (value**2 for value in range(4))
            >>> [batch.tolist() for batch in Dataset.from_generator(squares).batch(2)]
            [[0, 1], [4, 9]]
        """
        checks.check_function(function)
        if length is not None:
            checks.check_count("length", length)
        name = getattr(function, "__name__", type(function).__name__)
        source = ElementSource(f"from_generator({name})", lambda: Generated(function), lambda: length)
        return cls(Recipe(source, "stream"))

    # The steps.

    def shuffle(self, buffer: int | None = None, *, seed: int = 0) -> Dataset:
        """Shuffle the elements, in another order in each pass.

        Args:
            buffer: window size of a stream's shuffle, in elements. Elements that can be indexed are always shuffled
                as a whole, without being read.
            seed: seed of the orders, 0 to 2**32 - 1.

        Raises:
            SettingError: `buffer` is missing for a stream; an endless `repeat` comes before; the seed is out of range.
        """
        checks.check_seed(seed, SEED_LIMIT)
        if buffer is not None:
            checks.check_count("buffer", buffer)
        if self._recipe.kind == "stream" and buffer is None:
            raise SettingError(
                f"{self!r} is a stream, which cannot be shuffled as a whole: pass the size of the window, "
                "shuffle(1000), or shuffle before filter, batch and prefetch"
            )
        if self._recipe.kind != "stream" and self._recipe.is_endless:
            raise SettingError(f"{self!r} is endless, so it cannot be shuffled as a whole: shuffle before repeat()")
        return self._then(recipe.shuffled(self._recipe, buffer, seed))

    def repeat(self, count: int | None = None) -> Dataset:
        """Concatenate passes into one.

        Args:
            count: number of passes; None: endless.

        Raises:
            SettingError: `count` is not an integer of at least 1, or the data set is endless already.
        """
        if count is not None:
            checks.check_count("count", count)
        if self._recipe.is_endless:
            raise SettingError(f"{self!r} is endless already: remove the second repeat")
        return self._then(recipe.repeated(self._recipe, count))

    def map(self, function: Callable[[Tree], Tree]) -> Dataset:
        """Apply a function to each element.

        Args:
            function: maps an element to a new element; several threads may call it at once. Iteration raises
                DataError if it returns None.
        """
        checked = checks.NotNone("map", function)
        step = DatasetStep("map()", lambda before, pass_index: before(pass_index).map(checked), computes=True)
        return self._then_compute(step)

    def random_map(self, function: Callable[[Tree, np.random.Generator], Tree], *, seed: int = 0) -> Dataset:
        """Apply a function to each element and a random generator.

        Args:
            function: maps an element and a NumPy generator to a new element. The generator is seeded by `seed`, the
                element's index and the pass; threads and processes do not change its numbers.
            seed: seed of the generators, 0 to 2**32 - 1.

        Example:
            >>> noisy = Dataset.from_arrays(np.zeros(2)).random_map(lambda row, random: row + random.random(), seed=1)
            >>> first = [float(row) for row in noisy]
            >>> 0 < first[0] < 1 and first[0] != first[1]
            True
        """
        checks.check_seed(seed, SEED_LIMIT)
        checked = checks.NotNone("random_map", function)
        return self._then_compute(
            DatasetStep(
                f"random_map(seed={seed})",
                lambda before, pass_index: before(pass_index).random_map(
                    checked, seed=(seed + pass_index) % SEED_LIMIT
                ),
                computes=True,
            )
        )

    def filter(self, predicate: Callable[[Tree], bool]) -> Dataset:
        """Keep the elements for which a predicate returns True. Their number is not known before they are read."""
        return self._then_compute(
            DatasetStep(
                "filter()",
                lambda before, pass_index: before(pass_index).filter(predicate),
                lambda length: math.inf if length == math.inf else None,
                "stream" if self._recipe.kind == "stream" else "sparse",
                computes=True,
            )
        )

    def batch(self, rows: int, drop_remainder: bool = False) -> Dataset:
        """Stack every `rows` elements into a batch; strings and bytes become columns of Python objects.

        Args:
            rows: number of elements in a batch. Iteration raises DataError if their shapes differ.
            drop_remainder: leave out a last batch that is not full. `fit` on a strategy does not need that.

        Raises:
            SettingError: `rows` is not an integer of at least 1.
        """
        checks.check_count("rows", rows)
        return self._then(recipe.batched(self._recipe, rows, drop_remainder))

    def shard(self, index: int | None = None, count: int | None = None) -> Dataset:
        """Keep one of every `count` elements: the part that one of several hosts reads. Put it before expensive steps.

        After `filter` it counts the remaining elements: each host reads all of them, the shards' sizes differ by at
        most one, and the result is a stream.

        Args:
            index: index of the shard, from 0; None: the index of this process, `jax.process_index()`.
            count: number of shards; None: the number of processes, `jax.process_count()`.

        Raises:
            SettingError: the shard does not exist.

        Example:
            >>> [int(row) for row in Dataset.from_arrays(np.arange(5)).shard(1, 2)]
            [1, 3]
        """
        index = jax.process_index() if index is None else index
        count = jax.process_count() if count is None else count
        checks.check_shard(index, count)
        return self._then(recipe.sharded(self._recipe, index, count))

    def prefetch(self, buffer: int | None = None, *, threads: int | None = None, workers: int = 0) -> Dataset:
        """Configure how elements are computed ahead. Without this step threads do it, if there is anything to compute.

        Args:
            buffer: number of elements computed ahead, after `batch` of batches. 0: each is computed on demand, by the
                thread that asks for it. None: at least 2, one per thread for batches, 16 per thread for elements.
            threads: number of threads; None: one per CPU core, at most 16. A stream is read by one thread.
            workers: number of processes, for functions that hold Python's global lock. Elements and order do not
                depend on it. The processes end with this process, even if it is killed. A script needs
                `if __name__ == "__main__":` around its main code.

        Raises:
            SettingError: a number is out of range; `workers` is set for a stream, or after `filter`.
        """
        checks.check_prefetch(buffer, threads, workers)
        before = self._recipe.by_element()
        if workers and before.kind != "list":
            raise SettingError(
                f"workers divide elements by index, and {self!r} is "
                f"{'a stream' if before.kind == 'stream' else 'filtered'}: put prefetch(workers={workers}) before "
                "filter, on a source that can be indexed, or omit workers"
            )
        return Dataset(before.then(recipe.prefetched(before, buffer, threads, workers)))

    # Walking.

    def __iter__(self) -> Walk:
        self._last = self._pass
        walk = Walk(self._recipe.text, self._recipe.stream, self._pass, self._count, self._end_pass)
        if self._resumed is not None:
            walk.set_state(self._resumed)
        return walk

    def __len__(self) -> int:
        if self._count is None:
            why = "it is endless" if self._recipe.is_endless else "its number of elements is known only after a pass"
            raise TypeError(f"{self!r} has no length: {why}")
        return self._count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Dataset.{self._recipe.text}"

    @property
    def is_endless(self) -> bool:
        """Whether iteration never ends: True after `repeat()`."""
        return self._recipe.is_endless

    @property
    def is_batched(self) -> bool:
        """False for rows of arrays without `batch`; elements of a source or generator may be batches already."""
        return self._recipe.source.arrays is None or self._recipe.is_batched

    @property
    def left(self) -> int | None:
        """Number of elements of the next walk: less than `len` after `resume`; None if not known."""
        taken = self._resumed["taken"] if self._resumed else 0
        return None if self._count is None else self._count - taken

    def resume(self, position: Position) -> Dataset:
        """Return this data set with its next walk starting at a saved position.

        Args:
            position: the result of an iterator's `get_state()`, possibly in another process.

        Raises:
            DataError: the position was saved from another data set.

        Example:
            >>> dataset = Dataset.from_arrays(np.arange(6)).shuffle(seed=3).batch(2)
            >>> walk = iter(dataset)
            >>> first, position = next(walk), walk.get_state()
            >>> [batch.tolist() for batch in dataset.resume(position)] == [batch.tolist() for batch in walk]
            True
        """
        check_position(position, self._recipe.text)
        return Dataset(self._recipe, position)

    def numbers(self) -> Iterator[Tree]:
        """Iterate over the batches without their string columns, as `fit`, `evaluate` and `predict` do.

        The first walk lists on stderr the columns that remain on the host; `on_host` returns them.
        """
        self._kept = kept = {}
        walk = iter(self)
        try:
            for batch in walk:
                numbers, strings = split(batch)
                self._report_kept(list(strings))
                # Without a known length nothing is kept: it may be more than fits into memory.
                for name, column in strings.items() if self._count is not None else ():
                    kept.setdefault(name, []).append(column)
                yield numbers
        finally:
            walk.leave()

    def on_host(self, name: str) -> np.ndarray:
        """Return a string column of the last pass, such as the ids of the rows that `predict` returned.

        The strings kept by that walk are returned; if it kept none, the pass is read again.

        Args:
            name: name of the column: "id" of elements `{"image": ..., "id": ...}`, "1" of `(image, id)`.

        Returns:
            The column as objects, `(rows,)`.

        Raises:
            DataError: there is no such string column, or the data set is endless.

        Example:
            >>> rows = {"x": np.zeros((3, 2), "float32"), "id": np.array(["a", "b", "c"])}
            >>> test = Dataset.from_arrays(rows).batch(2)
            >>> test.on_host("id").tolist()
            ['a', 'b', 'c']
        """
        if self._recipe.is_endless:
            raise DataError(
                f"{self!r} is endless, and so are its columns: call on_host of the data set before repeat()"
            )
        kept = self._kept or self._read_strings()
        if name not in kept:
            known = ", ".join(repr(column) for column in kept) or "none"
            raise DataError(f"{self!r} has no string column {name!r}; its string columns: {known}")
        return np.concatenate([np.atleast_1d(column) for column in kept[name]]).astype(object)

    def _read_strings(self) -> dict[str, list[np.ndarray]]:
        kept: dict[str, list[np.ndarray]] = {}
        for batch in Walk(self._recipe.text, self._recipe.stream, self._last, None, lambda _: None):
            for name, column in split(batch)[1].items():
                kept.setdefault(name, []).append(column)
        return kept

    def _report_kept(self, names: list[str]) -> None:
        if names and not self._has_reported:
            self._has_reported = True
            columns = f"the column {names[0]!r} remains" if len(names) == 1 else f"the columns {names} remain"
            print(
                f"anytpu: {columns} on the host: cores do not compute with strings. dataset.on_host({names[0]!r}) "
                "returns it, row by row.",
                file=sys.stderr,
            )

    @property
    def _count(self) -> int | None:
        length = self._recipe.length
        return None if length is None or length == math.inf else int(length)

    def _end_pass(self, pass_index: int) -> None:
        self._pass, self._resumed = max(self._pass, pass_index + 1), None

    def _then(self, step: DatasetStep) -> Dataset:
        return Dataset(self._recipe.then(step))

    def _then_compute(self, step: DatasetStep) -> Dataset:
        return Dataset(self._recipe.by_element().then(step))


keras_input.install(Dataset)
