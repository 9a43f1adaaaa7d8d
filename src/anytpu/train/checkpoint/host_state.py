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


def pack(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Json:
    """Return a value as plain JSON.

    Args:
        value: numbers, text, bytes, None, arrays, and lists, tuples, sets and dicts of them.
        name: name of the value; its arrays get names below it.
        arrays: gets the arrays by name. They are not copied.

    Raises:
        TypeError: a part has another type.

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
    if type(value) in (list, tuple, set, frozenset):
        parts = [pack(part, f"{name}/{index}", arrays) for index, part in enumerate(value)]
        return parts if type(value) is list else {_KIND: type(value).__name__, "of": parts}
    if type(value) is dict:
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: pack(part, f"{name}/{key}", arrays) for key, part in value.items()}
        pairs = [list(pair) for pair in value.items()]
        return {_KIND: "dict", "of": pack(pairs, name, arrays)}
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


_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}


def _pack_array(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Json:
    if not is_number(np.dtype(value.dtype)):
        raise TypeError(f"{name} is an array of {value.dtype}, and a checkpoint holds numbers and booleans only")
    arrays[name] = np.asarray(value)
    return {_KIND: "scalar" if isinstance(value, np.generic) else "array", "of": name}
