"""Numbers of rows: scalars of a step that hang on how many rows its batch has.

Idea: `jnp.mean` divides by a constant, the number of rows with pads. The step is traced for two numbers of rows, and a
constant that differs is one: a multiple of the rows, of their square, or a number divided by them. It is replaced by
the same for the real rows: this replica's, or all replicas' where JAX has summed it over them (`folds.py`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from anytpu.strategy.padded.operation import RealRows


@dataclasses.dataclass(frozen=True)
class Count:
    """A scalar that is a number times a power of the number of rows.

    Attributes:
        factor: the number.
        power: 1, or 2 for pairs of rows, or -1.
        is_divisor: something is divided by it: an empty replica has one row then, so that 0 / 0 is 0.
        replicas: the number of replicas that have been multiplied into the rows, where they are those of all replicas;
            else None.
    """

    factor: float
    power: int
    is_divisor: bool = False
    replicas: int | None = None

    def value(self, real: RealRows, dtype: Any) -> Any:
        """Return the scalar for the real rows."""
        if self.replicas is not None:
            return self._summed(real.total, self.replicas).astype(dtype)
        rows = real.rows
        if self.power < 0:
            return (self.factor / jnp.maximum(rows, 1)).astype(dtype)
        counted = jnp.maximum(rows, 1) if self.is_divisor else rows
        return (counted**self.power * int(self.factor)).astype(dtype)

    def _summed(self, total: Any, replicas: int) -> Any:
        if self.power < 0:
            return self.factor * replicas / total
        is_whole = self.factor % replicas == 0
        return total * (int(self.factor) // replicas) if is_whole else total * (self.factor / replicas)


def count_of(first: Any, second: Any, rooms: tuple[int, int]) -> Count | None:
    """Return the count that a scalar is.

    Args:
        first: its value in the trace for `rooms[0]` rows.
        second: that for `rooms[1]` rows.
        rooms: the two numbers of rows.

    Returns:
        The count; None when the two values are not those of a count.
    """
    one, two = float(first), float(second)
    if not (math.isfinite(one) and math.isfinite(two) and one):
        return None
    for power in (1, 2):
        factor = one / rooms[0] ** power
        if factor == int(factor) and two == factor * rooms[1] ** power:
            return Count(factor, power)
    if jnp.issubdtype(np.asarray(first).dtype, jnp.inexact):
        factor, rounding = one * rooms[0], 4 * float(jnp.finfo(np.asarray(first).dtype).eps)
        if math.isclose(factor, two * rooms[1], rel_tol=rounding):
            return Count(factor, -1)
    return None


def is_same(first: Any, second: Any) -> bool:
    """Say whether two constants are equal; NaN equals NaN."""
    if first is second:
        return True
    one, two = np.asarray(first), np.asarray(second)
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return bool(np.all((one == two) | ((one != one) & (two != two))))
