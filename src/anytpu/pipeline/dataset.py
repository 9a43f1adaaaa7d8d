"""`Dataset`: a lazy input pipeline from rows or records to batches.

Idea: a data set is a source and a chain of steps; nothing is read before iteration. grain does the work. It maps,
batches, prefetches and tracks the position. This class adds the names, the errors, and a new order for each pass.

Rule: a step returns a new data set and leaves the old one unchanged. A pass depends only on the recipe and the index of
the pass.

This file imports grain, JAX and Keras; `anytpu.pipeline` loads it on first use of `Dataset`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

import grain
import jax
import numpy as np

from anytpu.errors import DataError
from anytpu.pipeline import checks, keras_input
from anytpu.pipeline.columns import rows_of, split
from anytpu.pipeline.dataset_order import zipped
from anytpu.pipeline.dataset_steps import DatasetSteps
from anytpu.pipeline.nodes import Positions
from anytpu.pipeline.recipe import SEED_LIMIT, Recipe
from anytpu.pipeline.storage import AnyPath, expand
from anytpu.pipeline.streams import Generated, Stream
from anytpu.pipeline.walk import ElementWalk, Position, check_position

Tree = Any


@final
class Dataset(DatasetSteps):
    """Elements, or batches of them, that can be iterated any number of times.

    Make one with `from_arrays`, `from_source` or `from_generator`. An element is an array, or a tuple or dict of
    arrays. Keras's `fit` takes batches of `x`, `(x, y)` or `(x, y, sample_weight)`. The methods and their arguments
    have the names of tf.data, too: `from_tensor_slices`, `batch(batch_size=32)`.

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
        self._walk: ElementWalk | None = None

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
        return cls._of_rows(arrays, f"from_arrays({rows_of(arrays, 'from_arrays')} rows)")

    @classmethod
    @checks.takes_tensorflow_names(name=None)
    def from_tensor_slices(cls, tensors: Tree) -> Dataset:
        """Make a data set from the rows of arrays; lists are arrays, as in tf.data.

        Args:
            tensors: an array or a list, or a tuple or dict of them, with first axes of equal length.

        Raises:
            DataError: there are no rows, or the numbers of rows differ.

        Example:
            >>> [int(row) for row in Dataset.from_tensor_slices([3, 4, 5])]
            [3, 4, 5]
        """
        arrays = jax.tree.map(np.asarray, tensors, is_leaf=lambda leaf: isinstance(leaf, list))
        return cls._of_rows(arrays, f"from_tensor_slices({rows_of(arrays, 'from_tensor_slices')} rows)")

    @classmethod
    @checks.takes_tensorflow_names(name=None)
    def from_tensors(cls, tensors: Tree) -> Dataset:
        """Make a data set of one element; lists are arrays, as in tf.data."""
        arrays = jax.tree.map(np.asarray, tensors, is_leaf=lambda leaf: isinstance(leaf, list))
        return cls._of_rows(jax.tree.map(lambda array: array[np.newaxis], arrays), "from_tensors()")

    @classmethod
    @checks.takes_tensorflow_names(name=None)
    def range(cls, *args: int) -> Dataset:
        """Make a data set of integers (int64), with the arguments of Python's `range`: the end, or start, end, step.

        Example:
            >>> [int(number) for number in Dataset.range(1, 10, 3)]
            [1, 4, 7]
        """
        for size in args:
            checks.check_integer("an argument of range", size)
        return cls._of_rows(np.arange(*args, dtype=np.int64), f"range({', '.join(map(str, args))})")

    @classmethod
    def _of_rows(cls, arrays: Tree, text: str) -> Dataset:
        rows = len(jax.tree.leaves(arrays)[0])
        return cls(
            Recipe(text, lambda _: Positions(rows), lambda: rows, "rows", arrays, computes=False, is_batched=False)
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
            return cls(Recipe(text, lambda _: grain.MapDataset.source(source), lambda: len(source), "list"))
        checks.check_iterable(source)
        return cls(Recipe(text, lambda _: Stream(Generated, source.__iter__), lambda: None, "stream"))

    @classmethod
    @checks.takes_tensorflow_names(
        generator="function", output_signature=None, output_types=None, output_shapes=None, name=None
    )
    def from_generator(
        cls, function: Callable[..., Iterable[Tree]], length: int | None = None, *, args: Sequence[Any] = ()
    ) -> Dataset:
        """Make a data set from the elements of a generator function, which runs in this process.

        Args:
            function: function that returns an iterator; it is called for each pass. If it yields the same each time, a
                saved position is exact: restoring it runs the function again up to that position.
            length: number of elements that it yields; None: not known before a pass has ended.
            args: arguments of the function.

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
        stream = Stream(Generated, functools.partial(function, *args))
        return cls(Recipe(f"from_generator({name})", lambda _: stream, lambda: length, "stream"))

    @classmethod
    @checks.takes_tensorflow_names(file_pattern="paths", name=None)
    def list_files(cls, paths: AnyPath | Sequence[AnyPath], shuffle: bool = True, seed: int = 0) -> Dataset:
        """Make a data set of the paths of files, as strings.

        Args:
            paths: a path, a URL, a glob pattern, or a list of them.
            shuffle: whether each pass has another order; False: in order of name.
            seed: seed of the orders, 0 to 2**32 - 1.

        Raises:
            FileError: a pattern matches nothing, or a file is missing.
        """
        checks.check_seed(seed, SEED_LIMIT)
        files = expand(paths)
        text = f"list_files({len(files)} files)"
        dataset = cls(
            Recipe(
                text,
                lambda _: grain.MapDataset.source(files),
                lambda: len(files),
                "list",
                computes=False,
                is_batched=False,
            )
        )
        return dataset.shuffle(seed=seed) if shuffle else dataset

    @staticmethod
    def zip(*datasets: Tree) -> Dataset:
        """Make elements of one element of each data set, up to the end of the shortest.

        Args:
            *datasets: the data sets; or one tuple or dict of them, possibly nested, whose structure the elements have.

        Raises:
            DataError: an argument is not a data set.

        Example:
            >>> pairs = Dataset.zip(Dataset.range(3), Dataset.range(10, 15))
            >>> [tuple(map(int, pair)) for pair in pairs]
            [(0, 10), (1, 11), (2, 12)]
        """
        structure = datasets[0] if len(datasets) == 1 else datasets
        leaves, tree = jax.tree.flatten(structure, is_leaf=lambda leaf: isinstance(leaf, Dataset))
        for leaf in leaves or [structure]:
            checks.check_dataset("zip", leaf, Dataset)
        is_flat = isinstance(structure, tuple) and len(structure) == len(leaves)
        return Dataset(zipped([leaf._recipe for leaf in leaves], None if is_flat else tree.unflatten))

    # Walking.

    def __iter__(self) -> ElementWalk:
        self._last = self._pass
        walk = ElementWalk(self._recipe.text, self._recipe.stream, self._pass, self._count, self._end_pass)
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

    def cardinality(self) -> int:
        """Return the number of elements; -1 if it is endless, -2 if the number is known only after a pass."""
        if self._recipe.is_endless:
            return -1
        return -2 if self._count is None else self._count

    def as_numpy_iterator(self) -> ElementWalk:
        """Iterate over the elements, as `iter` does."""
        return iter(self)

    @property
    def is_batched(self) -> bool:
        """False for rows of arrays without `batch`; elements of a source or generator may be batches already."""
        return self._recipe.is_batched is not False

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

    def position(self) -> Position:
        """Return the position of the walk that `numbers` runs, or of the next one, as plain JSON for `resume`."""
        walk = self._walk
        if walk is None or walk.number < self._pass:
            return self._resumed or {"dataset": self._recipe.text, "pass": self._pass, "taken": 0, "position": None}
        return walk.get_state()

    def numbers(self, start: Position | None = None) -> Iterator[Tree]:
        """Iterate over the batches without their string columns, as `fit`, `evaluate` and `predict` do.

        The first walk lists on stderr the columns that remain on the host; `on_host` returns them.

        Args:
            start: a saved position to start at, or None.
        """
        self._kept = kept = {}
        self._walk = walk = iter(self)
        if start is not None:
            walk.set_state(start)
        try:
            for batch in walk:
                numbers, strings = split(batch)
                self._report_kept(list(strings))
                # Without a known length nothing is kept: it may be more than fits into memory.
                for name, column in strings.items() if self._count is not None else ():
                    kept.setdefault(name, []).append(column)
                yield numbers
        finally:
            if self._walk is walk:
                self._walk = None
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
        for batch in ElementWalk(self._recipe.text, self._recipe.stream, self._last, None, lambda _: None):
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

    def _with(self, recipe: Recipe) -> Dataset:
        return Dataset(recipe)


keras_input.install(Dataset)
