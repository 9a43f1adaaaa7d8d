"""Constants of a traced step that count rows: of one replica, or of all replicas.

Idea: `jnp.mean` divides by a constant, the number of rows with pads. The step is traced for two numbers of rows. A
constant that differs is c·n, c·n² or c/n for n rows, and is replaced by the same for the real rows.

`jax.lax.psum` of a Python number adds no operation: JAX multiplies the number by the axis size while it traces. So
`psum(len(x), "replica")` is a constant c·n too, but counts the rows of all replicas. One more trace uses another axis
size in that multiplication alone. The constants that differ there are such sums. `pmean` is found in the same way.

Rule: `psum(1, "replica")`, the number of replicas, is correct in each trace, and so are all shapes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal

from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.padded.axes import RealRows

_OTHER_SIZE = 1009
"""Size of the replica axis in the multiplications of the extra trace: a prime that is no number of replicas."""


@dataclasses.dataclass(frozen=True)
class CountConstant:
    """A constant equal to a factor times a power of the number of rows.

    Attributes:
        factor: the factor.
        power: 1, 2 (pairs of rows) or -1.
        is_divisor: True if it divides a value. A replica without rows then counts as one row, so that 0 / 0 is 0.
        replicas: number of replicas, if the constant counts the rows of all of them; otherwise None.
    """

    factor: float
    power: int
    is_divisor: bool = False
    replicas: int | None = None

    def value(self, real: RealRows, dtype: Any) -> Any:
        """Return the scalar for the real rows."""
        if self.replicas is not None:
            return self._of_all_replicas(real.total, self.replicas).astype(dtype)
        if self.power < 0:
            return (self.factor / jnp.maximum(real.rows, 1)).astype(dtype)
        rows = jnp.maximum(real.rows, 1) if self.is_divisor else real.rows
        return (rows**self.power * int(self.factor)).astype(dtype)

    def _of_all_replicas(self, total: Any, replicas: int) -> Any:
        if self.power < 0:
            return self.factor * replicas / total
        is_integer = self.factor % replicas == 0
        return total * (int(self.factor) // replicas) if is_integer else total * (self.factor / replicas)


def count_constant_of(first: Any, second: Any, rows: tuple[int, int]) -> CountConstant | None:
    """Return the row count that a constant is, or None if its values are not those of a row count.

    Args:
        first: its value in the trace for `rows[0]` rows.
        second: its value in the trace for `rows[1]` rows.
        rows: the two numbers of rows.
    """
    a, b = float(first), float(second)
    if not (math.isfinite(a) and math.isfinite(b) and a):
        return None
    for power in (1, 2):
        factor = a / rows[0] ** power
        if factor == int(factor) and b == factor * rows[1] ** power:
            return CountConstant(factor, power)
    if jnp.issubdtype(np.asarray(first).dtype, jnp.inexact):
        factor, tolerance = a * rows[0], 4 * float(jnp.finfo(np.asarray(first).dtype).eps)
        if math.isclose(factor, b * rows[1], rel_tol=tolerance):
            return CountConstant(factor, -1)
    return None


def is_equal(first: Any, second: Any) -> bool:
    """Return whether two constants are equal; NaN equals NaN."""
    if first is second:
        return True
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(np.all((a == b) | ((a != a) & (b != b))))


class AxisSize(int):
    """A size of the replica axis that converts to `_OTHER_SIZE` where JAX multiplies a Python number by it.

    JAX (as of 0.12) does so in a function `_const(example, size)`, which converts the size to the type of the number.
    """

    # Compare by identity, so that JAX does not reuse a cached trace for the same number.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __rmul__(self, other: int) -> int:
        return self if other == 1 else int.__rmul__(self, other)

    def __int__(self) -> int:
        return self._converted(sys._getframe(1))

    def __float__(self) -> float:
        return float(self._converted(sys._getframe(1)))

    def _converted(self, caller: Any) -> int:
        number = caller.f_locals.get("example", 1) if caller.f_code.co_name == "_const" else 1
        return int.__index__(self) if np.ndim(number) == 0 and number == 1 else _OTHER_SIZE


@functools.cache
def _axis_size(replicas: int) -> AxisSize:
    """Return the same object for each number of replicas, so that JAX finds its cached traces."""
    return AxisSize(replicas)


@dataclasses.dataclass(frozen=True)
class ReplicaSums:
    """The constants of a traced step that contain a Python number summed over the replicas.

    Attributes:
        replicas: number of replicas.
        powers: power of the sum in each constant: 1 or -1, or 0 for any other function of it. The key is
            `(id(owner), index)`. The owner is the operation that takes the constant, the jaxpr that returns it, or the
            variable that stands for it.
    """

    replicas: int = 1
    powers: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)

    def power(self, owner: Any, index: int) -> int | None:
        """Return the power of the sum in a constant; None for a constant without a sum."""
        return self.powers.get((id(owner), index))


class TraceDifferenceError(Exception):
    """An operation depends on a sum over the replicas in another way than by a constant operand.

    Attributes:
        equation: the operation.
    """

    def __init__(self, equation: Any) -> None:
        super().__init__()
        self.equation = equation


def find_replica_sums(step: Callable, specs: tuple[Any, ...], replicas: int, trace: Any) -> ReplicaSums:
    """Return the constants of a step that contain sums over the replicas.

    Args:
        step: the step.
        specs: the specs of its arguments.
        replicas: number of replicas.
        trace: its trace.

    Raises:
        TraceDifferenceError: an operation depends on such a sum in another way than by a constant operand.
    """
    other = jax.make_jaxpr(step, axis_env=[(REPLICA_AXIS, _axis_size(replicas))])(*specs)
    differences = _differing_constants(trace, other)
    ratio = _OTHER_SIZE / replicas
    return ReplicaSums(replicas, {(id(owner), index): _power(a, b, ratio) for owner, index, a, b in differences})


def _power(first: Any, second: Any, ratio: float) -> int:
    if np.ndim(first):
        return 0
    dtype = np.asarray(first).dtype
    tolerance = 4 * float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 1e-12
    for power in (1, -1):
        if math.isclose(float(second), float(first) * ratio**power, rel_tol=tolerance):
            return power
    return 0


_Difference = tuple[Any, int, Any, Any]
"""A constant that differs between two traces: its owner, its index and both values."""


def _differing_constants(first: Any, second: Any) -> Iterator[_Difference]:
    inner, other = getattr(first, "jaxpr", first), getattr(second, "jaxpr", second)
    constants = (inner.constvars, getattr(first, "consts", ()), getattr(second, "consts", ()))
    for variable, a, b in zip(*constants, strict=False):
        # Skip tracers: arrays that a loss captures are operands of the operation that differentiates it.
        if not isinstance(a, Tracer) and not is_equal(a, b):
            yield variable, 0, a, b
    equation = None
    for equation, its_other in zip(inner.eqns, other.eqns, strict=False):
        if equation.primitive is not its_other.primitive or _shapes(equation) != _shapes(its_other):
            raise TraceDifferenceError(equation)
        yield from _differing_literals(equation, equation.invars, its_other.invars)
        for name, value in equation.params.items():
            yield from _differing_parameters(equation, value, its_other.params[name])
    if len(inner.eqns) != len(other.eqns):
        raise TraceDifferenceError(equation)
    yield from _differing_literals(inner, inner.outvars, other.outvars)


def _shapes(equation: Any) -> list[Any]:
    return [getattr(variable.aval, "shape", None) for variable in equation.outvars]


def _differing_literals(owner: Any, first: Any, second: Any) -> Iterator[_Difference]:
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        if isinstance(a, Literal) and isinstance(b, Literal) and not is_equal(a.val, b.val):
            yield owner, index, a.val, b.val


def _differing_parameters(equation: Any, first: Any, second: Any) -> Iterator[_Difference]:
    if _is_jaxpr(first):
        yield from _differing_constants(first, second)
    elif isinstance(first, tuple) and any(map(_is_jaxpr, first)):
        for a, b in zip(first, second, strict=True):
            yield from _differing_constants(a, b)
    # Skip NaN, which is not equal to itself, such as the fill value of a gather out of bounds.
    elif isinstance(first, int | float | str | tuple) and first != second and first == first:
        raise TraceDifferenceError(equation)


def _is_jaxpr(value: Any) -> bool:
    return getattr(getattr(value, "jaxpr", value), "eqns", None) is not None
