"""`Recorder`: record the operations that depend on the inputs, simplified.

Idea: many operations of a program have no effect: plus zero, times one, a reshape to the same shape. They are removed
while they are recorded, so that no later pass has to handle them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.network.channel_order import ChannelOrder
from anytpu.chip.network.masks import Masks
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.parsing import TensorType


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A value that depends on the inputs."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True, eq=False)
class PiecewiseArray:
    """An array that is filled piece by piece along one axis.

    Attributes:
        base: the value of the parts without a piece.
        axis: the axis along which the pieces are placed.
        pieces: maps the start of each piece on the axis to the piece.
    """

    base: np.ndarray | Symbol
    axis: int
    pieces: Mapping[int, np.ndarray | Symbol]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.base.shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the whole array."""
        return self.base.dtype


Value = np.ndarray | Symbol | PiecewiseArray


def uniform(array: np.ndarray) -> float | None:
    """Return the value of all elements of an array if they are equal; otherwise None."""
    if array.size == 0:
        return None
    small = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
    first = small.reshape(-1)[0]
    return first.item() if bool((small == first).all()) else None


_NEUTRAL_OPERANDS: dict[str, tuple[int, ...]] = {"add": (0, 1), "subtract": (1,), "multiply": (0, 1), "divide": (1,)}
_NEUTRAL = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0}


