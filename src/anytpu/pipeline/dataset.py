"""`Dataset`: rows or records on their way to being batches.

Idea: a data set is a source and the steps after it, written one after the other; nothing is read before somebody
iterates. grain does the work: it maps, batches, prefetches and knows its position. What is ours is the names, the
errors, and passes that each come in an order of their own.

Rule: a step returns a new data set and leaves the old one as it was. A pass is a function of the recipe and the number
of the pass, of nothing else.

This file imports grain, JAX and Keras; `anytpu.pipeline` loads it when `Dataset` is first used.
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
from anytpu.pipeline.recipe import MOST_SEED, Recipe, Source, Step
from anytpu.pipeline.walk import Position, Walk, check_position

Tree = Any


class Dataset:
    """Elements, or batches of them, that can be walked over again and again.

    Make one with `from_arrays`, `from_source` or `from_generator`. An element is an array, or a tuple or dict of
    arrays; what Keras's `fit` takes are batches of `x`, `(x, y)` or `(x, y, sample_weight)`.

    A walk that came to its end is followed by one in another order, if the data set is shuffled; one that was left
    early is begun again. Elements are made ahead, in threads: see `prefetch`.

    Example:
        >>> x = np.arange(5, dtype="float32")
        >>> dataset = Dataset.from_arrays({"x": x}).map(lambda row: row["x"] * 2).batch(2)
        >>> [batch.tolist() for batch in dataset]
        [[0.0, 2.0], [4.0, 6.0], [8.0]]
        >>> dataset
        Dataset.from_arrays(5 rows).map().batch(2)
    """

    def __init__(self, written: Recipe, resumed: Position | None = None) -> None:
        """Take a recipe; users make a data set with one of the `from_` methods."""
        self._recipe = written
        self._resumed = resumed
        self._pass = resumed["pass"] if resumed else 0
        self._last = self._pass
        self._kept: dict[str, list[np.ndarray]] = {}
        self._has_told = False

    @classmethod
    def from_arrays(cls, arrays: Tree) -> Dataset:
        """Make a data set of the rows of arrays.

        Args:
            arrays: an array, or a tuple or dict of arrays, with equal first axes. They are not copied.

        Raises:
            DataError: there is no row, or the arrays differ in their rows.

        Example:
            >>> dataset = Dataset.from_arrays((np.zeros((3, 2)), np.arange(3)))
            >>> [int(y) for x, y in dataset]
            [0, 1, 2]
        """
        arrays = jax.tree.map(np.asarray, arrays)
        rows = checks.rows_of(arrays)
        return cls(Recipe(Source(f"from_arrays({rows} rows)", lambda: Positions(rows), lambda: rows, arrays), "rows"))

    @classmethod
    def from_source(cls, source: Any) -> Dataset:
        """Make a data set of a list of elements, or of anything that has a length and can be indexed.

        Args:
            source: such as `tpu.pipeline.records("train-*.tfrecord")`. What can be iterated but not indexed, such as
                compressed records, makes a stream.

        Raises:
            DataError: it can neither be indexed nor iterated, or only once.
        """
        checks.check_no_path(source)
        text = f"from_source({type(source).__name__})"
        if checks.is_list(source):
            return cls(Recipe(Source(text, lambda: grain.MapDataset.source(source), lambda: len(source)), "list"))
        checks.check_iterable(source)
        return cls(Recipe(Source(text, lambda: Generated(source.__iter__), lambda: None), "stream"))

    @classmethod
    def from_generator(cls, function: Callable[[], Iterable[Tree]], length: int | None = None) -> Dataset:
        """Make a data set of what a generator function yields; it runs in this process and may use anything in it.

        Args:
            function: takes nothing and returns an iterator; it is called for each pass. If it yields the same each
                time, a saved position is exact: restoring one runs the function again up to there.
            length: how many elements it yields; None: not known before a pass has ended.

        Raises:
            DataError: `function` is a generator already, which ends with its first pass.
            SettingError: `length` is no count.

        Example:
            >>> def squares():
            ...     yield from (number**2 for number in range(4))
            >>> [batch.tolist() for batch in Dataset.from_generator(squares).batch(2)]
            [[0, 1], [4, 9]]
        """
        checks.check_function(function)
        if length is not None:
            checks.check_count("length", length)
        name = getattr(function, "__name__", type(function).__name__)
        source = Source(f"from_generator({name})", lambda: Generated(function), lambda: length)
        return cls(Recipe(source, "stream"))

    # The steps.

    def shuffle(self, buffer: int | None = None, *, seed: int = 0) -> Dataset:
        """Put the elements in a random order, another one in each pass.

        Args:
            buffer: of a stream, how many elements are shuffled among each other at a time. What can be indexed is
                always shuffled whole, without being read.
            seed: of the order, from 0 up to 2**32 - 1.

        Raises:
            SettingError: a stream without `buffer`; after an endless `repeat`; the seed is out of range.
        """
        checks.check_seed(seed, MOST_SEED)
        if buffer is not None:
            checks.check_count("buffer", buffer)
        if self._recipe.kind == "stream" and buffer is None:
            raise SettingError(
                f"{self!r} is a stream, which cannot be shuffled whole: say how many elements at a time, "
                "shuffle(1000), or shuffle before filter, batch and prefetch"
            )
        if self._recipe.kind != "stream" and self._recipe.is_endless:
            raise SettingError(f"{self!r} has no end, so it cannot be shuffled whole: shuffle before repeat()")
        return self._then(recipe.shuffled(self._recipe, buffer, seed))

    def repeat(self, count: int | None = None) -> Dataset:
        """Let passes follow each other as one.

        Args:
            count: how many; None: without end.

        Raises:
            SettingError: `count` is no count, or the data set has no end already.
        """
        if count is not None:
            checks.check_count("count", count)
        if self._recipe.is_endless:
            raise SettingError(f"{self!r} has no end already: leave out the second repeat")
        return self._then(recipe.repeated(self._recipe, count))

    def map(self, function: Callable[[Tree], Tree]) -> Dataset:
        """Replace each element by what a function makes of it.

        Args:
            function: takes an element and returns one; it may be called by several threads at once. On the way it
                raises DataError if it returns None.
        """
        checked = checks.NotNone("map", function)
        return self._computing(Step("map()", lambda before, number: before(number).map(checked), computes=True))

    def random_map(self, function: Callable[[Tree, np.random.Generator], Tree], *, seed: int = 0) -> Dataset:
        """Replace each element by what a function makes of it with random numbers of the element's own.

        Args:
            function: takes an element and a NumPy generator, whose numbers follow from `seed`, the element's place and
                the pass; threads and processes do not change them.
            seed: from 0 up to 2**32 - 1.

        Example:
            >>> noisy = Dataset.from_arrays(np.zeros(2)).random_map(lambda row, random: row + random.random(), seed=1)
            >>> first = [float(row) for row in noisy]
            >>> 0 < first[0] < 1 and first[0] != first[1]
            True
        """
        checks.check_seed(seed, MOST_SEED)
        checked = checks.NotNone("random_map", function)
        return self._computing(
            Step(
                f"random_map(seed={seed})",
                lambda before, number: before(number).random_map(checked, seed=(seed + number) % MOST_SEED),
                computes=True,
            )
        )

    def filter(self, predicate: Callable[[Tree], bool]) -> Dataset:
        """Keep the elements of which a function says True. How many these are is not known before they are read."""
        return self._computing(
            Step(
                "filter()",
                lambda before, number: before(number).filter(predicate),
                lambda length: math.inf if length == math.inf else None,
                "stream" if self._recipe.kind == "stream" else "sparse",
                computes=True,
            )
        )

    def batch(self, rows: int, drop_remainder: bool = False) -> Dataset:
        """Stack so many elements to a batch; strings and bytes become columns of Python objects.

        Args:
            rows: the elements of a batch. On the way, elements of different shapes raise DataError.
            drop_remainder: leave out a last batch that is not full. `fit` on a strategy does not need that.

        Raises:
            SettingError: `rows` is no count.
        """
        checks.check_count("rows", rows)
        return self._then(recipe.batched(self._recipe, rows, drop_remainder))

    def shard(self, index: int | None = None, count: int | None = None) -> Dataset:
        """Keep one element of each `count`: what one of several hosts reads. Put it before what costs time.

        After `filter` it counts the elements that are left, so each host reads all of them and the shards are equal
        but for one; what comes out is a stream.

        Args:
            index: which, from 0; None is the number of this process, `jax.process_index()`.
            count: how many shards; None is the number of processes, `jax.process_count()`.

        Raises:
            SettingError: there is no such shard.

        Example:
            >>> [int(row) for row in Dataset.from_arrays(np.arange(5)).shard(1, 2)]
            [1, 3]
        """
        index = jax.process_index() if index is None else index
        count = jax.process_count() if count is None else count
        checks.check_shard(index, count)
        return self._then(recipe.sharded(self._recipe, index, count))

    def prefetch(self, buffer: int | None = None, *, threads: int | None = None, workers: int = 0) -> Dataset:
        """Say how elements are made ahead. Without this step threads do it, where there is anything to do.

        Args:
            buffer: how many elements, after `batch` how many batches, are made ahead; 0: each is made when it is asked
                for, by the thread that asks. None: two at least, and one a thread, or sixteen if single elements.
            threads: how many threads make them; None: one a core of this machine. A stream is read by one.
            workers: how many processes make them, for functions that hold Python's lock. Elements and order are the
                same, however many. They end with this process, however it ends. A script needs
                `if __name__ == "__main__":` around what it runs.

        Raises:
            SettingError: a number is out of range; workers are asked of a stream, or after `filter`.
        """
        checks.check_prefetch(buffer, threads, workers)
        before = self._recipe.by_element()
        if workers and before.kind != "list":
            raise SettingError(
                f"workers share out elements by their numbers, and {self!r} is "
                f"{'a stream' if before.kind == 'stream' else 'filtered'}: put prefetch(workers={workers}) before "
                "filter, on a source that can be indexed, or leave workers out"
            )
        return Dataset(before.then(recipe.prefetched(before, buffer, threads, workers)))

    # Walking.

    def __iter__(self) -> Walk:
        self._last = self._pass
        walk = Walk(self._recipe.text, self._recipe.stream, self._pass, self._count, self._passed)
        if self._resumed is not None:
            walk.set_state(self._resumed)
        return walk

    def __len__(self) -> int:
        if self._count is None:
            why = "it has no end" if self._recipe.is_endless else "only a walk can tell how many elements come"
            raise TypeError(f"{self!r} has no length: {why}")
        return self._count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Dataset.{self._recipe.text}"

    @property
    def is_endless(self) -> bool:
        """True after `repeat()`: a walk never ends."""
        return self._recipe.is_endless

    @property
    def is_batched(self) -> bool:
        """False for rows of arrays that were not batched; what a source or a generator gives may be batches already."""
        return self._recipe.source.arrays is None or self._recipe.is_batched

    @property
    def left(self) -> int | None:
        """How many elements the next walk gives: less than `len` after `resume`; None when that is not known."""
        done = self._resumed["taken"] if self._resumed else 0
        return None if self._count is None else self._count - done

    def resume(self, position: Position) -> Dataset:
        """Return this data set with its next walk going on where `get_state()` of an iterator was called.

        Args:
            position: what `get_state()` returned, perhaps in another process.

        Raises:
            DataError: it was saved from another data set.

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
        """Walk over what cores compute with: the batches without their columns of strings.

        `fit`, `evaluate` and `predict` walk so. The first walk says on stderr which columns stay on the host; `on_host`
        returns them.
        """
        self._kept = kept = {}
        walk = iter(self)
        try:
            for batch in walk:
                numbers, strings = split(batch)
                self._tell(list(strings))
                # What has no known end is not kept: it may be more than memory holds.
                for name, column in strings.items() if self._count is not None else ():
                    kept.setdefault(name, []).append(column)
                yield numbers
        finally:
            walk.leave()

    def on_host(self, name: str) -> np.ndarray:
        """Return a column of strings of the pass that was walked last: the ids of the rows that `predict` returned.

        What that walk kept is returned; where it kept nothing, the pass is read again.

        Args:
            name: of the column: "id" of elements `{"image": ..., "id": ...}`, "1" of `(image, id)`.

        Returns:
            The column as objects, `(rows,)`.

        Raises:
            DataError: there is no such column of strings, or the data set has no end.

        Example:
            >>> rows = {"x": np.zeros((3, 2), "float32"), "id": np.array(["a", "b", "c"])}
            >>> test = Dataset.from_arrays(rows).batch(2)
            >>> test.on_host("id").tolist()
            ['a', 'b', 'c']
        """
        if self._recipe.is_endless:
            raise DataError(f"{self!r} has no end, so a column of it has none: ask the data set before repeat()")
        kept = self._kept or self._read_strings()
        if name not in kept:
            known = ", ".join(repr(found) for found in kept) or "none"
            raise DataError(f"{self!r} has no column {name!r} of strings; those that it has: {known}")
        return np.concatenate([np.atleast_1d(column) for column in kept[name]]).astype(object)

    def _read_strings(self) -> dict[str, list[np.ndarray]]:
        kept: dict[str, list[np.ndarray]] = {}
        for batch in Walk(self._recipe.text, self._recipe.stream, self._last, None, lambda _: None):
            for name, column in split(batch)[1].items():
                kept.setdefault(name, []).append(column)
        return kept

    def _tell(self, names: list[str]) -> None:
        if names and not self._has_told:
            self._has_told = True
            columns = f"the column {names[0]!r} stays" if len(names) == 1 else f"the columns {names} stay"
            print(
                f"anytpu: {columns} on the host: cores do not compute with strings. dataset.on_host({names[0]!r}) "
                "returns it, row for row.",
                file=sys.stderr,
            )

    @property
    def _count(self) -> int | None:
        length = self._recipe.length
        return None if length is None or length == math.inf else int(length)

    def _passed(self, number: int) -> None:
        self._pass, self._resumed = max(self._pass, number + 1), None

    def _then(self, step: Step) -> Dataset:
        return Dataset(self._recipe.then(step))

    def _computing(self, step: Step) -> Dataset:
        return Dataset(self._recipe.by_element().then(step))


keras_input.install(Dataset)
