"""Pickles of arrays, lists and dicts, from files that somebody else wrote.

Idea: CIFAR-10 and IMDB come as Python pickles. A pickle is a program for a stack machine which may call anything, and
even NumPy's own functions write outside of an array when they are called with the wrong bytes. So Python's unpickler is
not used: the opcodes that such files consist of are interpreted here, and arrays are made of bytes, a dtype and a shape
that fit each other.

Source: the opcodes are documented in Python's `pickletools`; the forms of an array are what `ndarray.__reduce__` and
`__reduce_ex__` give, in Python 2 and 3.

Rule: an opcode, a name or a value that the known forms do not have ends the reading; nothing is called.
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
from anytpu.pipeline.pickled_arrays import NAMES, PickledArray, PickledDtype, called

MAX_STACK = 100_000
"""Values that wait on the stack at once; Python's pickler leaves some thousand."""
MAX_DEPTH = 32
"""Containers in containers."""

_NUMBERS = {int, float}
_MAX_KEPT = 100_000
_INTEGERS = re.compile(rb"(?:K.|M..|J....){1,4096}", re.DOTALL)
_INTEGER = re.compile(rb"K.|M..|J....", re.DOTALL)
_LARGE_ARRAYS = "its arrays have more bytes than the file"
_LARGE_LISTS = "its lists have more numbers than the file has bytes"
_WRONG = (ValueError, TypeError, LookupError, OverflowError, struct.error)


def load(content: bytes, path: Path | str) -> Any:
    """Read a pickle of arrays, lists, tuples and dicts of numbers and strings; Python 2's strings come as bytes.

    Args:
        content: the pickle.
        path: the file, for an error.

    Raises:
        DataError: it holds anything else, or is damaged.

    Example:
        >>> load(b"]K\\x01a.", "one.pickle")
        [1]
    """
    machine = _Machine(content)
    try:
        return _Resolving(len(content)).value(machine.run())
    except _WRONG as error:
        why = f"at byte {machine.place:,}, {str(error)[:200] or type(error).__name__}"
    raise DataError(f"{path} cannot be read: {why}. Get the file anew")