class Recorder:
    """Records operations.

    Attributes:
        operations: the operations so far.
        types: type of each value.
        producers: the operation that makes each value.
    """

    def __init__(self):
        self.operations: list[Operation] = []
        self.types: dict[str, TensorType] = {}
        self.producers: dict[str, Operation] = {}
        self._channels = ChannelOrder(self)
        self._masks = Masks(self)

    def input(self, name: str, tensor_type: TensorType) -> Symbol:
        """Declare an input value."""
        assert tensor_type.dtype is not None
        self.types[name] = tensor_type
        return Symbol(name, tensor_type.shape, tensor_type.dtype)

    def record(
        self,
        name: str,
        operands: Sequence[Value],
        attributes: Mapping[str, Any],
        result_type: TensorType,
        layer: str,
        number: int = 0,
    ) -> Value:
        """Record an operation, simplified if possible, and return its result."""
        values = [self.whole(operand) for operand in operands]
        simple = self._simpler(name, values, attributes, result_type, layer)
        if simple is not None:
            return simple
        ordered = self._channels.record(name, values, attributes, result_type, layer)
        return self.add(name, values, attributes, result_type, layer, number) if ordered is None else ordered

    def add(
        self,
        name: str,
        values: Sequence[np.ndarray | Symbol],
        attributes: Mapping[str, Any],
        result_type: TensorType,
        layer: str,
        number: int = 0,
    ) -> Symbol:
        """Record an operation as it is, and return its result."""
        assert result_type.dtype is not None
        result = f"%{len(self.operations)}"
        names = tuple(value.name if isinstance(value, Symbol) else value for value in values)
        operation = Operation(
            name, names, result, result_type.shape, result_type.dtype, dict(attributes), layer, number
        )
        self.operations.append(operation)
        self.types[result] = result_type
        self.producers[result] = operation
        return Symbol(result, result_type.shape, result_type.dtype)

    def whole(self, value: Value) -> np.ndarray | Symbol:
        """Return a piecewise array as one value: the concatenation of its pieces."""
        if not isinstance(value, PiecewiseArray):
            return value
        parts, at, size = [], 0, value.shape[value.axis]
        for start in sorted(value.pieces):
            parts += [self._range(value.base, value.axis, at, start)] if start > at else []
            parts.append(value.pieces[start])
            at = start + value.pieces[start].shape[value.axis]
        parts += [self._range(value.base, value.axis, at, size)] if at < size else []
        if len(parts) == 1:
            return parts[0]
        whole_type = TensorType(value.shape, value.dtype)
        whole = self.record("concatenate", parts, {"dimension": value.axis}, whole_type, self._layer(parts))
        assert not isinstance(whole, PiecewiseArray)
        return whole

    def cut(self, source: Value, starts: Sequence[int], sizes: Sequence[int], layer: str) -> Value:
        """Return a part of a value."""
        if isinstance(source, PiecewiseArray):
            at, size = starts[source.axis], sizes[source.axis]
            for start, piece in source.pieces.items():
                if start <= at and at + size <= start + piece.shape[source.axis]:
                    moved = [at - start if axis == source.axis else position for axis, position in enumerate(starts)]
                    return self.cut(piece, moved, sizes, layer)
            source = self.whole(source)
        stops = [start + size for start, size in zip(starts, sizes, strict=True)]
        if isinstance(source, np.ndarray):
            return source[tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True))]
        attributes = {"start_indices": list(starts), "limit_indices": stops, "strides": [1] * len(stops)}
        return self.record("slice", [source], attributes, TensorType(tuple(sizes), source.dtype), layer)

    def put(self, target: Value, update: Value, starts: Sequence[int], layer: str) -> Value:
        """Return a value with a part of it replaced."""
        piece = self.whole(update)
        axes = [axis for axis, size in enumerate(piece.shape) if size != target.shape[axis]]
        if isinstance(target, np.ndarray) and isinstance(piece, np.ndarray):
            changed = target.copy()
            changed[tuple(slice(start, start + size) for start, size in zip(starts, piece.shape, strict=True))] = piece
            return changed
        if not axes:
            return piece
        if len(axes) > 1:
            return self._put_inside(target, piece, starts, axes, layer)
        (axis,) = axes
        if (
            isinstance(target, PiecewiseArray)
            and target.axis == axis
            and _is_free(target, starts[axis], piece.shape[axis])
        ):
            return PiecewiseArray(target.base, axis, {**target.pieces, starts[axis]: piece})
        return PiecewiseArray(self.whole(target), axis, {starts[axis]: piece})

    def _put_inside(
        self, target: Value, piece: np.ndarray | Symbol, starts: Sequence[int], axes: list[int], layer: str
    ) -> Value:
        """Replace a part that is smaller along several axes: one axis at a time."""
        axis = axes[0]
        zeros = [starts[n] if n == axis else 0 for n in range(len(starts))]
        sizes = [piece.shape[n] if n == axis else size for n, size in enumerate(target.shape)]
        strip = self.cut(target, zeros, sizes, layer)
        inside = [0 if n == axis else start for n, start in enumerate(starts)]
        return self.put(target, self.put(strip, piece, inside, layer), zeros, layer)

    def _range(self, base: np.ndarray | Symbol, axis: int, start: int, stop: int) -> np.ndarray | Symbol:
        starts = [start if n == axis else 0 for n in range(len(base.shape))]
        sizes = [stop - start if n == axis else size for n, size in enumerate(base.shape)]
        part = self.cut(base, starts, sizes, "")
        assert not isinstance(part, PiecewiseArray)
        return part

    def _layer(self, parts: Sequence[np.ndarray | Symbol]) -> str:
        made = [self.producers[part.name] for part in parts if isinstance(part, Symbol) and part.name in self.producers]
        return made[-1].layer if made else ""

    def _simpler(
        self,
        name: str,
        operands: Sequence[np.ndarray | Symbol],
        attributes: Mapping[str, Any],
        result_type: TensorType,
        layer: str,
    ) -> Value | None:
        """Return the result of an operation that need not be recorded; None for others."""
        if name == "multiply" and any(
            isinstance(operand, np.ndarray) and uniform(operand) == 0 for operand in operands
        ):
            return np.broadcast_to(np.zeros((), result_type.dtype), result_type.shape)
        if name in _NEUTRAL_OPERANDS:
            return _without_effect(name, operands, result_type)
        rule = _SIMPLER.get(name)
        return rule(self, operands, attributes, result_type, layer) if rule is not None else None

    def _reshape(self, operands: Sequence[Any], _: Any, result_type: TensorType, layer: str) -> Value | None:
        (source,) = operands
        before = self.producers.get(source.name)
        if source.shape == result_type.shape:
            return source
        if before is not None and before.name == "reshape":
            (first,) = before.values
            return self.record("reshape", [self.symbol(first)], {}, result_type, layer)
        return None

    def _same_shape(
        self, operands: Sequence[Any], attributes: Mapping[str, Any], result_type: TensorType, _: str
    ) -> Value | None:
        order = attributes.get("permutation", attributes.get("broadcast_dimensions"))
        ordered = order is None or list(order) == list(range(len(result_type.shape)))
        return operands[0] if operands[0].shape == result_type.shape and ordered else None

    def _slice(
        self, operands: Sequence[Any], attributes: Mapping[str, Any], result_type: TensorType, _: str
    ) -> Value | None:
        return operands[0] if operands[0].shape == result_type.shape and set(attributes["strides"]) <= {1} else None

    def _convert(self, operands: Sequence[Any], _attributes: Any, result_type: TensorType, _layer: str) -> Value | None:
        return operands[0] if operands[0].dtype == result_type.dtype else None

    def _select(self, operands: Sequence[Any], _attributes: Any, result_type: TensorType, layer: str) -> Value | None:
        which, first, second = operands
        if isinstance(which, Symbol):
            return self._masks.choice(which, first, second, result_type, layer)
        known = uniform(which)
        chosen = None if known is None else first if known else second
        return chosen if chosen is None or chosen.shape == result_type.shape else None

    def _dot(
        self, operands: Sequence[Any], attributes: Mapping[str, Any], result_type: TensorType, layer: str
    ) -> Value | None:
        """Make the value the left operand: weights @ value becomes the transpose of value @ weights."""
        lhs, rhs = operands
        numbers = attributes["dot_dimension_numbers"]
        if not isinstance(lhs, np.ndarray):
            return None
        batch = len(numbers["lhs_batching"])
        free = lhs.ndim - batch - len(numbers["lhs_contracting"])
        rest = len(result_type.shape) - batch - free
        exchanged = {
            "lhs_batching": numbers["rhs_batching"],
            "rhs_batching": numbers["lhs_batching"],
            "lhs_contracting": numbers["rhs_contracting"],
            "rhs_contracting": numbers["lhs_contracting"],
        }
        shape = (
            *result_type.shape[:batch],
            *result_type.shape[batch + free :],
            *result_type.shape[batch : batch + free],
        )
        product = self.record(
            "dot_general", [rhs, lhs], {"dot_dimension_numbers": exchanged}, TensorType(shape, result_type.dtype), layer
        )
        order = [*range(batch), *range(batch + rest, batch + rest + free), *range(batch, batch + rest)]
        return self.record("transpose", [product], {"permutation": order}, result_type, layer)

    def _gather(
        self, operands: Sequence[Any], attributes: Mapping[str, Any], result_type: TensorType, layer: str
    ) -> Value | None:
        """Replace a gather of one slice at a constant index by a slice."""
        source, indices = operands
        numbers, sizes = attributes["dimension_numbers"], attributes["slice_sizes"]
        if (
            not isinstance(indices, np.ndarray)
            or indices.size != len(numbers["start_index_map"])
            or isinstance(source, np.ndarray)
        ):
            return None
        starts = [0] * len(source.shape)
        for axis, start in zip(numbers["start_index_map"], indices.reshape(-1), strict=True):
            starts[axis] = min(max(int(start), 0), source.shape[axis] - sizes[axis])
        part = self.cut(source, starts, sizes, layer)
        return self.record("reshape", [part], {}, result_type, layer)

    def symbol(self, name: str) -> Symbol:
        """Return a value that is recorded."""
        tensor_type = self.types[name]
        assert tensor_type.dtype is not None
        return Symbol(name, tensor_type.shape, tensor_type.dtype)


