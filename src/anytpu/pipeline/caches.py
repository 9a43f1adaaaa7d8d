"""Stores of a data set's elements: `cache()` keeps them in memory, `cache(path)` in a file.

Idea: the first complete pass fills the store, and later passes read from it. A pass that was left early stores nothing.

Rule: a file is a TFRecord file with checksums. A record has the structure of an element as JSON, then the bytes of its
arrays. It appears when a pass is complete, and is read without executing code. Its first record names the data set;
another data set rejects it.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.errors import DataError
from anytpu.files.json_text import read_json
from anytpu.files.zips import read_exactly
from anytpu.pipeline.columns import name_of
from anytpu.pipeline.nodes import frozen
from anytpu.pipeline.storage import created
from anytpu.pipeline.tfrecord import frame, records

Tree = Any
Append = Callable[[Tree], object]

_LENGTH = struct.Struct("<Q")
_DTYPE = re.compile(r"[<>|][biuf][1248]")

_MAX_LEVELS = 60
"""Maximum nesting of an element; a dict takes three levels of JSON, and `read_json` reads at most 200."""

_TOO_LARGE = 10**4_300
"""The first integer that is refused: Python converts integers of more digits neither to text nor back."""


class MemoryCache:
    """Elements in memory; each worker process has its own."""

    def __init__(self) -> None:
        self._elements: list[Tree] | None = None

    def elements(self) -> Sequence[Tree] | None:
        """Return the elements; None before a complete pass."""
        return self._elements

    @contextlib.contextmanager
    def recorder(self) -> Iterator[Append]:
        """Yield a function that stores the next element; the store is complete if the block ends without an error."""
        # A list of its own: an incomplete pass leaves the store as it is.
        elements: list[Tree] = []
        yield elements.append
        self._elements = elements


class FileCache:
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
        """Yield a function that writes the next element; the file appears if the block ends without an error."""
        with created(self._path) as unfinished, open(unfinished, "wb") as file:
            file.write(frame(self._name.encode()))
            yield lambda element: file.write(frame(_encoded(element)))


Cache = MemoryCache | FileCache


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
        try:
            return frozen(_decoded(bytes(record)))
        except (ValueError, TypeError, KeyError, struct.error) as error:
            raise DataError(
                f"element {index} of the cache {self._path!r} cannot be read: {error}. Delete the file"
            ) from error


def _encoded(element: Tree) -> bytes:
    """Return an element as bytes: the length of its structure, the structure as JSON, and the bytes of its arrays."""
    parts: list[bytes] = []
    structure = json.dumps(_node(element, (), parts)).encode()
    return b"".join((_LENGTH.pack(len(structure)), structure, *parts))


def _node(value: Any, path: tuple[Any, ...], parts: list[bytes]) -> Any:
    """Return a part of an element as JSON, and append its bytes to `parts`; a key names its kind."""
    if len(path) > _MAX_LEVELS:
        raise DataError(
            f"a file holds elements of up to {_MAX_LEVELS} levels of dicts, lists and tuples, and {name_of(path[:1])} "
            "has more: flatten it in map, before cache"
        )
    if type(value) is int and abs(value) >= _TOO_LARGE:
        raise DataError(
            f"a file holds integers of up to 4,300 digits, and {name_of(path)} has more: convert it in map, "
            "before cache"
        )
    if isinstance(value, dict | list | tuple):
        if type(value) not in (dict, list, tuple):
            raise DataError(
                f"a file holds dicts, lists and tuples, not {type(value).__name__}: convert it in map, before cache"
            )
        if isinstance(value, dict):
            return {"dict": [[_key(key, path, parts), _node(part, (*path, key), parts)] for key, part in value.items()]}
        nodes = [_node(part, (*path, index), parts) for index, part in enumerate(value)]
        return nodes if isinstance(value, list) else {"tuple": nodes}
    if isinstance(value, bytes):
        parts.append(value)
        return {"bytes": len(value)}
    if isinstance(value, str):
        return str(value)
    if value is None or type(value) in (bool, int, float):
        return value
    return _array_node(value, path, parts)


def _array_node(value: Any, path: tuple[Any, ...], parts: list[bytes]) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "OUS" and (array.ndim or isinstance(value, np.ndarray)):
        return {
            "objects": [_node(part, (*path, index), parts) for index, part in enumerate(array.ravel().tolist())],
            "shape": array.shape,
        }
    if not _DTYPE.fullmatch(array.dtype.str):
        raise DataError(
            f"a file holds numbers of up to 64 bits and text, and {name_of(path)} is {array.dtype}: convert it in map, "
            "before cache"
        )
    parts.append(array.tobytes())
    is_array = isinstance(value, np.ndarray) or array.ndim
    return {"array": array.dtype.str, "shape": array.shape if is_array else None}


def _key(key: Any, path: tuple[Any, ...], parts: list[bytes]) -> Any:
    if type(key) not in (str, bytes, int):
        raise DataError(
            f"a file holds dicts with keys of type str or int, not {key!r}: convert it in map, before cache"
        )
    return _node(key, path, parts)


def _decoded(content: bytes) -> Tree:
    """Return the element that `_encoded` made bytes of."""
    stream = io.BytesIO(content)
    (length_bytes,) = _LENGTH.unpack(stream.read(_LENGTH.size))
    return _part(read_json(read_exactly(stream, length_bytes), max_bytes=16 * len(content)), stream)


def _part(node: Any, stream: io.BytesIO) -> Any:
    match node:
        case {"dict": items}:
            return {_part(key, stream): _part(part, stream) for key, part in items}
        case {"tuple": nodes}:
            return tuple(_part(part, stream) for part in nodes)
        case {"bytes": size_bytes}:
            return read_exactly(stream, size_bytes)
        case {"objects": nodes, "shape": shape}:
            objects = np.empty(len(nodes), object)
            for index, part in enumerate(nodes):
                objects[index] = _part(part, stream)
            return objects.reshape(shape)
        case {"array": str(name), "shape": shape} if _DTYPE.fullmatch(name):
            dtype = np.dtype(name)
            array = np.frombuffer(read_exactly(stream, math.prod(shape or ()) * dtype.itemsize), dtype)
            return array[0] if shape is None else array.reshape(shape)
        case list():
            return [_part(part, stream) for part in node]
        case dict():
            raise ValueError(f"it has a part of an unknown kind, {node!r:.100}")
    return node