class _Machine:
    """The stack machine.

    Attributes:
        place: the byte of the opcode that is worked on.
    """

    def __init__(self, content: bytes) -> None:
        self.place = self._next = 0
        self._content = content
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._integers = _Integers()

    def run(self) -> Any:
        """Return the value that the pickle leaves."""
        while True:
            self.place = self._next
            # Most of a file is lists of integers: a run of them is taken at once.
            if run := _INTEGERS.match(self._content, self._next):
                self._next = run.end()
                self._stack.extend(map(self._integers.__getitem__, _INTEGER.findall(run.group())))
                self._check_room()
                continue
            code = self._take(1)
            if code == b".":
                return self._pop()
            if code not in _OPCODES:
                raise ValueError(f"it has the opcode {code!r}, and only arrays, lists and dicts are read")
            _OPCODES[code](self)

    def _take(self, size_bytes: int) -> bytes:
        found = self._content[self._next : self._next + size_bytes]
        if len(found) < size_bytes:
            raise ValueError("the file ends")
        self._next += size_bytes
        return found

    def _counted(self, form: str) -> bytes:
        """Return the bytes whose number stands before them."""
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
        self._check_room()

    def _check_room(self) -> None:
        if len(self._stack) + len(self._marks) > MAX_STACK:
            raise ValueError(f"more than {MAX_STACK:,} values wait at once")

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("a value is missing")
        return self._stack.pop()

    def _mark(self) -> None:
        self._marks.append(len(self._stack))
        self._check_room()

    def _above_mark(self) -> list[Any]:
        if not self._marks:
            raise ValueError("a mark is missing")
        place = self._marks.pop()
        found = self._stack[place:]
        del self._stack[place:]
        return found

    def _top(self, kind: type) -> Any:
        found = self._pop()
        self._stack.append(found)
        if type(found) is not kind:
            raise TypeError(f"a {kind.__name__} is missing")
        return found

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

    def _made_dict(self) -> None:
        values = self._above_mark()
        self._push({})
        self._set_items(values)

    def _put(self, number: int) -> None:
        self._memo[number] = self._pop()
        self._push(self._memo[number])

    def _get(self, number: int) -> None:
        if number not in self._memo:
            raise ValueError(f"it asks for value {number}, and none was kept there")
        self._push(self._memo[number])

    def _name(self, module: str, name: str) -> None:
        # Their module before NumPy 2, and in Python 2.
        found = (module.replace("numpy.core.", "numpy._core."), name)
        if found not in NAMES:
            raise ValueError(f"it asks for {module[:80]}.{name[:80]}, and only arrays are read")
        self._push(NAMES[found])

    def _stack_name(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise TypeError("a name is no text")
        self._name(module, name)

    def _reduce(self) -> None:
        arguments, name = self._pop(), self._pop()
        if not isinstance(arguments, tuple):
            raise TypeError("arguments are no tuple")
        self._push(called(name, arguments))

    def _build(self) -> None:
        state, built = self._pop(), self._pop()
        if not isinstance(built, PickledArray | PickledDtype):
            raise TypeError(f"a state is given to a {type(built).__name__}")
        built.set_state(state)
        self._push(built)


class _Integers(dict):
    """The integer of each opcode with its argument; the first ones that come are made once."""

    def __missing__(self, code: bytes) -> int:
        found = int.from_bytes(code[1:], "little", signed=code[:1] == b"J")
        if len(self) < _MAX_KEPT:
            self[code] = found
        return found


def _number(line: bytes) -> int | bool:
    return line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L"))


def _quoted(line: bytes) -> bytes:
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a string has no quotes")
    return codecs.escape_decode(line[1:-1])[0]  # pyright: ignore[reportReturnType]


def _long(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


_OPCODES: dict[bytes, Callable[[_Machine], Any]] = {
    # What frames the pickle.
    b"\x80": lambda m: m._take(1),
    b"\x95": lambda m: m._take(8),
    # Constants and numbers.
    b"N": lambda m: m._push(None),
    b"\x88": lambda m: m._push(True),
    b"\x89": lambda m: m._push(False),
    b"K": lambda m: m._take(1),  # whole ones were taken before
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
    b"d": lambda m: m._made_dict(),
    b"s": lambda m: m._set_item(),
    b"u": lambda m: m._set_items(m._above_mark()),
    # Values that come again.
    b"p": lambda m: m._put(int(m._line())),
    b"q": lambda m: m._put(m._take(1)[0]),
    b"r": lambda m: m._put(struct.unpack("<I", m._take(4))[0]),
    b"\x94": lambda m: m._put(len(m._memo)),
    b"g": lambda m: m._get(int(m._line())),
    b"h": lambda m: m._get(m._take(1)[0]),
    b"j": lambda m: m._get(struct.unpack("<I", m._take(4))[0]),
    # Arrays and dtypes.
    b"c": lambda m: m._name(m._line().decode(), m._line().decode()),
    b"\x93": lambda m: m._stack_name(),
    b"R": lambda m: m._reduce(),
    b"b": lambda m: m._build(),
}


class _Resolving:
    """Makes the arrays of what a pickle left; a container that comes several times is made once.

    Args:
        room: bytes and objects that the arrays and the lists of numbers may have together. Each has its own in an
            honest file. One that comes several times counts each time, since whoever copies it copies each.
    """

    def __init__(self, room: int) -> None:
        self._room, self._done = room, {}

    def value(self, value: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} containers lie in each other")
        if not isinstance(value, list | tuple | dict | PickledArray):
            if isinstance(value, str | bytes | int | float | np.generic | None):
                return value
            raise TypeError(f"a {type(value).__name__} is no value")
        if isinstance(value, PickledArray):
            self._take(value.length, _LARGE_ARRAYS)
        elif isinstance(value, list) and self._done.get(id(value)) is value:
            self._take(len(value), _LARGE_LISTS)
        if id(value) not in self._done:
            self._done[id(value)] = self._container(value, depth + 1)
        return self._done[id(value)]

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, list) and _NUMBERS.issuperset(map(type, value)):
            self._take(len(value), _LARGE_LISTS)
            return value
        if isinstance(value, list | tuple):
            return type(value)(self.value(one, depth) for one in value)
        if isinstance(value, dict):
            return {key: self.value(one, depth) for key, one in value.items()}
        return value.array(lambda one: self.value(one, depth))

    def _take(self, length: int, reason: str) -> None:
        self._room -= length
        if self._room < 0:
            raise ValueError(reason)
