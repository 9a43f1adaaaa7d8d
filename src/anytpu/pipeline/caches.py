"""Stores of a data set's elements: `cache()` keeps them in memory, `cache(path)` in a file.

Idea: the first complete pass fills the store, and later passes read from it. A pass that was left early stores nothing.

Rule: a file is a TFRecord file of pickled elements with checksums. It appears when a pass is complete, and is read
without executing code. Its first record names the data set; another data set rejects it.
"""

from __future__ import annotations

import abc
import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from anytpu.errors import DataError
from anytpu.pipeline.columns import name_of
from anytpu.pipeline.nodes import frozen
from anytpu.pipeline.pickled_arrays import load
from anytpu.pipeline.storage import created
from anytpu.pipeline.tfrecord import frame, records

Tree = Any
Append = Callable[[Tree], None]


class Cache(abc.ABC):
    """A store of the elements of a pass."""

    @abc.abstractmethod
    def elements(self) -> Sequence[Tree] | None:
        """Return the elements; None before a complete pass."""

    @abc.abstractmethod
    def recorder(self) -> contextlib.AbstractContextManager[Append]:
        """Yield a function that stores the next element; the store is complete if the block ends without an error."""


class MemoryCache(Cache):
    """Elements in memory; each worker process has its own."""

    def __init__(self) -> None:
        self._elements: list[Tree] | None = None

    def elements(self) -> Sequence[Tree] | None:
        """Return the elements; None before a complete pass."""
        return self._elements

    @contextlib.contextmanager
    def recorder(self) -> Iterator[Append]:
        """Yield a function that stores the next element."""
        # A list of its own: an incomplete pass leaves the store as it is.
        elements: list[Tree] = []
        yield elements.append
        self._elements = elements


class FileCache(Cache):
    """Elements in a file.

    Args:
        path: the file.
        name: text of the data set, stored in the file.
    """

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    def elements(self) -> Sequence[Tree] | None:
        """Return the elements; None if the file does not exist.

        Raises:
            DataError: the file is not a cache, or that of another data set.
        """
        if not os.path.exists(self._path):
            return None
        return _CachedElements(self._path, self._name)

    @contextlib.contextmanager
    def recorder(self) -> Iterator[Append]:
        """Yield a function that writes the next element."""
        with created(self._path) as unfinished, open(unfinished, "wb") as file:
            file.write(frame(self._name.encode()))
            yield lambda element: _write(file, element)


class _CachedElements(Sequence):
    """The elements of a file, read on demand."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._records = path, records(path)
        owner = bytes(next(iter(self._records), b"")).decode(errors="replace")
        if owner != name:
            raise DataError(
                f"{path!r} is the cache of another data set, {owner[:200]}; this is {name}. Delete the file, or pass "
                "another path"
            )

    def __len__(self) -> int:
        return len(self._records) - 1  # pyright: ignore[reportArgumentType] - uncompressed records have a length

    def __getitem__(self, index: Any) -> Tree:
        record = self._records[index + 1]  # pyright: ignore[reportIndexIssue]
        return frozen(load(bytes(record), f"{self._path}, element {index}"))


def _write(file: Any, element: Tree) -> None:
    _check_containers(element)
    plain = jax.tree_util.tree_map_with_path(_plain_leaf, element)
    file.write(frame(pickle.dumps(plain, protocol=4)))


def _check_containers(tree: Tree) -> None:
    """Reject a container that could be read back only by calling its class."""
    if isinstance(tree, dict | list | tuple):
        if type(tree) not in (dict, list, tuple):
            raise DataError(
                f"a file holds dicts, lists and tuples, not {type(tree).__name__}: convert it in map, before cache"
            )
        for key in tree if isinstance(tree, dict) else ():
            if type(key) not in (str, bytes, int):
                raise DataError(
                    f"a file holds dicts with keys of type str or int, not {key!r}: convert it in map, before cache"
                )
        for part in tree.values() if isinstance(tree, dict) else tree:
            _check_containers(part)


def _plain_leaf(path: Any, leaf: Any) -> Any:
    """Return a leaf in a form that can be read without executing code; strings of NumPy become Python's."""
    if isinstance(leaf, str):
        return str(leaf)
    if isinstance(leaf, bytes):
        return bytes(leaf)
    if isinstance(leaf, int | float | None):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype.kind not in "biufO" or array.dtype.itemsize > 8:
        raise DataError(
            f"a file holds numbers of up to 64 bits and text, and {name_of(path)} is {array.dtype}: convert it in map, "
            "before cache"
        )
    return array if isinstance(leaf, np.ndarray) or array.ndim else array[()]