def _is_free(target: PiecewiseArray, start: int, size: int) -> bool:
    if start in target.pieces:
        return target.pieces[start].shape[target.axis] == size
    return all(start + size <= at or at + piece.shape[target.axis] <= start for at, piece in target.pieces.items())


def _without_effect(name: str, operands: Sequence[np.ndarray | Symbol], result_type: TensorType) -> Symbol | None:
    for number in _NEUTRAL_OPERANDS[name]:
        constant, value = operands[number], operands[1 - number]
        if not isinstance(constant, np.ndarray) or not isinstance(value, Symbol) or value.shape != result_type.shape:
            continue
        if uniform(constant) == _NEUTRAL[name]:
            return value
    return None


def _bound(neutral: float) -> Callable[..., Value | None]:
    """Return the rule of a maximum or a minimum: with its neutral element it has no effect."""

    def rule(
        _recorder: Recorder, operands: Sequence[Any], _attributes: Any, result_type: TensorType, _layer: str
    ) -> Value | None:
        for constant, value in (operands, tuple(reversed(operands))):
            known = isinstance(constant, np.ndarray) and isinstance(value, Symbol) and value.shape == result_type.shape
            if known and constant.dtype.kind == "f" and uniform(constant) == neutral:
                return value
        return None

    return rule


_SIMPLER: dict[str, Callable[..., Value | None]] = {
    "broadcast_in_dim": Recorder._same_shape,
    "convert": Recorder._convert,
    "dot_general": Recorder._dot,
    "gather": Recorder._gather,
    "maximum": _bound(-np.inf),
    "minimum": _bound(np.inf),
    "reshape": Recorder._reshape,
    "select": Recorder._select,
    "slice": Recorder._slice,
    "transpose": Recorder._same_shape,
}
