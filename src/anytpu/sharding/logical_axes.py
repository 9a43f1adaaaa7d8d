"""Logical axes: groups of the array axes of a traced step that index the same things.

Idea: `x @ w` contracts the features of `x` with the rows of `w`, so these two axes index the same things. Flax and
MaxText users write such names by hand ("embed", "mlp", "heads"); here they are found in the trace. A sharding of a
model is then a map from logical axes to mesh axes, and every weight, slot and activation follows from it.

Rule: an operation without a rule of its own relates the axes of equal size at equal positions of its operands and
results. A reshape relates a merged axis to its major part: a block of the one is a block of the other. An axis that
no rule relates has a group of its own. The groups only choose shardings; numbers never depend on them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.program.jaxprs import aval_of, called_jaxpr, inner_jaxprs, level_of, scan_arguments

Axes = tuple[int, ...]
"""The group of each axis of one array."""


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
        name = equation.primitive.name
        if name == "shard_map":
            continue  # Its body is code for one device, with shardings of its own.
        called = called_jaxpr(equation)
        if name in _NESTED:
            level.inner[index] = _NESTED[name](groups, equation, operands, results)
        elif called is not None:
            level.inner[index] = [_call(called, groups, operands, results)]
        else:
            _RULES.get(name, _equal_sizes)(groups, equation, operands, results)
    return level


def _call(jaxpr: Jaxpr, groups: AxisGroups, operands: Sequence[Axes], results: Sequence[Axes]) -> AxisLevel:
    inner = _level(jaxpr, groups)
    _join_all(groups, operands, map(inner.of, jaxpr.invars))
    _join_all(groups, results, map(inner.of, jaxpr.outvars))
    return inner


def _join_all(groups: AxisGroups, firsts: Any, seconds: Any) -> None:
    """Join the axes of arrays of equal shapes, pair by pair."""
    for first, second in zip(firsts, seconds, strict=True):
        _join(groups, first, second)


def _join(groups: AxisGroups, first: Axes, second: Axes) -> None:
    for one_axis, other in zip(first, second, strict=True):
        groups.join(one_axis, other)


# Operations with bodies


def _scan(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> list[AxisLevel]:
    constants, carried = scan_arguments(equation)
    fixed, body = constants + carried, level_of(equation.params["jaxpr"])
    # The leading axis of a stacked operand or result counts the iterations; the body has the other axes.
    inner = _call(
        body,
        groups,
        [*operands[:fixed], *[axes[1:] for axes in operands[fixed:]]],
        [*results[:carried], *[axes[1:] for axes in results[carried:]]],
    )
    _join_all(groups, operands[constants:fixed], results[:carried])
    return [inner]


def _while(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> list[AxisLevel]:
    params = equation.params
    conditions, bodies = params["cond_nconsts"], params["body_nconsts"]
    carry = operands[conditions + bodies :]
    _join_all(groups, carry, results)
    condition = _level(level_of(params["cond_jaxpr"]), groups)
    _join_all(groups, [*operands[:conditions], *carry], map(condition.of, condition.jaxpr.invars))
    body = _call(level_of(params["body_jaxpr"]), groups, [*operands[conditions : conditions + bodies], *carry], carry)
    # `inner_jaxprs` yields them in the order of the parameters.
    levels = {id(condition.jaxpr): condition, id(body.jaxpr): body}
    return [levels[id(level_of(inner))] for inner in inner_jaxprs(equation)]


def _cond(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> list[AxisLevel]:
    return [_call(level_of(branch), groups, operands[1:], results) for branch in equation.params["branches"]]


_NESTED: dict[str, Callable[[AxisGroups, JaxprEqn, list[Axes], list[Axes]], list[AxisLevel]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}


# Operations without bodies


def _equal_sizes(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    """Relate axes of equal size at equal positions. Axes of one element are broadcast, and index nothing."""
    for atom, axes in zip(equation.invars, operands, strict=True):
        for variable, result in zip(equation.outvars, results, strict=True):
            if len(axes) != len(result):
                continue
            sizes = zip(axes, result, aval_of(atom).shape, aval_of(variable).shape, strict=True)
            for operand_axis, result_axis, size, new_size in sizes:
                if size == new_size != 1:
                    groups.join(operand_axis, result_axis)


def _pairwise(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    """Relate each operand to the result at its position."""
    _join_all(groups, operands, results)


def _transpose(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    _join(groups, results[0], tuple(operands[0][axis] for axis in equation.params["permutation"]))


def _broadcast(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    old, new = aval_of(equation.invars[0]).shape, aval_of(equation.outvars[0]).shape
    for axis, target in enumerate(equation.params["broadcast_dimensions"]):
        if old[axis] == new[target]:
            groups.join(operands[0][axis], results[0][target])


def _reduce(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    removed = equation.params["axes"]
    for axes, result in zip(operands, results, strict=False):
        _join(groups, tuple(axis for index, axis in enumerate(axes) if index not in removed), result)


def _squeeze(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    removed = equation.params["dimensions"]
    _join(groups, tuple(axis for index, axis in enumerate(operands[0]) if index not in removed), results[0])


def _reshape(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    """Relate the axes of the smallest parts of both shapes with the same number of elements."""
    old, new = aval_of(equation.invars[0]).shape, aval_of(equation.outvars[0]).shape
    # Axes of one element index nothing.
    before = [pair for pair in zip(operands[0], old, strict=True) if pair[1] != 1]
    after = [pair for pair in zip(results[0], new, strict=True) if pair[1] != 1]
    if equation.params.get("dimensions") is not None or 0 in old:
        return
    while before and after:
        # Take more axes of the smaller side until both have as many elements.
        left, right = [before.pop(0)], [after.pop(0)]
        while (left_size := math.prod(s for _, s in left)) != (right_size := math.prod(s for _, s in right)):
            if left_size < right_size:
                left.append(before.pop(0))
            else:
                right.append(after.pop(0))
        if 1 in (len(left), len(right)) or left[0][1] == right[0][1]:
            groups.join(left[0][0], right[0][0])


def _dot_general(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
    for pair in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        groups.join(operands[0][pair[0]], operands[1][pair[1]])
    free = [
        *[operands[0][axis] for axis in left_batch],
        *[axis for index, axis in enumerate(operands[0]) if index not in (*left, *left_batch)],
        *[axis for index, axis in enumerate(operands[1]) if index not in (*right, *right_batch)],
    ]
    _join(groups, results[0], tuple(free))


def _convolution(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    params = equation.params
    image, kernel, result = params["dimension_numbers"]
    if params["batch_group_count"] == 1:
        groups.join(operands[0][image[0]], results[0][result[0]])
    if params["feature_group_count"] == params["batch_group_count"] == 1:
        groups.join(operands[0][image[1]], operands[1][kernel[1]])
    groups.join(operands[1][kernel[0]], results[0][result[1]])


def _gather(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape = aval_of(equation.invars[0]).shape
    removed = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(len(shape)) if axis not in removed]
    for target, axis in zip(numbers.offset_dims, kept, strict=True):
        if sizes[axis] == shape[axis]:
            groups.join(operands[0][axis], results[0][target])
    positions = [axis for axis in range(len(results[0])) if axis not in numbers.offset_dims]
    for target, axis in zip(positions, operands[1][:-1], strict=True):
        groups.join(axis, results[0][target])
    for axis, other in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        groups.join(operands[0][axis], operands[1][other])


def _scatter(groups: AxisGroups, equation: JaxprEqn, operands: list[Axes], results: list[Axes]) -> None:
    numbers = equation.params["dimension_numbers"]
    array, indices, updates = operands[:3]
    shapes = [aval_of(atom).shape for atom in equation.invars]
    _join(groups, array, results[0])
    removed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(len(array)) if axis not in removed]
    for axis, update in zip(kept, numbers.update_window_dims, strict=True):
        if shapes[0][axis] == shapes[2][update]:
            groups.join(array[axis], updates[update])
    positions = [axis for axis in range(len(updates)) if axis not in numbers.update_window_dims]
    for update, axis in zip(positions, indices[:-1], strict=True):
        groups.join(axis, updates[update])


_RULES: dict[str, Callable[[AxisGroups, JaxprEqn, list[Axes], list[Axes]], None]] = {
    "optimization_barrier": _pairwise,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter-min", "scatter-max"), _scatter),
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"),
        _reduce,
    ),
}
