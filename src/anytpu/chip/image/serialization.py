"""Records of the chip (networks, images, host steps) as JSON values and a list of arrays, and back.

Idea: a record is an object with a value for each of its fields, a node also with the name of its class. The declared
types of the fields say how to read them, so one pair of functions serves all records. An array, or the operations of a
host step, is written as its index in a list. A value that is used several times is stored once.

Rule: the result contains no code. An unknown class, field or index is an error, and so is a value of another type than
its field declares.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.graph.nodes import HostStep, Node
from anytpu.chip.image.image import Service
from anytpu.chip.network import operations
from anytpu.chip.network.operations import NONSENSE, HostOperations
from anytpu.errors import ChipError
from anytpu.files.memory import check_ratio
from anytpu.files.npy import named_dtype

_Record = typing.TypeVar("_Record")


class RecordEncoder:
    """Converts records to JSON values.

    Attributes:
        arrays: the arrays of the records so far, by index.
        steps: the operations of their host steps, by index, as JSON values.
    """

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.steps: list[Any] = []
        self._known: dict[int, Any] = {}

    def value(self, value: Any) -> Any:
        """Return a record, or a value of a field, as JSON values."""
        if isinstance(value, HostOperations):
            if id(value) not in self._known:
                fields = self.fields(value)
                self._known[id(value)] = {"steps": len(self.steps)}
                self.steps.append(fields)
            return self._known[id(value)]
        if isinstance(value, np.ndarray):
            if id(value) not in self._known:
                self._known[id(value)] = {"array": len(self.arrays)}
                self.arrays.append(value)
            return self._known[id(value)]
        if isinstance(value, Node):
            return {"node": type(value).__name__, **self.fields(value)}
        if dataclasses.is_dataclass(value):
            return self.fields(value)
        if isinstance(value, Mapping):
            return {name: self.value(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, np.dtype):
            return value.name
        return value.item() if isinstance(value, np.generic) else value

    def fields(self, record: Any, *without: str) -> dict[str, Any]:
        """Return the fields of a record, but for some, as JSON values."""
        names = [field.name for field in dataclasses.fields(record) if field.name not in without]
        return {name: self.value(getattr(record, name)) for name in names}


def fault_in_size(step: HostStep, written_bytes: int, batch: int = 1) -> str | None:
    """Return the fault of a host step that takes too much memory, as a sentence, or None.

    A step is computed in pieces of the rows that it was traced for, however few rows there are. A small file may name
    any number, so the values of a piece count as what the file unpacks to. So do the results of a whole batch.

    Args:
        step: the step.
        written_bytes: size of the file or of the text that the step is written in.
        batch: rows of a batch of the program.
    """
    steps: HostOperations = step.steps
    bounds = (steps.rows, "at a time", steps.size_bytes), (batch, "in all", steps.total_bytes(batch))
    for rows, what, needed in bounds:
        try:
            check_ratio(written_bytes, needed)
        except ValueError as error:
            return f"The host's step {step.name!r:.100} computes {rows:,} rows {what}, which is too much: {error}."
    return None


class _Mismatch(Exception):
    """A value is not of its declared type."""


class RecordDecoder:
    """Converts the JSON values of `RecordEncoder` back to records.

    Args:
        arrays: all arrays, by index.
        steps: the operations of all host steps, by index.
        written_bytes: size of the file or of the text that the values are from.
        batch: rows of a batch of the program.

    Raises:
        ChipError: a host step is invalid.
    """

    def __init__(self, arrays: Sequence[np.ndarray], steps: Sequence[Any], written_bytes: int, batch: Any):
        # Another batch than a positive integer is refused when the program is run.
        self._batch = batch if type(batch) is int and batch > 0 else 1
        self._arrays, self._written_bytes = arrays, written_bytes
        self._steps = readable(lambda: [self._operations(described) for described in steps])

    def record(self, kind: type[_Record], described: Mapping[str, Any], **more: Any) -> _Record:
        """Return a record from its JSON values.

        Args:
            kind: its class.
            described: its JSON values.
            **more: fields that the JSON values leave out.

        Raises:
            ChipError: the values are invalid.
        """
        return readable(lambda: self._record(kind, described, more))

    def _operations(self, described: Mapping[str, Any]) -> HostOperations:
        made = self._record(HostOperations, described, {})
        operations.check(made)
        return made

    def _record(self, kind: type[Any], described: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
        fields, hints = {}, _hints(kind)
        if not isinstance(described, Mapping):
            raise TypeError(f"a {kind.__name__} is {described!r:.60}")
        for name, value in described.items():
            if name not in hints:
                raise TypeError(f"a {kind.__name__} has no {name!r:.60}")
            try:
                fields[name] = self._value(hints[name], value)
            except _Mismatch:
                raise TypeError(f"the {name} of a {kind.__name__} is {value!r:.60}") from None
        made = kind(**fields, **more)
        if isinstance(made, Service) and not len(made.inputs) == len(made.step.inputs) == len(
            made.step.steps.arguments
        ):
            raise ValueError(f"{made.step.name!r:.100} has {len(made.step.inputs)} inputs, bound to {len(made.inputs)}")
        if isinstance(made, HostStep) and (fault := fault_in_size(made, self._written_bytes, self._batch)) is not None:
            raise ChipError(fault)
        return made

    def _value(self, hint: Any, value: Any) -> Any:
        """Return a value of a declared type; an integer is a float, a boolean is no integer."""
        kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
        if kind is Any or (kind is types.NoneType and value is None):
            return value
        if kind is types.UnionType:
            return self._either(parts, value)
        if kind is typing.Literal and type(value) is str and value in parts:
            return value
        if kind is tuple and isinstance(value, list):
            each = parts[:1] * len(value) if parts[-1] is ... else parts
            if len(each) == len(value):
                return tuple(map(self._value, each, value))
        if isinstance(value, Mapping):
            return self._of_object(kind, parts, value)
        if kind is np.dtype:
            return named_dtype(value)
        if type(value) is kind or (kind is float and type(value) is int):
            return value
        raise _Mismatch

    def _either(self, parts: Sequence[Any], value: Any) -> Any:
        for part in parts:
            try:
                return self._value(part, value)
            except _Mismatch:
                continue
        raise _Mismatch

    def _of_object(self, kind: Any, parts: Sequence[Any], value: Mapping[str, Any]) -> Any:
        if kind is np.ndarray:
            return self._arrays[value["array"]]
        if kind is HostOperations:
            return self._steps[value["steps"]]
        if isinstance(kind, type) and issubclass(kind, Node):
            made = self._record(_NODES[value["node"]], {name: value[name] for name in value if name != "node"}, {})
            if not isinstance(made, kind):
                raise TypeError(f"{type(made).__name__} is no {kind.__name__}")
            return made
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self._record(kind, value, {})
        if kind is Mapping:
            return {name: self._value(parts[1], item) for name, item in value.items()}
        raise _Mismatch


_NODES: dict[str, type[Node]] = {node.__name__: node for node in Node.__subclasses__()}


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    # The graph does not know the operations of its host steps.
    return {**typing.get_type_hints(kind), **({"steps": HostOperations} if kind is HostStep else {})}


def readable(read: typing.Callable[[], _Record]) -> _Record:
    """Return `read()`; if the values that it reads make no sense, raise `ChipError`."""
    try:
        return read()
    except ChipError:
        raise
    except NONSENSE as error:
        # The error may quote a value as long as the file.
        why = f"{type(error).__name__}: {error}"[:300]
        raise ChipError(f"Its description is invalid ({why}).") from error


def join_arrays(arrays: Sequence[np.ndarray]) -> tuple[list[Any], bytes]:
    """Return the dtypes and shapes of arrays, and their concatenated bytes, each aligned to 16 bytes.

    Raises:
        ChipError: an array contains neither numbers nor booleans.

    Example:
        >>> join_arrays([np.int16([1, 2])])[0]
        [['int16', [2]]]
    """
    listed, parts = [], []
    for array in arrays:
        if array.dtype.kind not in "biuf":
            raise ChipError(f"An array of {array.dtype.name} cannot be written: only integers and floats can.")
        listed.append([array.dtype.name, list(array.shape)])
        plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        parts += [plain, bytes(-len(plain) % 16)]
    return listed, b"".join(parts)


def arrays_bytes(listed: Sequence[Any]) -> int:
    """Return the size in bytes of the arrays that `join_arrays` listed; raise `ChipError` if the list is invalid."""
    return readable(lambda: sum(map(_array_bytes, listed)))


def split_arrays(listed: Sequence[Any], content: bytes) -> list[np.ndarray]:
    """Return the arrays, read-only, from the result of `join_arrays`.

    Raises:
        ChipError: the list is invalid, or `content` has another size.
    """
    return readable(lambda: _split(listed, content))


def _array_bytes(entry: Sequence[Any]) -> int:
    name, shape = entry
    dtype = named_dtype(name)
    if dtype.kind not in "biuf":
        raise TypeError(f"arrays of {name}")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    return -(-math.prod(shape) * dtype.itemsize // 16) * 16


def _split(listed: Sequence[Any], content: bytes) -> list[np.ndarray]:
    arrays, offset = [], 0
    if (total := sum(map(_array_bytes, listed))) != len(content):
        raise ValueError(f"{len(content)} bytes, and the arrays that are listed take {total}")
    for name, shape in listed:
        plain = np.frombuffer(content, named_dtype(name).newbyteorder("<"), math.prod(shape), offset)
        arrays.append(plain.reshape(shape).astype(named_dtype(name), copy=False))
        offset += _array_bytes((name, shape))
    return arrays
