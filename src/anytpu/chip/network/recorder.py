"""Taking down the operations that depend on the inputs, in their simplest form.

Idea: many operations of a program change nothing: plus zero, times one, a reshape to the same shape. They are left out
while they are taken down, so that nobody after has to think of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.network.operations import Operation
from anytpu.chip.network.parsing import Type


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A value that depends on the inputs."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True, eq=False)
class Assembly:
    """An array that is filled piece by piece along one axis.

    Attributes:
        base: what lies where no piece was put.
        axis: along which.
        pieces: by where they start.
    """

    base: np.ndarray | Symbol
    axis: int
    pieces: Mapping[int, np.ndarray | Symbol]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        return self.base.shape

    @property
    def dtype(self) -> np.dtype:
        """Of the whole."""
        return self.base.dtype


Value = np.ndarray | Symbol | Assembly


def uniform(array: np.ndarray) -> float | None:
    """Return the number that an array is full of, if it is."""
    if array.size == 0:
        return None
    small = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
    first = small.reshape(-1)[0]
    return first.item() if bool((small == first).all()) else None


_NOTHING: dict[str, tuple[int, ...]] = {"add": (0, 1), "subtract": (1,), "multiply": (0, 1), "divide": (1,)}
_NEUTRAL = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0}


class Recorder:
    """Takes down operations.

    Attributes:
        operations: so far.
        types: of each value.
    """

    def __init__(self):
        self.operations: list[Operation] = []
        self.types: dict[str, Type] = {}
        self._producers: dict[str, Operation] = {}

    def input(self, name: str, of: Type) -> Symbol:
        """Declare a value that comes from outside."""
        assert of.dtype is not None
        self.types[name] = of
        return Symbol(name, of.shape, of.dtype)

    def record(
        self,
        name: str,
        operands: Sequence[Value],
        attributes: Mapping[str, Any],
        of: Type,
        layer: str,
        number: int = 0,
    ) -> Value:
        """Take down an operation, and return what it makes."""
        given = [self.whole(operand) for operand in operands]
        simple = self._simpler(name, given, attributes, of, layer)
        if simple is not None:
            return simple
        assert of.dtype is not None
        result = f"%{len(self.operations)}"
        names = tuple(one.name if isinstance(one, Symbol) else one for one in given)
        operation = Operation(name, names, result, of.shape, of.dtype, dict(attributes), layer, number)
        self.operations.append(operation)
        self.types[result] = of
        self._producers[result] = operation
        return Symbol(result, of.shape, of.dtype)

    def whole(self, value: Value) -> np.ndarray | Symbol:
        """Return a value of which pieces were put together as one."""
        if not isinstance(value, Assembly):
            return value
        parts, at, size = [], 0, value.shape[value.axis]
        for start in sorted(value.pieces):
            parts += [self._range(value.base, value.axis, at, start)] if start > at else []
            parts.append(value.pieces[start])
            at = start + value.pieces[start].shape[value.axis]
        parts += [self._range(value.base, value.axis, at, size)] if at < size else []
        if len(parts) == 1:
            return parts[0]
        of = Type(value.shape, value.dtype)
        whole = self.record("concatenate", parts, {"dimension": value.axis}, of, self._layer(parts))
        assert not isinstance(whole, Assembly)
        return whole

    def cut(self, source: Value, starts: Sequence[int], sizes: Sequence[int], layer: str) -> Value:
        """Return a part of a value."""
        if isinstance(source, Assembly):
            at, size = starts[source.axis], sizes[source.axis]
            for start, piece in source.pieces.items():
                if start <= at and at + size <= start + piece.shape[source.axis]:
                    moved = [at - start if axis == source.axis else one for axis, one in enumerate(starts)]
                    return self.cut(piece, moved, sizes, layer)
            source = self.whole(source)
        stops = [start + size for start, size in zip(starts, sizes, strict=True)]
        if isinstance(source, np.ndarray):
            return source[tuple(slice(start, stop) for start, stop in zip(starts, stops, strict=True))]
        attributes = {"start_indices": list(starts), "limit_indices": stops, "strides": [1] * len(stops)}
        return self.record("slice", [source], attributes, Type(tuple(sizes), source.dtype), layer)

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
        if isinstance(target, Assembly) and target.axis == axis and _is_free(target, starts[axis], piece.shape[axis]):
            return Assembly(target.base, axis, {**target.pieces, starts[axis]: piece})
        return Assembly(self.whole(target), axis, {starts[axis]: piece})

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
        assert not isinstance(part, Assembly)
        return part

    def _layer(self, parts: Sequence[np.ndarray | Symbol]) -> str:
        made = [self._producers[one.name] for one in parts if isinstance(one, Symbol) and one.name in self._producers]
        return made[-1].layer if made else ""

    def _simpler(
        self, name: str, given: Sequence[np.ndarray | Symbol], attributes: Mapping[str, Any], of: Type, layer: str
    ) -> Value | None:
        """Return what an operation makes where it need not be taken down."""
        if name == "multiply" and any(isinstance(one, np.ndarray) and uniform(one) == 0 for one in given):
            return np.broadcast_to(np.zeros((), of.dtype), of.shape)
        if name in _NOTHING:
            return _without_effect(name, given, of)
        rule = _SIMPLER.get(name)
        return rule(self, given, attributes, of, layer) if rule is not None else None

    def _reshape(self, given: Sequence[Any], _: Any, of: Type, layer: str) -> Value | None:
        (source,) = given
        before = self._producers.get(source.name)
        if source.shape == of.shape:
            return source
        if before is not None and before.name == "reshape":
            (first,) = before.values
            return self.record("reshape", [self._symbol(first)], {}, of, layer)
        return None

    def _same_shape(self, given: Sequence[Any], attributes: Mapping[str, Any], of: Type, _: str) -> Value | None:
        order = attributes.get("permutation", attributes.get("broadcast_dimensions"))
        ordered = order is None or list(order) == list(range(len(of.shape)))
        return given[0] if given[0].shape == of.shape and ordered else None

    def _slice(self, given: Sequence[Any], attributes: Mapping[str, Any], of: Type, _: str) -> Value | None:
        return given[0] if given[0].shape == of.shape and set(attributes["strides"]) <= {1} else None

    def _convert(self, given: Sequence[Any], _: Any, of: Type, __: str) -> Value | None:
        return given[0] if given[0].dtype == of.dtype else None

    def _select(self, given: Sequence[Any], _: Any, of: Type, __: str) -> Value | None:
        which, first, second = given
        known = uniform(which) if isinstance(which, np.ndarray) else None
        chosen = None if known is None else first if known else second
        return chosen if chosen is None or chosen.shape == of.shape else None

    def _dot(self, given: Sequence[Any], attributes: Mapping[str, Any], of: Type, layer: str) -> Value | None:
        """Put the value before the constant: weights @ value becomes (value @ weights), its axes exchanged."""
        lhs, rhs = given
        numbers = attributes["dot_dimension_numbers"]
        if not isinstance(lhs, np.ndarray):
            return None
        batch = len(numbers["lhs_batching"])
        free = lhs.ndim - batch - len(numbers["lhs_contracting"])
        rest = len(of.shape) - batch - free
        exchanged = {
            "lhs_batching": numbers["rhs_batching"],
            "rhs_batching": numbers["lhs_batching"],
            "lhs_contracting": numbers["rhs_contracting"],
            "rhs_contracting": numbers["lhs_contracting"],
        }
        shape = (*of.shape[:batch], *of.shape[batch + free :], *of.shape[batch : batch + free])
        product = self.record(
            "dot_general", [rhs, lhs], {"dot_dimension_numbers": exchanged}, Type(shape, of.dtype), layer
        )
        order = [*range(batch), *range(batch + rest, batch + rest + free), *range(batch, batch + rest)]
        return self.record("transpose", [product], {"permutation": order}, of, layer)

    def _gather(self, given: Sequence[Any], attributes: Mapping[str, Any], of: Type, layer: str) -> Value | None:
        """Turn picking one part by a known number into a slice."""
        source, indices = given
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
        return self.record("reshape", [part], {}, of, layer)

    def _symbol(self, name: str) -> Symbol:
        of = self.types[name]
        assert of.dtype is not None
        return Symbol(name, of.shape, of.dtype)


def _is_free(target: Assembly, start: int, size: int) -> bool:
    if start in target.pieces:
        return target.pieces[start].shape[target.axis] == size
    return all(start + size <= at or at + piece.shape[target.axis] <= start for at, piece in target.pieces.items())


def _without_effect(name: str, given: Sequence[np.ndarray | Symbol], of: Type) -> Symbol | None:
    for number in _NOTHING[name]:
        constant, value = given[number], given[1 - number]
        if not isinstance(constant, np.ndarray) or not isinstance(value, Symbol) or value.shape != of.shape:
            continue
        if uniform(constant) == _NEUTRAL[name]:
            return value
    return None


def _bound(neutral: float) -> Callable[..., Value | None]:
    """Return the rule of a maximum or a minimum: one with nothing beyond the bound changes nothing."""

    def rule(_: Recorder, given: Sequence[Any], __: Any, of: Type, ___: str) -> Value | None:
        for constant, value in (given, tuple(reversed(given))):
            known = isinstance(constant, np.ndarray) and isinstance(value, Symbol) and value.shape == of.shape
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
