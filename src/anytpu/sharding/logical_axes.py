"""Logical axes: groups of the array axes of a traced step that index the same things.

Idea: `x @ w` contracts the features of `x` with the rows of `w`, so these two axes index the same things. Flax and
MaxText users write such names by hand ("embed", "mlp", "heads"); here they are found in the trace. A sharding of a
model is then a map from logical axes to mesh axes, and every weight, slot and activation follows from it.

Rule: axes with the same outermost factor (`program/axes.py`) are in one group. So a merged axis goes with its major
part: a block of the one is a block of the other. The groups only choose shardings; numbers never depend on them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.program.axes import Factors, factors_of
from anytpu.program.jaxprs import aval_of, called_jaxpr, level_of, scan_arguments

Axes = tuple[int, ...]
"""The group of each axis of one array."""

_Body = tuple[ClosedJaxpr | Jaxpr, list[Axes], list[Axes]]


@dataclasses.dataclass(frozen=True, eq=False)
class AxisLevel:
    """The logical axes in one jaxpr of a trace. A jaxpr that is called twice has two levels.

    Attributes:
        jaxpr: the jaxpr.
        axes: group of each axis of each variable.
        inner: levels of the jaxprs in the parameters of an equation, by the index of the equation.
        groups: the groups, shared by all levels of the trace.
    """

    jaxpr: Jaxpr
    axes: dict[Any, Axes]
    inner: dict[int, list[AxisLevel]]
    groups: AxisGroups

    def of(self, atom: Any) -> Axes:
        """Return the group of each axis of a variable; a new group for each axis of a literal."""
        if isinstance(atom, Literal) or atom not in self.axes:
            return (
                tuple(self.groups.add(size) for size in aval_of(atom).shape) if hasattr(aval_of(atom), "shape") else ()
            )
        return tuple(map(self.groups.find, self.axes[atom]))

    def equations(self) -> Iterator[tuple[AxisLevel, JaxprEqn, int]]:
        """Yield each equation with its level, and the number of times that it runs in a step; inner ones too."""
        yield from self._equations(1)

    def _equations(self, times: int) -> Iterator[tuple[AxisLevel, JaxprEqn, int]]:
        for index, equation in enumerate(self.jaxpr.eqns):
            levels = self.inner.get(index, [])
            if not levels:
                yield self, equation, times
            count = equation.params["length"] if equation.primitive.name == "scan" else 1
            for level in levels:
                yield from level._equations(times * count)


class AxisGroups:
    """Disjoint sets of axes, with the sizes of their members."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._sizes: list[set[int]] = []

    def add(self, size: int) -> int:
        """Return a new group of one axis."""
        self._parent.append(len(self._parent))
        self._sizes.append({size})
        return len(self._parent) - 1

    def find(self, axis: int) -> int:
        """Return the group of an axis."""
        while self._parent[axis] != axis:
            # Path halving: each visited axis skips one level.
            self._parent[axis] = self._parent[self._parent[axis]]
            axis = self._parent[axis]
        return axis

    def join(self, first: int, second: int) -> None:
        """Make two groups one."""
        first, second = self.find(first), self.find(second)
        if first != second:
            self._parent[second] = first
            self._sizes[first] |= self._sizes[second]

    def divisor(self, axis: int) -> int:
        """Return the greatest common divisor of the sizes of all axes of a group."""
        return math.gcd(*self._sizes[self.find(axis)])


def logical_axes(trace: ClosedJaxpr) -> AxisLevel:
    """Return the logical axes of a traced function.

    Example:
        >>> trace = jax.make_jaxpr(lambda w, x: x @ w)(np.ones((3, 4)), np.ones((2, 3)))
        >>> level = logical_axes(trace)
        >>> w, x = map(level.of, trace.jaxpr.invars)
        >>> w[0] == x[1], w[1] == x[0]
        (True, False)
    """
    return _level(trace.jaxpr, AxisGroups())


def _level(jaxpr: Jaxpr, groups: AxisGroups) -> AxisLevel:
    level = AxisLevel(jaxpr, {}, {}, groups)
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        level.axes[variable] = level.of(variable)
    for index, equation in enumerate(jaxpr.eqns):
        operands = [level.of(atom) for atom in equation.invars]
        results = [level.of(variable) for variable in equation.outvars]
        level.axes.update(zip(equation.outvars, results, strict=True))
        if equation.primitive.name == "shard_map":
            continue  # Its body is code for one device, with shardings of its own.
        level.inner[index] = [
            _called(level_of(body), groups, arguments, returned)
            for body, arguments, returned in _bodies(groups, equation, operands, results)
        ]
        if not level.inner[index]:
            _join_factors(groups, factors_of(equation), [*operands, *results])
    return level


def _join_factors(groups: AxisGroups, factors: Factors, arrays: Sequence[Axes]) -> None:
    """Join the axes with the same outermost factor."""
    known: dict[int, int] = {}
    for own, array in zip(arrays, (*factors.operands, *factors.results), strict=True):
        for group, axis in zip(own, array, strict=True):
            groups.join(known.setdefault(axis[0], group), group)


def _called(jaxpr: Jaxpr, groups: AxisGroups, operands: Sequence[Axes], results: Sequence[Axes]) -> AxisLevel:
    inner = _level(jaxpr, groups)
    _join_all(groups, operands, map(inner.of, jaxpr.invars))
    _join_all(groups, results, map(inner.of, jaxpr.outvars))
    return inner


def _join_all(groups: AxisGroups, firsts: Iterable[Axes], seconds: Iterable[Axes]) -> None:
    """Join the axes of arrays of equal shapes, pair by pair."""
    for first, second in zip(firsts, seconds, strict=True):
        for axis, other in zip(first, second, strict=True):
            groups.join(axis, other)


def _bodies(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> list[_Body]:
    """Return the jaxprs in an equation, each with the axes of its arguments and results, and join those of a carry."""
    params, called = equation.params, called_jaxpr(equation)
    match equation.primitive.name:
        case "scan":
            constants, carried = scan_arguments(equation)
            fixed = constants + carried
            _join_all(groups, operands[constants:fixed], results[:carried])
            # The leading axis of a stacked operand or result counts the iterations; the body has the other axes.
            arguments = [*operands[:fixed], *[axes[1:] for axes in operands[fixed:]]]
            return [(params["jaxpr"], arguments, [*results[:carried], *[axes[1:] for axes in results[carried:]]])]
        case "while":
            tested, fixed = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            carry = operands[fixed:]
            _join_all(groups, carry, results)
            bodies: dict[str, _Body] = {
                "cond_jaxpr": (params["cond_jaxpr"], [*operands[:tested], *carry], [()]),
                "body_jaxpr": (params["body_jaxpr"], [*operands[tested:fixed], *carry], carry),
            }
            # `inner_jaxprs` yields them in the order of the parameters.
            return [bodies[name] for name in params if name in bodies]
        case "cond":
            return [(branch, operands[1:], results) for branch in params["branches"]]
        case _:
            return [] if called is None else [(called, operands, results)]
