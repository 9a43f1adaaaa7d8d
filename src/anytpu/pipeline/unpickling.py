"""A safe reader of untrusted pickles of arrays, lists and dicts.

Idea: CIFAR-10 and IMDB come as Python pickles. A pickle is a program for a stack machine that may call any function.
Even NumPy's own functions write out of bounds when called with wrong bytes. So Python's unpickler is not used. The
opcodes of such files are interpreted here, and an array is built from bytes, a dtype and a shape that match.

Source: Python's `pickletools` documents the opcodes. The forms of an array are those of `ndarray.__reduce__` and
`__reduce_ex__`, in Python 2 and 3.

Rule: an unknown opcode, name or value is an error; nothing is called.
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.errors import DataError
from anytpu.pipeline.pickled_arrays import NAMES, PickledArray, PickledDtype, emulate_call

MAX_STACK = 100_000
"""Maximum number of values and marks on the stack; Python's pickler uses some thousands."""
MAX_DEPTH = 32
"""Maximum nesting depth of containers."""

_NUMBERS = {int, float}
_MAX_CACHED = 100_000
_INTEGERS = re.compile(rb"(?:K.|M..|J....){1,4096}", re.DOTALL)
_INTEGER = re.compile(rb"K.|M..|J....", re.DOTALL)
_LARGE_ARRAYS = "its arrays have more bytes than the file"
_LARGE_LISTS = "its lists have more numbers than the file has bytes"
_FORMAT_ERRORS = (ValueError, TypeError, LookupError, OverflowError, struct.error)


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
    machine = _StackMachine(content)
    try:
        return _Resolver(len(content)).value(machine.run())
    except _FORMAT_ERRORS as error:
        why = f"at byte {machine.offset:,}, {str(error)[:200] or type(error).__name__}"
    raise DataError(f"{path} cannot be read: {why}. Download the file again")


