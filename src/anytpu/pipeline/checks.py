"""Checks of a data set's arguments before anything is read, and of its functions' results.

Rule: a message names the argument and its value, and says how to correct it.
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
    """Return the common number of rows of arrays.

    Raises:
        DataError: there are no rows, or the numbers of rows differ.
    """
    columns = [(name_of(path), array) for path, array in jax.tree_util.tree_flatten_with_path(arrays)[0]]
    for name, array in columns:
        if array.ndim == 0:
            raise DataError(
                f"from_arrays takes arrays whose first axis is the rows, and {name} is the scalar "
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
    """Return whether a source has a length and can be indexed."""
    return all(callable(getattr(type(source), name, None)) for name in ("__len__", "__getitem__"))


def check_not_path(source: Any) -> None:
    """Reject a path: as a source it would be a sequence of characters."""
    if isinstance(source, str | bytes | os.PathLike):
        raise DataError(
            f"{source!r} is a path, not a source of elements. Pass a reader of the file: "
            f"Dataset.from_source(tpu.pipeline.records({source!r})), or tpu.pipeline.lines(...) for text"
        )


def check_iterable(source: Any) -> None:
    """Reject a source that cannot be iterated, or only once."""
    if isinstance(source, Iterator):
        raise DataError(
            f"{source!r} can be iterated only once, and a data set is iterated once per epoch: pass the object that it "
            "was made from, or Dataset.from_generator(function) with the function that makes it"
        )
    if not isinstance(source, Iterable):
        raise DataError(
            f"a source must have a length and an index, or be iterable, and {source!r} is neither: pass a list, "
            "tpu.pipeline.records(...), or an object with __len__ and __getitem__"
        )


def check_function(function: Any) -> None:
    """Reject a value that is not callable, above all a generator instead of its function."""
    if not callable(function):
        raise DataError(
            f"from_generator must get the function itself, which it calls for each pass, not {function!r}: "
            "Dataset.from_generator(batches), not Dataset.from_generator(batches())"
        )


def check_count(name: str, count: Any, minimum: int = 1) -> None:
    """Reject a value that is not an integer of at least `minimum`."""
    if not is_integer(count) or count < minimum:
        raise SettingError(f"{name} must be an integer of at least {minimum}, not {count!r}")


def check_seed(seed: Any, limit: int) -> None:
    """Reject a seed that is not an integer from 0 to `limit - 1`."""
    if not is_integer(seed) or not 0 <= seed < limit:
        raise SettingError(f"seed must be an integer from 0 to {limit - 1}, not {seed!r}")


def check_shard(index: Any, count: Any) -> None:
    """Reject the index of a shard that does not exist."""
    check_count("count", count)
    if not is_integer(index) or not 0 <= index < count:
        raise SettingError(f"index must be an integer from 0 to {count - 1}, for {count} shards, not {index!r}")


def check_prefetch(buffer: Any, threads: Any, workers: Any) -> None:
    """Reject an invalid size of the buffer, number of threads or number of workers."""
    check_count("workers", workers, minimum=0)
    if buffer is not None:
        check_count("buffer", buffer, minimum=0)
    if threads is not None:
        check_count("threads", threads)


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer; booleans are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)


@dataclasses.dataclass(frozen=True)
class NotNone:
    """A user's function, checked to return an element: grain silently drops elements that are None.

    Attributes:
        step: name of the step that calls it, "map" or "random_map".
        function: the user's function.
    """

    step: str
    function: Callable[..., Tree]

    def __call__(self, *args: Any) -> Tree:
        """Call the function."""
        element = self.function(*args)
        if element is None:
            name = getattr(self.function, "__name__", repr(self.function))
            raise DataError(
                f"the function {name!r} of {self.step} returned None for an element: return the new element; to drop "
                "elements, use filter"
            )
        return element
