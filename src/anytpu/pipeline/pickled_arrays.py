"""The parts of a pickled array before it is built: names that are never called, a dtype, a shape and bytes.

Rule: an array is built only if the number of bytes matches its dtype and shape.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

MAX_AXES = 32

_DTYPE = re.compile(r"([<>=|]?)([biuf])([1248])|O[48]?")


@dataclasses.dataclass(frozen=True)
class Name:
    """A reference to a NumPy function or class in a pickle."""

    name: str


NAMES = {
    ("numpy", "ndarray"): Name("ndarray"),
    ("numpy", "dtype"): Name("dtype"),
    ("_codecs", "encode"): Name("encode"),
    ("numpy._core.multiarray", "_reconstruct"): Name("_reconstruct"),
    ("numpy._core.multiarray", "scalar"): Name("scalar"),
    ("numpy._core.numeric", "_frombuffer"): Name("_frombuffer"),
}
"""References that a pickle of arrays may contain, by module and name."""


class PickledDtype:
    """A dtype: its kind and size from the constructor, its byte order from the state."""

    def __init__(self, text: Any) -> None:
        text = text.decode("latin-1") if isinstance(text, bytes) else text
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise ValueError(f"it has arrays of the dtype {text!r:.60}")
        self.dtype = np.dtype(text.rstrip("48") if text[0] == "O" else text)

    def set_state(self, state: Any) -> None:
        """Apply the byte order of a state (version, order, subdtype, names, fields, itemsize, alignment, flags)."""
        order = state[1] if isinstance(state, tuple) and len(state) >= 5 else None
        order = order.decode("latin-1") if isinstance(order, bytes) else order
        if (
            not isinstance(order, str)
            or order not in ("<", ">", "=", "|")
            or any(field is not None for field in state[2:5])
        ):
            raise ValueError("the state of a dtype is invalid")
        if not self.dtype.hasobject:
            self.dtype = self.dtype.newbyteorder(order)


class PickledArray:
    """An array: empty after reconstruction; its state sets the dtype, the shape and the values."""

    def __init__(self) -> None:
        self._state: tuple[PickledDtype, tuple[int, ...], bool, Any] | None = None

    @classmethod
    def of(cls, values: Any, dtype: Any, shape: Any, is_fortran: bool) -> PickledArray:
        """Return an array with a dtype, a shape and values.

        Raises:
            ValueError: they do not match.
        """
        array = cls()
        array.set_state((1, shape, dtype, is_fortran, values))
        return array

    def set_state(self, state: Any) -> None:
        """Apply a state (version, shape, dtype, is_fortran, values); the oldest form has no version."""
        fields: Any = state[-4:] if isinstance(state, tuple) and len(state) in (4, 5) else (None,) * 4
        shape, dtype, is_fortran, values = fields
        if not isinstance(dtype, PickledDtype) or not _is_shape(shape) or not isinstance(is_fortran, int):
            raise ValueError("the state of an array is invalid")
        count = math.prod(shape)
        if dtype.dtype.hasobject:
            if not isinstance(values, list) or len(values) != count:
                raise ValueError(f"the values of an array of objects of shape {shape} are not a list of {count:,}")
        elif not isinstance(values, bytes) or len(values) != count * dtype.dtype.itemsize:
            content = f"{len(values):,} bytes" if isinstance(values, bytes) else f"a {type(values).__name__}"
            raise ValueError(f"an array of {dtype.dtype} of shape {shape} has {content}")
        self._state = (dtype, shape, bool(is_fortran), values)

    @property
    def length(self) -> int:
        """Length of the values: in bytes, or in objects for an array of objects."""
        return 0 if self._state is None else len(self._state[3])

    def array(self, resolve: Callable[[Any], Any]) -> np.ndarray:
        """Build the array.

        Args:
            resolve: builds each element of an array of objects from its pickled form.

        Raises:
            ValueError: the array has no state.
        """
        if self._state is None:
            raise ValueError("an array has no values")
        dtype, shape, is_fortran, values = self._state
        order = "F" if is_fortran else "C"
        if not dtype.dtype.hasobject:
            return np.frombuffer(values, dtype.dtype).reshape(shape, order=order).copy(order=order)
        array = np.empty(len(values), object)
        for index, value in enumerate(values):
            array[index] = resolve(value)
        return array.reshape(shape, order=order)


def emulate_call(name: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the result that NumPy's function would give for these arguments, without calling it.

    Raises:
        ValueError: a pickle of an array does not contain such a call.
    """
    match name, arguments:
        case Name("_reconstruct"), (Name("ndarray"), (0,), _):
            return PickledArray()
        case Name("dtype"), (text, *_):
            return PickledDtype(text)
        case Name("scalar"), (PickledDtype() as dtype, bytes(content)) if len(content) == dtype.dtype.itemsize:
            if not dtype.dtype.hasobject:
                return np.frombuffer(content, dtype.dtype)[0]
        case Name("encode"), (str(text), "latin1" | "latin-1" | b"latin1" | b"latin-1"):
            return text.encode("latin-1")
        case Name("_frombuffer"), (bytes(content), PickledDtype() as dtype, shape, "C" | "F" as order):
            return PickledArray.of(content, dtype, shape, order == "F")
    raise ValueError(f"it calls {name.name if isinstance(name, Name) else type(name).__name__} in an unknown way")


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, tuple)
        and len(shape) <= MAX_AXES
        and all(type(size) is int and 0 <= size < 2**48 for size in shape)
    )
