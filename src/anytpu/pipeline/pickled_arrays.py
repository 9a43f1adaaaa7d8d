"""A safe reader of untrusted pickles of arrays, lists and dicts.

Idea: CIFAR-10 and IMDB come as Python pickles. A pickle is a program for a stack machine that may call any function.
Even NumPy's own functions write out of bounds when called with wrong bytes. So only the opcodes of such files are
executed, by Python's unpickler in its Python form, and nothing is called. An array is built from bytes, a dtype and a
shape that match.

Source: Python's `pickletools` documents the opcodes. The forms of an array are those of `ndarray.__reduce__` and
`__reduce_ex__`, in Python 2 and 3.

Rule: an unknown opcode, name or value is an error.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from anytpu.errors import DataError

MAX_DEPTH = 32
"""Maximum nesting depth of containers."""
MAX_AXES = 32

_DTYPE = re.compile(r"([<>=|]?)([biuf])([1248])|O[48]?")
_NUMBERS = {int, float}
_LARGE_ARRAYS = "its arrays have more bytes than the file"
_LARGE_LISTS = "its lists have more numbers than the file has bytes"
_FORMAT_ERRORS = (
    *(ValueError, TypeError, LookupError, OverflowError, AttributeError, EOFError),
    *(struct.error, pickle.UnpicklingError),
)


def load(content: bytes, path: Path | str) -> Any:
    """Read a pickle of arrays, lists, tuples and dicts of numbers and strings; Python 2's strings become bytes.

    Args:
        content: the pickle.
        path: the file, for an error message.

    Raises:
        DataError: the pickle holds anything else, or is damaged.

    Example:
        >>> load(b"]K\\x01a.", "one.pickle")
        [1]
    """
    stream = io.BytesIO(content)
    try:
        return _Resolver(len(content)).value(_ArrayUnpickler(stream, len(content)).load())
    except _FORMAT_ERRORS as error:
        why = str(error)[:200] or ("the file ends" if isinstance(error, EOFError) else type(error).__name__)
    raise DataError(f"{path} cannot be read: at byte {stream.tell():,}, {why}. Download the file again")


@dataclasses.dataclass(frozen=True)
class Name:
    """A reference to a NumPy function or class in a pickle."""

    name: str


_NAMES = {
    ("numpy", "ndarray"): Name("ndarray"),
    ("numpy", "dtype"): Name("dtype"),
    ("_codecs", "encode"): Name("encode"),
    ("numpy._core.multiarray", "_reconstruct"): Name("_reconstruct"),
    ("numpy._core.multiarray", "scalar"): Name("scalar"),
    ("numpy._core.numeric", "_frombuffer"): Name("_frombuffer"),
}
"""References that a pickle of arrays may contain, by module and name."""


_STANDARD: dict[int, Any] = pickle._Unpickler.dispatch


class _Opcodes(dict[int, Any]):
    def __missing__(self, code: int) -> NoReturn:
        raise ValueError(f"it has the opcode {bytes([code])!r}, but only arrays, lists and dicts are supported")


class _ArrayUnpickler(pickle._Unpickler):
    """Python's unpickler, restricted to the opcodes, names and states of arrays, lists and dicts."""

    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]

    def __init__(self, stream: io.BytesIO, size_bytes: int) -> None:
        super().__init__(stream, fix_imports=False, encoding="bytes")
        self._size_bytes = size_bytes

    def find_class(self, module: str, name: str) -> Name:
        """Return the reference for a name that arrays need."""
        # NumPy before 2.0, and Python 2, write "numpy.core".
        key = (module.replace("numpy.core.", "numpy._core."), name)
        if key not in _NAMES:
            raise ValueError(f"it refers to {module[:80]}.{name[:80]}, but only arrays are supported")
        return _NAMES[key]

    def _skip_frame(self) -> None:
        self.read(8)

    def _push_bytearray(self) -> None:
        (size_bytes,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(min(size_bytes, self._size_bytes)))

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        if not isinstance(arguments, tuple):
            raise TypeError("arguments are not a tuple")
        self.stack[-1] = _emulate_call(self.stack[-1], arguments)

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], PickledArray | PickledDtype):
            raise TypeError(f"a {type(self.stack[-1]).__name__} cannot have a state")
        self.stack[-1].set_state(state)

    def _check_keys(self, keys: Sequence[Any]) -> None:
        # A hash of deeply nested tuples would overflow the C stack.
        for key in keys:
            if not isinstance(key, str | bytes | int):
                raise TypeError(f"a key is of type {type(key).__name__}")

    def _set_item(self) -> None:
        self._check_keys(self.stack[-2:-1])
        _STANDARD[ord("s")](self)

    def _set_items(self) -> None:
        self._check_keys(self.stack[::2])
        _STANDARD[ord("u")](self)

    def _push_dict(self) -> None:
        self._check_keys(self.stack[::2])
        _STANDARD[ord("d")](self)

    # Protocol, end, constants and numbers; strings and bytes; containers; the memo; names.
    _KEPT = b"\x80.N\x88\x89KMJIL\x8aFG" + b"SUTCB\x8eV\x8cX\x8d" + b"(]lae)t\x85\x86\x87}" + b"pqr\x94ghj" + b"c\x93"
    dispatch = _Opcodes(
        {code: _STANDARD[code] for code in _KEPT}
        | {0x95: _skip_frame, 0x96: _push_bytearray, ord("R"): _reduce, ord("b"): _build}
        | {ord("s"): _set_item, ord("u"): _set_items, ord("d"): _push_dict}
    )


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


def _emulate_call(name: Any, arguments: tuple[Any, ...]) -> Any:
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


class _Resolver:
    """Builds the arrays in a pickle's value; a container that occurs several times is built once.

    Args:
        budget: maximum total length of arrays, in bytes, and of lists of numbers, in elements. In a valid file each
            element has its own bytes. An array or list that occurs several times counts each time, because a caller
            that copies the value copies each occurrence.
    """

    def __init__(self, budget: int) -> None:
        self._budget, self._resolved = budget, {}

    def value(self, value: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"containers are nested more than {MAX_DEPTH} deep")
        if not isinstance(value, list | tuple | dict | PickledArray):
            if isinstance(value, str | bytes | int | float | np.generic | None):
                return value
            raise TypeError(f"a {type(value).__name__} is not a value")
        if isinstance(value, PickledArray):
            self._take(value.length, _LARGE_ARRAYS)
        # A list of numbers resolves to itself. This branch counts each further reference to it.
        elif isinstance(value, list) and self._resolved.get(id(value)) is value:
            self._take(len(value), _LARGE_LISTS)
        if id(value) not in self._resolved:
            self._resolved[id(value)] = self._container(value, depth + 1)
        return self._resolved[id(value)]

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, list) and _NUMBERS.issuperset(map(type, value)):
            self._take(len(value), _LARGE_LISTS)
            return value
        if isinstance(value, list | tuple):
            return type(value)(self.value(item, depth) for item in value)
        if isinstance(value, dict):
            return {key: self.value(item, depth) for key, item in value.items()}
        return value.array(lambda item: self.value(item, depth))

    def _take(self, length: int, reason: str) -> None:
        self._budget -= length
        if self._budget < 0:
            raise ValueError(reason)
