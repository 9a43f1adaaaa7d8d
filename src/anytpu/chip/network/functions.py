"""Scalar functions: a chain of elementwise operations as one function, and the common names of such functions.

Idea: a function's name depends on its values, not on its operations. Its values at a few hundred points are compared
with those of the functions that have names.

Rule: a name is for display only. A rewrite that replaces a function examines its operations (`affine.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from anytpu.chip.network import affine, elementwise
from anytpu.chip.network.operations import Operation


@dataclasses.dataclass(frozen=True, eq=False)
class OperationChain:
    """A chain of elementwise operations with one input: a scalar function.

    Attributes:
        root: name of the input value.
        dtype: dtype of the input value, in which the function is computed.
        operations: the operations, in order; each constant is a single number. The last operation makes the result.

    Example:
        >>> chain(np.float32([-1, 2]))
        array([0., 2.], dtype=float32)
    """

    root: str
    dtype: np.dtype
    operations: tuple[Operation, ...]

    @property
    def key(self) -> object:
        """A key that is equal for functions of the same dtype, operations and constants."""
        return (
            self.dtype,
            *(
                (
                    operation.name,
                    operation.dtype,
                    str(operation.attributes.get("comparison_direction")),
                    *(
                        operand if isinstance(operand, str) else (operand.dtype, operand.tobytes())
                        for operand in operation.operands
                    ),
                )
                for operation in self.operations
            ),
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the function of each number of a float32 array."""
        values = {self.root: np.asarray(x, np.float32).astype(self.dtype, copy=False)}
        for operation in self.operations:
            operands = [values[operand] if isinstance(operand, str) else operand for operand in operation.operands]
            values[operation.result] = elementwise.compute(
                operation.name, operands, operation.attributes, np.shape(x), operation.dtype
            )
        return values[self.operations[-1].result].astype(np.float32)


def chain_from(
    operations: Sequence[Operation], root: str, dtype: np.dtype, known: dict[object, OperationChain]
) -> OperationChain:
    """Return operations as a function; all elements of each constant are the same number.

    Args:
        operations: the operations, in order.
        root: name of the input value.
        dtype: dtype of the root.
        known: the functions so far, by key; a function with the same key is reused.
    """
    names = {root: "x", **{operation.result: f"%{index}" for index, operation in enumerate(operations)}}
    renamed = tuple(
        dataclasses.replace(
            operation,
            operands=tuple(
                names[operand] if isinstance(operand, str) else _number(operand) for operand in operation.operands
            ),
            result=names[operation.result],
            shape=(),
            dtype=_working(operation.dtype),
            layer="",
        )
        for operation in operations
    )
    made = OperationChain("x", _working(dtype), renamed)
    return known.setdefault(made.key, made)


def _working(dtype: np.dtype) -> np.dtype:
    """Return the dtype that a function is computed in: float32 for 16-bit floats, otherwise the same."""
    return np.dtype(np.float32) if dtype.name in ("bfloat16", "float16") else dtype


def _number(constant: np.ndarray) -> np.ndarray:
    number = np.asarray(constant[(0,) * constant.ndim])
    return number.astype(_working(number.dtype))


@functools.lru_cache(maxsize=1)
def _points() -> np.ndarray:
    near = np.linspace(-12, 12, 385)
    far = np.array([13, 20, 37.5, 80, 255, 1e3, 1e4, 1e6, 1e30])
    return np.concatenate([-far[::-1], near, far]).astype(np.float32)


def affine_bounds_of(chain: OperationChain) -> tuple[float, float, float, float] | None:
    """Return (factor, offset, low, high) of a clipped affine function; None for other functions."""
    line = affine.clipped_affine_of(chain.operations, chain.root)
    if line is None:
        return None
    largest = float(np.finfo(np.float32).max)
    low = -math.inf if line.low <= -largest else line.low
    high = math.inf if line.high >= largest else line.high
    return float(np.float32(line.factor)), float(np.float32(line.offset)), low, high


def is_identity(chain: OperationChain) -> bool:
    """Return whether a function returns its argument, up to rounding."""
    line = affine_bounds_of(chain)
    return line is not None and math.isclose(line[0], 1, rel_tol=1e-6) and line[1:] == (0, -math.inf, math.inf)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


_NAMED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu, by tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "softplus": _softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "hard sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "exp": np.exp,
    "square": np.square,
    "abs": np.abs,
    "log sigmoid": lambda x: -_softplus(-x),
}


def kind_of(chain: OperationChain) -> str:
    """Return the common name of a function; "function" if it has none."""
    line, values = affine_bounds_of(chain), chain(_points())
    if line is not None and line[:2] == (1, 0):
        return {(0.0, math.inf): "relu", (0.0, 6.0): "relu6"}.get(line[2:], "clip")
    if line is not None and line[2:] == (-math.inf, math.inf):
        return "scale"
    for name, expected in _expected().items():
        if np.allclose(values, expected, rtol=1e-4, atol=1e-6, equal_nan=True):
            return name
    return "leaky relu" if _is_leaky(values) else "function"


@functools.lru_cache(maxsize=1)
def _expected() -> dict[str, np.ndarray]:
    points = _points().astype(np.float64)
    with np.errstate(all="ignore"):
        return {name: function(points).astype(np.float32) for name, function in _NAMED.items()}


def _is_leaky(values: np.ndarray) -> bool:
    """Return whether values are the argument itself above 0, and a line of another slope, not 0, below."""
    points = _points()
    below, above = points < 0, points > 0
    with np.errstate(all="ignore"):
        slopes = [values[side] / points[side] for side in (below, above)]
    if values[points == 0][0] != 0 or not all(np.allclose(slope, slope[0], rtol=1e-4) for slope in slopes):
        return False
    slope, steep = slopes[0][0], slopes[1][0]
    return math.isclose(steep, 1, rel_tol=1e-4) and slope != 0 and not math.isclose(slope, 1, rel_tol=1e-4)
