"""`compute`: evaluate one operation of StableHLO on NumPy arrays, for constant folding and for host steps.

Rule: NumPy computes the operations that are known by name. XLA computes the others, from their text (`foreign.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anytpu.chip.network import elementwise, foreign

REDUCERS: dict[str, np.ufunc] = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
"""The NumPy function of a reduction, by the name of its reducer."""


def compute(
    name: str,
    operands: list[np.ndarray],
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    dtype: np.dtype,
    number: int = 0,
    owner: Any = None,
) -> np.ndarray:
    """Return the result of an operation.

    Args:
        name: name of the operation, without the dialect "stablehlo".
        operands: operands of the shapes and dtypes that it was written for.
        attributes: its attributes; "text" if its name is unknown.
        shape, dtype: shape and dtype of the result.
        number: index of the result, for an operation of several results.
        owner: the `Operation`, which keeps the function that XLA compiles; None: there is none.
    """
    if name in elementwise.NAMES:
        if name != "bitcast_convert" and np.broadcast_shapes(shape, *[x.shape for x in operands]) != shape:
            raise ValueError(f"{name!r} of {[x.shape for x in operands]} makes no {shape}")
        return elementwise.compute(name, operands, attributes, shape, dtype)
    if name in _STRUCTURAL:
        return _STRUCTURAL[name](operands, attributes, shape, dtype)
    return foreign.call(attributes["text"], operands, owner)[number]


def is_known(name: str) -> bool:
    """Return whether NumPy computes an operation, without its text."""
    return name in elementwise.NAMES or name in _STRUCTURAL


def _broadcast(operands: list[np.ndarray], attributes: Mapping[str, Any], shape: tuple[int, ...], _: Any) -> np.ndarray:
    axes = attributes["broadcast_dimensions"]
    spread = [1] * len(shape)
    for axis, size in zip(axes, operands[0].shape, strict=True):
        spread[axis] = size
    # Axes are nearly always increasing; otherwise transpose first.
    ordered = np.transpose(operands[0], np.argsort(axes)) if list(axes) != sorted(axes) else operands[0]
    return np.broadcast_to(ordered.reshape(spread), shape)


def _concatenate(
    operands: list[np.ndarray], attributes: Mapping[str, Any], shape: tuple[int, ...], _: Any
) -> np.ndarray:
    if sum(operand.size for operand in operands) != math.prod(shape):
        raise ValueError(f"{len(operands)} parts do not make {shape}")
    return np.concatenate(operands, attributes["dimension"])


def _slice(operands: list[np.ndarray], attributes: Mapping[str, Any], *_: Any) -> np.ndarray:
    parts = zip(attributes["start_indices"], attributes["limit_indices"], attributes["strides"], strict=True)
    return operands[0][tuple(slice(*part) for part in parts)]


def _iota(_: list[np.ndarray], attributes: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    axis = attributes["iota_dimension"]
    line = np.arange(shape[axis]).astype(dtype)
    return np.broadcast_to(line.reshape([-1 if n == axis else 1 for n in range(len(shape))]), shape)


def _reduce(operands: list[np.ndarray], attributes: Mapping[str, Any], *_: Any) -> np.ndarray:
    ufunc = REDUCERS[attributes["reducer"]]
    if operands[1].size != 1:
        raise ValueError(f"a reduction that begins with {operands[1].shape}")
    reduced = ufunc.reduce(operands[0], axis=tuple(attributes["dimensions"]), dtype=operands[0].dtype)
    return np.asarray(ufunc(reduced, operands[1]))


def _dot(
    operands: list[np.ndarray], attributes: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    lhs, rhs = operands
    numbers = attributes["dot_dimension_numbers"]
    batch, contracted = numbers["lhs_batching"], numbers["lhs_contracting"]
    free = [n for n in range(lhs.ndim) if n not in (*batch, *contracted)]
    rhs_free = [n for n in range(rhs.ndim) if n not in (*numbers["rhs_batching"], *numbers["rhs_contracting"])]
    sizes = [lhs.shape[n] for n in batch], [lhs.shape[n] for n in free], [rhs.shape[n] for n in rhs_free]
    left = lhs.transpose(*batch, *free, *contracted).reshape(
        *sizes[0], int(np.prod(sizes[1])), int(np.prod([lhs.shape[n] for n in contracted]))
    )
    if math.prod([*sizes[0], *sizes[1], *sizes[2]]) != math.prod(shape):
        raise ValueError(f"a product of {lhs.shape} and {rhs.shape} is not of {shape}")
    right = rhs.transpose(*numbers["rhs_batching"], *numbers["rhs_contracting"], *rhs_free).reshape(
        *sizes[0], left.shape[-1], int(np.prod(sizes[2]))
    )
    # In the dtype of the result: a sum of int8 products is declared as int32, and would wrap in int8.
    product = np.matmul(left.astype(dtype, copy=False), right.astype(dtype, copy=False))
    return product.reshape(*sizes[0], *sizes[1], *sizes[2]).astype(dtype, copy=False)


def _pad(operands: list[np.ndarray], attributes: Mapping[str, Any], shape: tuple[int, ...], _: Any) -> np.ndarray:
    value, result = operands[0], np.full(shape, operands[1], operands[0].dtype)
    if value.ndim != result.ndim:
        raise ValueError(f"'pad' of {value.shape} makes no {shape}")
    places, kept = list[np.ndarray](), list[np.ndarray]()
    for axis, size in enumerate(value.shape):
        low, high, inner = (attributes[name][axis] for name in _PADS)
        if inner < 0 or low + high + size + max(size - 1, 0) * inner != shape[axis]:
            raise ValueError(f"'pad' of {value.shape} makes no {shape}")
        place = low + np.arange(size) * (inner + 1)
        inside = (place >= 0) & (place < shape[axis])
        places.append(place[inside])
        kept.append(np.flatnonzero(inside))
    result[np.ix_(*places)] = value[np.ix_(*kept)]
    return result


_PADS = "edge_padding_low", "edge_padding_high", "interior_padding"

_STRUCTURAL: dict[str, Callable[..., np.ndarray]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "dot_general": _dot,
    "iota": _iota,
    "pad": _pad,
    "reduce": _reduce,
    "reshape": lambda operands, attributes, shape, _: operands[0].reshape(shape),
    "reverse": lambda operands, attributes, *_: np.flip(operands[0], attributes["dimensions"]),
    "slice": _slice,
    "transpose": lambda operands, attributes, *_: operands[0].transpose(attributes["permutation"]),
}
