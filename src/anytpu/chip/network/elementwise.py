"""The elementwise operations of StableHLO, in NumPy.

Source: the specification of StableHLO (https://openxla.org/stablehlo/spec). Integer division rounds towards zero,
`sign` keeps the sign of zero, `round_nearest_afz` rounds halves away from zero. If the specification leaves a result
open, this file follows XLA. An integer divided by 0 has all bits set, and the remainder is the dividend. Casts to
integers saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

COMPARISONS: dict[str, Callable[..., np.ndarray]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
"""The function of `compare`, by its direction."""


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not np.issubdtype(x.dtype, np.integer):
        return np.divide(x, y)
    safe = np.where(y == 0, y.dtype.type(1), y)
    down = np.floor_divide(x, safe)
    up = (np.remainder(x, safe) != 0) & ((x < 0) != (safe < 0))
    return np.where(y == 0, ~x.dtype.type(0), down + up.astype(x.dtype))


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not np.issubdtype(x.dtype, np.integer):
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, y.dtype.type(1), y)))


def _logistic(x: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _round_away(x: np.ndarray) -> np.ndarray:
    whole = np.trunc(x)  # Not trunc(x + 0.5): just below 0.5 that sum rounds to 1.
    return (whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1, x), 0)).astype(x.dtype)


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "i":
        return np.power(x, y)
    # Of the negative powers of integers, only those of 1 and -1 are not 0.
    inverse = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y & 1), 0))
    return np.where(y < 0, inverse, np.power(x, np.maximum(y, 0))).astype(x.dtype)


def _of_jax(function: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.asarray(function(x))


def _inverse_root(x: np.ndarray) -> np.ndarray:
    return (1 / np.sqrt(x)).astype(x.dtype)


def _not(x: np.ndarray) -> np.ndarray:
    return np.logical_not(x) if x.dtype == bool else np.bitwise_not(x)


def _right_logical(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    unsigned = np.dtype(f"uint{8 * x.dtype.itemsize}")
    shifted = np.right_shift(x.astype(unsigned), np.minimum(y.astype(unsigned), 8 * x.dtype.itemsize - 1))
    return np.where(y.astype(unsigned) < 8 * x.dtype.itemsize, shifted, 0).astype(x.dtype)


def _left(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where((y >= 0) & (y < 8 * x.dtype.itemsize), np.left_shift(x, y), 0).astype(x.dtype)


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "abs": np.abs,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": _logistic,
    "negate": np.negative,
    "not": _not,
    "round_nearest_afz": _round_away,
    "round_nearest_even": np.rint,
    "rsqrt": _inverse_root,
    "sign": np.sign,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "chlo.acos": np.arccos,
    "chlo.acosh": np.arccosh,
    "chlo.asin": np.arcsin,
    "chlo.asinh": np.arcsinh,
    "chlo.atan": np.arctan,
    "chlo.atanh": np.arctanh,
    "chlo.cosh": np.cosh,
    "chlo.erf": _of_jax(jax.lax.erf),
    "chlo.erf_inv": _of_jax(jax.lax.erf_inv),
    "chlo.erfc": _of_jax(jax.lax.erfc),
    "chlo.is_inf": np.isinf,
    "chlo.sinh": np.sinh,
    "chlo.square": np.square,
    "chlo.tan": np.tan,
}
"""Functions of one number."""

BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "atan2": np.arctan2,
    "divide": _divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "or": np.bitwise_or,
    "power": _power,
    "remainder": _remainder,
    "shift_left": _left,
    "shift_right_logical": _right_logical,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}
"""Functions of two numbers."""


def _clamp(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


OTHER = frozenset({"bitcast_convert", "clamp", "select", "compare", "convert"})
"""Functions of one, two or three numbers that depend on more than their name."""

NAMES = frozenset({*UNARY, *BINARY, *OTHER})
"""The names of all elementwise operations."""


def compute(
    name: str, operands: list[np.ndarray], attributes: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Return the result of an operation of `NAMES` on arrays that have its shape, or broadcast to it."""
    with np.errstate(all="ignore"):
        if name in UNARY:
            result = UNARY[name](*operands)
        elif name in BINARY:
            result = BINARY[name](*operands)
        elif name == "compare":
            result = COMPARISONS[attributes["comparison_direction"]](*operands)
        elif name == "select":
            result = np.where(*operands)
        elif name == "clamp":
            result = _clamp(*operands)
        elif name == "bitcast_convert":
            result = np.ascontiguousarray(operands[0]).view(dtype).reshape(shape)
        else:
            result = _converted(operands[0], dtype)
    return result if result.shape == shape else np.broadcast_to(result, shape)


def _converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return x != 0
    return _whole(x, dtype) if dtype.kind in "iu" and x.dtype.kind not in "iub" else x.astype(dtype)


def _whole(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert real numbers to integers: values out of range saturate, NaN becomes 0."""
    ends, numbers = np.iinfo(dtype), np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    inside = (numbers > float(ends.min)) & (numbers < float(ends.max))
    beyond = np.where(numbers > 0, dtype.type(ends.max), dtype.type(ends.min))
    return np.where(inside, np.where(inside, numbers, 0).astype(dtype), beyond)
