"""Serialize the chip's records (quantized networks, services, bindings) to JSON values and a list of arrays.

Idea: a node is serialized as its class name and its fields, so one pair of functions serves all classes. An array or a
host step is serialized as its index in a list. An array that is used several times is stored once.

Rule: the result contains no code. An unknown class, field or index is an error, and so is a field of another type than
its class declares.
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

from anytpu.chip.graph import nodes
from anytpu.chip.graph.nodes import HostStep, Network, Node, Port, Quantization, Shape
from anytpu.chip.image.image import Binding, Service
from anytpu.chip.network import operations
from anytpu.errors import ChipError
from anytpu.files.memory import check_ratio
from anytpu.files.npy import named_dtype

_Kind = typing.TypeVar("_Kind")

_NODES: dict[str, type[Node]] = {
    f"Q{node.__name__}": node
    for node in (
        nodes.Convolution,
        nodes.Pool,
        nodes.Elementwise,
        nodes.Table,
        nodes.Concatenate,
        nodes.Slice,
        nodes.Reshape,
        nodes.HostStep,
    )
}
"""The nodes by their names in a file: those of integers are marked by a Q."""


_STEP_FIELDS = ("name", "layer", "inputs", "output", "kind", "why")


class RecordEncoder:
    """Converts records to JSON values.

    Attributes:
        arrays: the arrays of the records so far, by index.
    """

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._array_indices: dict[int, int] = {}
        self._steps: dict[int, tuple[int, Any]] = {}

    def network(self, network: Network) -> dict[str, Any]:
        """Return a quantized network as JSON values."""
        return {
            "name": network.name,
            "inputs": [dataclasses.asdict(port) for port in network.inputs],
            "outputs": [dataclasses.asdict(port) for port in network.outputs],
            "shapes": {tensor: list(shape) for tensor, shape in network.shapes.items()},
            "quantizations": {
                tensor: dataclasses.asdict(quantization) for tensor, quantization in network.quantizations.items()
            },
            "nodes": [self._node(node) for node in network.nodes],
        }

    def service(self, service: Service) -> dict[str, Any]:
        """Return a service of the host as JSON values."""
        return {
            "step": self._node(service.step),
            "inputs": [None if bound is None else dataclasses.asdict(bound) for bound in service.inputs],
            "output": None if service.output is None else dataclasses.asdict(service.output),
        }

    def steps(self) -> dict[str, Any]:
        """Return the host steps of all records as JSON values; call it once, after all records."""
        described, held = operations.to_json([steps for _, steps in self._steps.values()])
        first = len(self.arrays)
        self.arrays += [np.asarray(array) for array in held]
        return {"steps": described, "first_array": first}

    def _node(self, node: Node) -> dict[str, Any]:
        fields = {field.name: self._value(getattr(node, field.name)) for field in dataclasses.fields(node)}
        if isinstance(node, HostStep):
            # The file keeps the step as it was in floats within its node.
            index, _ = self._steps.setdefault(id(node.steps), (len(self._steps), node.steps))
            step = {"host_step": {name: fields[name] for name in _STEP_FIELDS}, "steps": index}
            fields = {**{name: fields[name] for name in _STEP_FIELDS[:4]}, "step": step}
        return {"node": f"Q{type(node).__name__}", "fields": fields}

    def _value(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"array": self._array_index(value)}
        if isinstance(value, tuple):
            return [self._value(item) for item in value]
        return value.item() if isinstance(value, np.generic) else value

    def _array_index(self, array: np.ndarray) -> int:
        index = self._array_indices.setdefault(id(array), len(self.arrays))
        if index == len(self.arrays):
            self.arrays.append(array)
        return index


def fault_in_size(step: HostStep, written_bytes: int, batch: int = 1) -> str | None:
    """Return the fault of a host step that takes too much memory, as a sentence, or None.

    A step is computed in pieces of the rows that it was traced for, however few rows there are. A small file may name
    any number, so the values of a piece count as what the file unpacks to. So do the results of a whole batch.

    Args:
        step: the step.
        written_bytes: size of the file or of the text that the step is written in.
        batch: rows of a batch of the program.
    """
    steps: operations.HostOperations = step.steps
    bounds = (steps.rows, "at a time", steps.size_bytes), (batch, "in all", steps.total_bytes(batch))
    for rows, what, needed in bounds:
        try:
            check_ratio(written_bytes, needed)
        except ValueError as error:
            return f"The host's step {step.name!r:.100} computes {rows:,} rows {what}, which is too much: {error}."
    return None


class RecordDecoder:
    """Converts the JSON values of `RecordEncoder` back to records.

    Args:
        arrays: all arrays, by index.
        steps: the result of `RecordEncoder.steps`.
        written_bytes: size of the file or of the text that the values are from.
        batch: rows of a batch of the program.

    Raises:
        ChipError: `steps` is invalid.
    """

    def __init__(self, arrays: Sequence[np.ndarray], steps: Mapping[str, Any], written_bytes: int, batch: Any):
        # Another batch than a positive integer is refused when the program is run.
        self._batch = batch if type(batch) is int and batch > 0 else 1
        self._arrays, self._written_bytes = arrays, written_bytes
        self._steps = _read(lambda: operations.from_json(steps["steps"], arrays[steps["first_array"] :]))

    def network(self, described: Mapping[str, Any]) -> Network:
        """Return a quantized network from its JSON values.

        Raises:
            ChipError: the values are invalid.
        """
        return _read(lambda: self._network(described))

    def service(self, described: Mapping[str, Any]) -> Service:
        """Return a service from its JSON values.

        Raises:
            ChipError: the values are invalid.
        """
        return _read(lambda: self._service(described))

    def _network(self, described: Mapping[str, Any]) -> Network:
        shapes = {tensor: _tuples(shape) for tensor, shape in described["shapes"].items()}
        for tensor, shape in shapes.items():
            if not _is_of(shape, Shape):
                raise TypeError(f"{tensor!r:.100} of shape {shape!r:.100}")
        return _record(
            Network,
            name=described["name"],
            inputs=tuple(_port(port) for port in described["inputs"]),
            outputs=tuple(_port(port) for port in described["outputs"]),
            shapes=shapes,
            quantizations={tensor: Quantization(**fields) for tensor, fields in described["quantizations"].items()},
            nodes=tuple(self._node(node) for node in described["nodes"]),
        )

    def _service(self, described: Mapping[str, Any]) -> Service:
        step = self._node(described["step"])
        if not isinstance(step, HostStep):
            raise TypeError(f"{type(step).__name__} is no step of the host")
        inputs = tuple(None if bound is None else binding(bound) for bound in described["inputs"])
        if not len(inputs) == len(step.inputs) == len(step.steps.arguments):
            raise ValueError(f"{step.name!r:.100} has {len(step.inputs)} inputs, bound to {len(inputs)}")
        output = described["output"]
        return Service(step, inputs, None if output is None else binding(output))

    def _node(self, described: Mapping[str, Any]) -> Node:
        fields = {name: self._value(value) for name, value in described["fields"].items()}
        kind = _NODES[described["node"]]
        if kind is HostStep:
            step = fields.pop("step")
            own = {name: step["host_step"][name] for name in ("kind", "why")}
            node = _record(HostStep, **fields, **own, steps=self._steps[step["steps"]])
            if (fault := fault_in_size(node, self._written_bytes, self._batch)) is not None:
                raise ChipError(fault)
            return node
        return _record(kind, **fields)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping) and "array" in value:
            return self._arrays[value["array"]]
        return tuple(self._value(item) for item in value) if isinstance(value, list) else value


def binding(described: Mapping[str, Any]) -> Binding:
    """Return a binding from the result of `dataclasses.asdict`."""
    fields = {**described, "quantization": Quantization(**described["quantization"])}
    return Binding(**{name: _tuples(value) for name, value in fields.items()})


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


def size_bytes(listed: Sequence[Any]) -> int:
    """Return the size in bytes of the arrays listed by `join_arrays`, with their padding.

    Raises:
        ChipError: `listed` is not a list of dtypes and shapes.

    Example:
        >>> size_bytes([["int16", [2]], ["float32", [3, 2]]])
        48
    """
    return _read(lambda: sum(_size_bytes(*_kind_and_shape(entry)) for entry in listed))


def split_arrays(listed: Sequence[Any], content: bytes) -> list[np.ndarray]:
    """Return the arrays, read-only, from the result of `join_arrays`.

    Raises:
        ChipError: the list is invalid, or `content` has another size.
    """
    return _read(lambda: _split(listed, content))


def _split(listed: Sequence[Any], content: bytes) -> list[np.ndarray]:
    arrays, offset = [], 0
    for entry in listed:
        dtype, shape = _kind_and_shape(entry)
        plain = np.frombuffer(content, dtype.newbyteorder("<"), math.prod(shape), offset)
        arrays.append(plain.reshape(shape).astype(dtype, copy=False))
        offset += _size_bytes(dtype, shape)
    if offset != len(content):
        raise ValueError(f"{len(content)} bytes, and the arrays that are listed take {offset}")
    return arrays


def _kind_and_shape(listed: Any) -> tuple[np.dtype, list[int]]:
    name, shape = listed
    dtype = named_dtype(name)
    if dtype.kind not in "biuf":
        raise TypeError(f"arrays of {name}")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    return dtype, shape


def _size_bytes(dtype: np.dtype, shape: Sequence[int]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // 16) * 16


def _read(read: Any) -> Any:
    try:
        return read()
    except ChipError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        # The error may quote a value as long as the file.
        why = f"{type(error).__name__}: {error}"[:300]
        raise ChipError(f"Its description is invalid ({why}).") from error


def _port(described: Mapping[str, Any]) -> Port:
    return _record(Port, **{name: _tuples(value) for name, value in described.items()})


def _record(kind: type[_Kind], /, **fields: Any) -> _Kind:
    """Return a record, after a check of the type of each field."""
    hints = _hints(kind)
    for name, value in fields.items():
        if name in hints and not _is_of(value, hints[name]):
            raise TypeError(f"the {name} of a {kind.__name__} is {value!r:.60}")
    return kind(**fields)


_hints = functools.cache(typing.get_type_hints)


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a value has the declared type; an integer is a float, a boolean is no integer."""
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Any:
        return True
    if kind is types.UnionType:
        return any(_is_of(value, part) for part in parts)
    if kind is typing.Literal:
        return type(value) is str and value in parts
    if kind is tuple:
        if not isinstance(value, tuple):
            return False
        parts = parts[:1] * len(value) if parts[-1] is ... else parts
        return len(value) == len(parts) and all(map(_is_of, value, parts))
    if kind is float:
        return type(value) in (int, float)
    if kind in (int, str, bool):
        return type(value) is kind
    return isinstance(value, kind)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