class _StackMachine:
    """The stack machine of the pickle format.

    Attributes:
        offset: byte offset of the current opcode.
    """

    def __init__(self, content: bytes) -> None:
        self.offset = self._next = 0
        self._content = content
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._integers = _IntegerCache()

    def run(self) -> Any:
        """Interpret the pickle and return its value."""
        while True:
            self.offset = self._next
            # Most of a file is lists of integers, so a run of integer opcodes is handled at once.
            if run := _INTEGERS.match(self._content, self._next):
                self._next = run.end()
                self._stack.extend(map(self._integers.__getitem__, _INTEGER.findall(run.group())))
                self._check_stack()
                continue
            code = self._take(1)
            if code == b".":
                return self._pop()
            if code not in _OPCODES:
                raise ValueError(f"it has the opcode {code!r}, but only arrays, lists and dicts are supported")
            _OPCODES[code](self)

    def _take(self, size_bytes: int) -> bytes:
        content = self._content[self._next : self._next + size_bytes]
        if len(content) < size_bytes:
            raise ValueError("the file ends")
        self._next += size_bytes
        return content

    def _counted(self, form: str) -> bytes:
        """Return bytes that are preceded by their length, in a `struct` format."""
        (size_bytes,) = struct.unpack(form, self._take(struct.calcsize(form)))
        if size_bytes > len(self._content):
            raise ValueError("the file ends")
        return self._take(size_bytes)

    def _line(self) -> bytes:
        end = self._content.find(b"\n", self._next)
        if end < 0:
            raise ValueError("the file ends")
        return self._take(end + 1 - self._next)[:-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)
        self._check_stack()

    def _check_stack(self) -> None:
        if len(self._stack) + len(self._marks) > MAX_STACK:
            raise ValueError(f"the stack has more than {MAX_STACK:,} values")

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("a value is missing")
        return self._stack.pop()

    def _mark(self) -> None:
        self._marks.append(len(self._stack))
        self._check_stack()

    def _above_mark(self) -> list[Any]:
        if not self._marks:
            raise ValueError("a mark is missing")
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _top(self, kind: type) -> Any:
        value = self._pop()
        self._stack.append(value)
        if type(value) is not kind:
            raise TypeError(f"a {kind.__name__} is missing")
        return value

    def _tuple(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._push(tuple(reversed(values)))

    def _append(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def _set_items(self, values: list[Any]) -> None:
        if len(values) % 2:
            raise ValueError("a key has no value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes | int):
                raise TypeError(f"a key is of type {type(key).__name__}")
            self._top(dict)[key] = value

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._set_items([key, value])

    def _push_dict(self) -> None:
        values = self._above_mark()
        self._push({})
        self._set_items(values)

    def _put(self, index: int) -> None:
        self._memo[index] = self._pop()
        self._push(self._memo[index])

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise ValueError(f"it refers to memo entry {index}, which is not set")
        self._push(self._memo[index])

    def _push_name(self, module: str, name: str) -> None:
        # NumPy before 2.0, and Python 2, write "numpy.core".
        key = (module.replace("numpy.core.", "numpy._core."), name)
        if key not in NAMES:
            raise ValueError(f"it refers to {module[:80]}.{name[:80]}, but only arrays are supported")
        self._push(NAMES[key])

    def _push_stack_name(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise TypeError("a name is not text")
        self._push_name(module, name)

    def _reduce(self) -> None:
        arguments, name = self._pop(), self._pop()
        if not isinstance(arguments, tuple):
            raise TypeError("arguments are not a tuple")
        self._push(emulate_call(name, arguments))

    def _build(self) -> None:
        state, built = self._pop(), self._pop()
        if not isinstance(built, PickledArray | PickledDtype):
            raise TypeError(f"a {type(built).__name__} cannot have a state")
        built.set_state(state)
        self._push(built)


class _IntegerCache(dict):
    """Integers by opcode and argument; the first `_MAX_CACHED` distinct ones are cached."""

    def __missing__(self, code: bytes) -> int:
        value = int.from_bytes(code[1:], "little", signed=code[:1] == b"J")
        if len(self) < _MAX_CACHED:
            self[code] = value
        return value


def _number(line: bytes) -> int | bool:
    return line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L"))


def _quoted(line: bytes) -> bytes:
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a string has no quotes")
    return codecs.escape_decode(line[1:-1])[0]  # pyright: ignore[reportReturnType]


def _long(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


_OPCODES: dict[bytes, Callable[[_StackMachine], Any]] = {
    # Protocol and frame headers.
    b"\x80": lambda m: m._take(1),
    b"\x95": lambda m: m._take(8),
    # Constants and numbers.
    b"N": lambda m: m._push(None),
    b"\x88": lambda m: m._push(True),
    b"\x89": lambda m: m._push(False),
    b"K": lambda m: m._take(1),  # truncated: complete integers match `_INTEGERS`
    b"M": lambda m: m._take(2),
    b"J": lambda m: m._take(4),
    b"I": lambda m: m._push(_number(m._line())),
    b"L": lambda m: m._push(_number(m._line())),
    b"\x8a": lambda m: m._push(_long(m._counted("<B"))),
    b"F": lambda m: m._push(float(m._line())),
    b"G": lambda m: m._push(struct.unpack(">d", m._take(8))[0]),
    # Strings and bytes.
    b"S": lambda m: m._push(_quoted(m._line())),
    b"U": lambda m: m._push(m._counted("<B")),
    b"T": lambda m: m._push(m._counted("<I")),
    b"C": lambda m: m._push(m._counted("<B")),
    b"B": lambda m: m._push(m._counted("<I")),
    b"\x8e": lambda m: m._push(m._counted("<Q")),
    b"\x96": lambda m: m._push(m._counted("<Q")),
    b"V": lambda m: m._push(m._line().decode("raw-unicode-escape")),
    b"\x8c": lambda m: m._push(m._counted("<B").decode("utf-8", "surrogatepass")),
    b"X": lambda m: m._push(m._counted("<I").decode("utf-8", "surrogatepass")),
    b"\x8d": lambda m: m._push(m._counted("<Q").decode("utf-8", "surrogatepass")),
    # Containers.
    b"(": lambda m: m._mark(),
    b"]": lambda m: m._push([]),
    b"l": lambda m: m._push(m._above_mark()),
    b"a": lambda m: m._append([m._pop()]),
    b"e": lambda m: m._append(m._above_mark()),
    b")": lambda m: m._push(()),
    b"t": lambda m: m._push(tuple(m._above_mark())),
    b"\x85": lambda m: m._tuple(1),
    b"\x86": lambda m: m._tuple(2),
    b"\x87": lambda m: m._tuple(3),
    b"}": lambda m: m._push({}),
    b"d": lambda m: m._push_dict(),
    b"s": lambda m: m._set_item(),
    b"u": lambda m: m._set_items(m._above_mark()),
    # The memo.
    b"p": lambda m: m._put(int(m._line())),
    b"q": lambda m: m._put(m._take(1)[0]),
    b"r": lambda m: m._put(struct.unpack("<I", m._take(4))[0]),
    b"\x94": lambda m: m._put(len(m._memo)),
    b"g": lambda m: m._get(int(m._line())),
    b"h": lambda m: m._get(m._take(1)[0]),
    b"j": lambda m: m._get(struct.unpack("<I", m._take(4))[0]),
    # Arrays and dtypes.
    b"c": lambda m: m._push_name(m._line().decode(), m._line().decode()),
    b"\x93": lambda m: m._push_stack_name(),
    b"R": lambda m: m._reduce(),
    b"b": lambda m: m._build(),
}


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
