"""`pack` and `unpack`: Python values of the host as plain JSON and named arrays.

Idea: the state of callbacks, of random generators and of data sets is numbers, text, lists, dicts and arrays. JSON
holds all but the arrays; these go where the weights are, with a digest.

Rule: `unpack` returns equal values of the same types. A value of another type is not stored: `pack` raises TypeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from anytpu.train.checkpoint.manifest import Json, is_number

_KIND = "__kind__"

_MAX_DEPTH = 100
"""Maximum depth of lists and dicts in one another: far below the limit of Python's stack."""


def pack(value: Any, name: str, arrays: dict[str, np.ndarray], around: tuple[int, ...] = ()) -> Json:
    """Return a value as plain JSON.

    Args:
        value: numbers, text, bytes, None, arrays, and lists, tuples, sets and dicts of them.
        name: name of the value; its arrays get names below it.
        arrays: gets the arrays by name. They are not copied.
        around: the ids of the lists and dicts that the value is in.

    Raises:
        TypeError: a part has another type, or holds itself.

    Example:
        >>> arrays = {}
        >>> pack({"wait": 2, "best": (1.5, np.zeros(3))}, "stop", arrays)
        {'wait': 2, 'best': {'__kind__': 'tuple', 'of': [1.5, {'__kind__': 'array', 'of': 'stop/best/1'}]}}
        >>> arrays["stop/best/1"].shape
        (3,)
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is bytes:
        return {_KIND: "bytes", "of": value.hex()}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _pack_array(value, name, arrays)
    if is_endless(value, around):
        raise TypeError(f"{name:.80} holds itself, or is more than {_MAX_DEPTH} lists and dicts deep")
    inside = (*around, id(value))
    if type(value) in (list, tuple, set, frozenset):
        parts = [pack(part, f"{name}/{index}", arrays, inside) for index, part in enumerate(value)]
        return parts if type(value) is list else {_KIND: type(value).__name__, "of": parts}
    if type(value) is dict:
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: pack(part, f"{name}/{key}", arrays, inside) for key, part in value.items()}
        pairs = [list(pair) for pair in value.items()]
        return {_KIND: "dict", "of": pack(pairs, name, arrays, inside)}
    raise TypeError(
        f"{name} is a {type(value).__name__}, and a checkpoint holds numbers, text, bytes, arrays, lists and dicts"
    )


def unpack(packed: Json, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the value that `pack` made this JSON of; `arrays` has its arrays by name."""
    if isinstance(packed, list):
        return [unpack(part, arrays) for part in packed]
    if not isinstance(packed, dict):
        return packed
    kind = packed.get(_KIND)
    if kind is None:
        return {key: unpack(part, arrays) for key, part in packed.items()}
    if kind == "array":
        return arrays[packed["of"]]
    if kind == "scalar":
        return arrays[packed["of"]][()]
    if kind == "bytes":
        return bytes.fromhex(packed["of"])
    if kind == "dict":
        return dict(unpack(packed["of"], arrays))
    return _SEQUENCES[kind](unpack(packed["of"], arrays))


def copied(value: Any, around: tuple[int, ...] = ()) -> Any:
    """Return a value that does not change with the lists, dicts and arrays in this one. Its other parts are the same.

    Example:
        >>> losses = {"train": [0.5]}
        >>> before = copied(losses)
        >>> losses["train"].append(0.25)
        >>> before
        {'train': [0.5]}
    """
    if isinstance(value, np.ndarray):
        return value.copy() if value.flags.writeable else value
    if type(value) not in (dict, list, tuple, set) or is_endless(value, around):
        return value
    inside = (*around, id(value))
    if type(value) is dict:
        return {key: copied(part, inside) for key, part in value.items()}
    return type(value)(copied(part, inside) for part in value)


def is_endless(value: Any, around: tuple[int, ...]) -> bool:
    """Return whether a value holds itself or is too deep, from the ids of the lists and dicts that it is in."""
    return id(value) in around or len(around) == _MAX_DEPTH


def refilled(old: Any, new: Any) -> Any:
    """Give a list, a dict, a set or an array the content of another, and return it; return `new` if that is impossible.

    Example:
        >>> seen = [1]
        >>> refilled(seen, [1, 2]) is seen, seen
        (True, [1, 2])
    """
    if type(old) is not type(new):
        return new
    if isinstance(old, dict):
        parts = {key: refilled(old.get(key), part) for key, part in new.items()}
        old.clear()
        old.update(parts)
    elif isinstance(old, list):
        old[:] = [*map(refilled, old, new), *new[len(old) :]]
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, np.ndarray) and (old.shape, old.dtype) == (new.shape, new.dtype) and old.flags.writeable:
        old[...] = new
    else:
        return new
    return old


_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}


def _pack_array(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Json:
    if not is_number(np.dtype(value.dtype)):
        raise TypeError(f"{name} is an array of {value.dtype}, and a checkpoint holds numbers and booleans only")
    arrays[name] = np.asarray(value)
    return {_KIND: "scalar" if isinstance(value, np.generic) else "array", "of": name}
