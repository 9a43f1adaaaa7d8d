"""Folded sums: constants into which JAX has multiplied the number of replicas.

Idea: `jax.lax.psum` of a Python number is no operation: JAX multiplies the number by the size of the axis while it
traces. So `psum(len(x), "replica")` is a constant c·n, as `c * len(x)` is, but it counts the rows of all replicas. The
step is traced once more with another size of the axis in that multiplication alone; constants that differ are such
sums. `pmean` divides the sum by the number of replicas, and is found in the same way.

Rule: `psum(1, "replica")`, the number of replicas, is the true one in each trace, and so are all shapes.
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
from anytpu.strategy.padded.counts import is_same

_OTHER_SIZE = 1009
"""The size of the axis in folded sums: a prime that is no number of replicas."""


class AxisSize(int):
    """The size of the axis of replicas, which is another one where JAX multiplies a Python number by it.

    JAX (as of 0.12) does so in a function `_const(example, size)`, which converts the size to the type of the number.
    """

    # Another size than the same number: JAX keeps what it has traced by the sizes of the axes.
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
    """Return the one size of so many replicas, so that JAX finds what it has traced with it."""
    return AxisSize(replicas)


@dataclasses.dataclass(frozen=True)
class Folds:
    """The folded sums among the constants of a traced step.

    Attributes:
        replicas: the number of replicas.
        powers: for each, by `(id(its owner), position)`, the power of the sum in it, 1 or -1; 0 for any other function
            of it. The owner is the operation that takes it, the jaxpr that returns it, or the variable that stands
            for it.
    """

    replicas: int = 1
    powers: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)

    def power(self, owner: Any, position: int) -> int | None:
        """Return the power of the folded sum in a constant; None for a constant without one."""
        return self.powers.get((id(owner), position))


class ChangedError(Exception):
    """An operation of a step hangs on a folded sum in another way than by a constant that it takes.

    Attributes:
        equation: the operation.
    """

    def __init__(self, equation: Any) -> None:
        super().__init__()
        self.equation = equation


def folds_of(step: Callable, specs: tuple[Any, ...], replicas: int, first: Any) -> Folds:
    """Return the folded sums of a step.

    Args:
        step: the step.
        specs: the arguments that it was traced for.
        replicas: the number of replicas.
        first: its trace.

    Raises:
        ChangedError: an operation hangs on one in another way than by a constant.
    """
    other = jax.make_jaxpr(step, axis_env=[(REPLICA_AXIS, _axis_size(replicas))])(*specs)
    found = {
        (id(owner), position): _power(one, two, _OTHER_SIZE / replicas)
        for owner, position, one, two in _differences(first, other)
    }
    return Folds(replicas, found)


def _power(one: Any, two: Any, ratio: float) -> int:
    if np.ndim(one):
        return 0
    dtype = np.asarray(one).dtype
    rounding = 4 * float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 1e-12
    for power in (1, -1):
        if math.isclose(float(two), float(one) * ratio**power, rel_tol=rounding):
            return power
    return 0


def _differences(first: Any, other: Any) -> Iterator[tuple[Any, int, Any, Any]]:
    """Yield the constants that differ between two traces: their owners, positions and both values."""
    inner, second = getattr(first, "jaxpr", first), getattr(other, "jaxpr", other)
    consts = (inner.constvars, getattr(first, "consts", ()), getattr(other, "consts", ()))
    for variable, one, two in zip(*consts, strict=False):
        # The tracers that a loss captures are arguments of the operation that differentiates it.
        if not isinstance(one, Tracer) and not is_same(one, two):
            yield variable, 0, one, two
    equation = None
    for equation, twin in zip(inner.eqns, second.eqns, strict=False):
        if equation.primitive is not twin.primitive or _shapes(equation) != _shapes(twin):
            raise ChangedError(equation)
        yield from _constants(equation, equation.invars, twin.invars)
        for name, one in equation.params.items():
            yield from _in_parameter(equation, one, twin.params[name])
    if len(inner.eqns) != len(second.eqns):
        raise ChangedError(equation)
    yield from _constants(inner, inner.outvars, second.outvars)


def _shapes(equation: Any) -> list[Any]:
    return [getattr(variable.aval, "shape", None) for variable in equation.outvars]


def _constants(owner: Any, first: Any, other: Any) -> Iterator[tuple[Any, int, Any, Any]]:
    for position, (one, two) in enumerate(zip(first, other, strict=True)):
        if isinstance(one, Literal) and isinstance(two, Literal) and not is_same(one.val, two.val):
            yield owner, position, one.val, two.val


def _in_parameter(equation: Any, one: Any, two: Any) -> Iterator[tuple[Any, int, Any, Any]]:
    if _is_jaxpr(one):
        yield from _differences(one, two)
    elif isinstance(one, tuple) and any(map(_is_jaxpr, one)):
        for part, twin in zip(one, two, strict=True):
            yield from _differences(part, twin)
    # A NaN, such as the value of a gather out of bounds, is not equal to itself.
    elif isinstance(one, int | float | str | tuple) and one != two and one == one:
        raise ChangedError(equation)


def _is_jaxpr(value: Any) -> bool:
    return getattr(getattr(value, "jaxpr", value), "eqns", None) is not None
