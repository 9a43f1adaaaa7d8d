"""What a data set refuses before it reads anything, and what its functions may not return.

Rule: a message names the argument and its value, and says what to pass instead.
"""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from anytpu.errors import DataError, SettingError
from anytpu.pipeline.nodes import name_of

Tree = Any


def rows_of(arrays: Tree) -> int:
    """Return how many rows arrays have.

    Raises:
        DataError: none, or not all the same number.
    """
    columns = [(name_of(path), array) for path, array in jax.tree_util.tree_flatten_with_path(arrays)[0]]
    for name, array in columns:
        if array.ndim == 0:
            raise DataError(
                f"from_arrays takes arrays whose first axis counts the rows, and {name} is the single value "
                f"{array.item()!r}: pass lists of values as np.array([...])"
            )
    lengths = {len(array) for _, array in columns}
    listed = ", ".join(f"{name} has {len(array)}" for name, array in columns)
    if len(lengths) > 1:
        raise DataError(f"all arrays must have the same number of rows, but {listed}. Cut them to one length")
    if lengths != {*lengths} - {0} or not lengths:
        raise DataError(
            f"there is nothing to read: {listed or 'no array'}{' rows' if listed else ''}. Pass at least one row"
        )
    return lengths.pop()


def is_list(source: Any) -> bool:
    """Say whether a source has a length and can be indexed."""
    return all(callable(getattr(type(source), name, None)) for name in ("__len__", "__getitem__"))


def check_no_path(source: Any) -> None:
    """Refuse a path, whose letters nobody wants to read."""
    if isinstance(source, str | bytes | os.PathLike):
        raise DataError(
            f"{source!r} is a path, and a source gives what is in it: "
            f"Dataset.from_source(tpu.pipeline.records({source!r})), or tpu.pipeline.lines(...) for text"
        )


def check_iterable(source: Any) -> None:
    """Refuse a source that cannot be iterated, or only once."""
    if isinstance(source, Iterator):
        raise DataError(
            f"{source!r} can be walked over only once, and a data set is walked over for every epoch: pass what it was "
            "made of, or Dataset.from_generator(function) with the function that makes it"
        )
    if not isinstance(source, Iterable):
        raise DataError(
            f"a source has a length and can be indexed, or can be iterated, and {source!r} cannot: pass a list, "
            "tpu.pipeline.records(...), or an object with __len__ and __getitem__"
        )


def check_function(function: Any) -> None:
    """Refuse what is not a generator function: above all the generator that it returns."""
    if not callable(function):
        raise DataError(
            f"from_generator takes the function itself, to call it for each pass, not {function!r}: "
            "Dataset.from_generator(batches), not Dataset.from_generator(batches())"
        )


def check_count(name: str, count: Any, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not is_whole(count) or count < least:
        raise SettingError(f"{name} must be a whole number from {least} up, not {count!r}")


def check_seed(seed: Any, most: int) -> None:
    """Refuse a seed that is no whole number from 0 up to `most - 1`."""
    if not is_whole(seed) or not 0 <= seed < most:
        raise SettingError(f"seed must be a whole number from 0 to {most - 1}, not {seed!r}")


def check_shard(index: Any, count: Any) -> None:
    """Refuse a shard that does not exist."""
    check_count("count", count)
    if not is_whole(index) or not 0 <= index < count:
        raise SettingError(f"index must be a whole number from 0 to {count - 1}, one of {count} shards, not {index!r}")


def check_prefetch(buffer: Any, threads: Any, workers: Any) -> None:
    """Refuse numbers that no buffer, threads or workers have."""
    check_count("workers", workers, least=0)
    if buffer is not None:
        check_count("buffer", buffer, least=0)
    if threads is not None:
        check_count("threads", threads)


def is_whole(value: Any) -> bool:
    """Say whether a value is a whole number."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)


@dataclasses.dataclass(frozen=True)
class NotNone:
    """A function of the user's that must return an element: grain would leave out a None without a word.

    Attributes:
        step: the step that it is given to.
        function: the function.
    """

    step: str
    function: Callable[..., Tree]

    def __call__(self, *args: Any) -> Tree:
        """Call the function."""
        element = self.function(*args)
        if element is None:
            name = getattr(self.function, "__name__", repr(self.function))
            raise DataError(
                f"the function {name!r} of {self.step} returned None for an element: let it return the new element; "
                "filter leaves elements out"
            )
        return element
