"""Loops and branches of a step that have a collective in them, run by all groups of replicas together.

Idea: the body of a loop is run in lockstep, as the step itself. A value that the loop carries is one array if it stays
equal on all replicas, and else one for each group. The body is traced abstractly until no more values turn out to
differ.

Rule: the number of steps of a loop is equal on all replicas. Replicas that choose different branches compute all of
them, as under `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from anytpu.program.jaxprs import scan_arguments
from anytpu.strategy.uneven.groups import Groups, PerGroup, Single, Value, is_equal
from anytpu.strategy.uneven.nodes import NodeList, described, node_list, spec_of_result

Columns = Sequence[Sequence[Value]]
"""For each value, that of each group."""


class Packing:
    """Values of all groups as arguments of a function that JAX traces.

    Args:
        groups: the groups.
        columns: for each value, that of each group.
        shared: for each value, whether it is passed as one array for all replicas; None: those that are equal.
    """

    def __init__(self, groups: Groups, columns: Columns, shared: list[bool] | None = None) -> None:
        self._groups, self._columns = groups, columns
        self.shared = [is_equal(column) for column in columns] if shared is None else shared

    def arrays(self) -> list[Any]:
        """Return one array for each shared value, and a list of one for each group for any other."""
        groups = self._groups.groups
        return [
            jnp.asarray(column[0].array)
            if is_shared
            else [jnp.asarray(self._groups.own(*pair)) for pair in zip(column, groups, strict=True)]
            for column, is_shared in zip(self._columns, self.shared, strict=True)
        ]

    def values(self, arrays: list[Any]) -> PerGroup:
        """Return the values of each group, of arrays in the form of `arrays`."""
        identity = object()
        columns = [
            [Value(array, (identity, index))] * len(self._groups.groups)
            if is_shared
            else [Value(part, None) for part in array]
            for index, (array, is_shared) in enumerate(zip(arrays, self.shared, strict=True))
        ]
        return _rows(columns, self._groups)


def _rows(columns: Columns, groups: Groups) -> PerGroup:
    """Return the values of each group, from those of all groups for each value."""
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in groups.groups]


def _columns(values: PerGroup, start: int = 0, stop: int | None = None) -> Columns:
    return list(zip(*(row[start:stop] for row in values), strict=True))


def _bodies(equations: list[JaxprEqn], name: str) -> list[NodeList]:
    return [_body(equation.params[name]) for equation in equations]


def _body(jaxpr: Any) -> NodeList:
    return node_list(jaxpr, getattr(jaxpr, "consts", ()))


def _settled(groups: Groups, start: Columns, trace: Callable[[Packing], Columns]) -> Packing:
    """Return the carried values of a loop, where those that stay equal on all replicas are one array.

    Args:
        groups: the groups.
        start: the values before the loop.
        trace: traces one step of the loop abstractly, and returns the values after it.
    """
    shared = [is_equal(column) for column in start]
    while True:
        packing = Packing(groups, start, shared)
        after = [a and is_equal(column) for a, column in zip(shared, trace(packing), strict=True)]
        if after == shared:
            return packing
        shared = after


def _scan(lockstep: Any, equations: list[JaxprEqn], operands: PerGroup) -> PerGroup:
    first, groups = equations[0], lockstep.groups
    constants, carried = scan_arguments(first)
    steps = {(equation.params["length"], equation.params["reverse"]) for equation in equations}
    if len(steps) > 1 or len({scan_arguments(equation) for equation in equations}) > 1:
        _refuse_steps(lockstep, first)
    bodies = _bodies(equations, "jaxpr")
    start, scanned = _columns(operands, constants, constants + carried), _columns(operands, constants + carried)
    slices = Packing(groups, scanned)
    stacks = _per_replica(groups.steps_first, slices)(slices.arrays())
    after: Columns = []

    def step_of(carry: Packing) -> Callable:
        def step(arrays: list[Any], taken: list[Any]) -> tuple[list[Any], list[Any]]:
            rows = zip(operands, carry.values(arrays), slices.values(taken), strict=True)
            arguments = [[*values[:constants], *kept, *own] for values, kept, own in rows]
            after[:] = _columns(lockstep.beside().run(bodies, arguments))
            return Packing(groups, after[:carried], carry.shared).arrays(), Packing(groups, after[carried:]).arrays()

        return step

    def trace(carry: Packing) -> Columns:
        specs = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), stacks)
        jax.eval_shape(step_of(carry), carry.arrays(), specs)
        return after[:carried]

    carry = _settled(groups, start, trace)
    length, reverse = steps.pop()
    last, ys = jax.lax.scan(step_of(carry), carry.arrays(), stacks, length, reverse)
    results = Packing(groups, after[carried:])
    ys = results.values(_per_replica(groups.steps_last, results)(ys))
    return [[*kept, *own] for kept, own in zip(carry.values(last), ys, strict=True)]


def _per_replica(change: Callable[[Any], Any], packing: Packing) -> Callable[[list[Any]], list[Any]]:
    """Return a function that changes the arrays that each replica has for itself."""

    def changed(arrays: list[Any]) -> list[Any]:
        pairs = zip(arrays, packing.shared, strict=True)
        return [array if is_shared else [change(part) for part in array] for array, is_shared in pairs]

    return changed


def _while(lockstep: Any, equations: list[JaxprEqn], operands: PerGroup) -> PerGroup:
    first, groups = equations[0], lockstep.groups
    tested, fixed = first.params["cond_nconsts"], first.params["cond_nconsts"] + first.params["body_nconsts"]
    conditions, bodies = _bodies(equations, "cond_jaxpr"), _bodies(equations, "body_jaxpr")
    after: Columns = []

    def continues_with(carry: Packing) -> Callable:
        def continues(arrays: list[Any]) -> Any:
            rows = zip(operands, carry.values(arrays), strict=True)
            ((test,),) = [_columns(lockstep.beside().run(conditions, [[*v[:tested], *own] for v, own in rows]))]
            if not is_equal(test) and not isinstance(groups, Single):
                _refuse_steps(lockstep, first)
            return jnp.asarray(test[0].array)

        return continues

    def step_of(carry: Packing) -> Callable:
        def step(arrays: list[Any]) -> list[Any]:
            rows = zip(operands, carry.values(arrays), strict=True)
            arguments = [[*values[tested:fixed], *kept] for values, kept in rows]
            after[:] = _columns(lockstep.beside().run(bodies, arguments))
            return Packing(groups, after, carry.shared).arrays()

        return step

    def trace(carry: Packing) -> Columns:
        jax.eval_shape(step_of(carry), carry.arrays())
        return list(after)

    carry = _settled(groups, _columns(operands, fixed), trace)
    return carry.values(jax.lax.while_loop(continues_with(carry), step_of(carry), carry.arrays()))


def _branches(lockstep: Any, equations: list[JaxprEqn], operands: PerGroup) -> PerGroup:
    groups = lockstep.groups
    (choice,), arguments = _columns(operands, 0, 1), [values[1:] for values in operands]
    branches = [list(map(_body, bodies)) for bodies in zip(*(e.params["branches"] for e in equations), strict=True)]
    if not is_equal(choice) and not isinstance(groups, Single):
        return _selected(lockstep, equations, choice, branches, arguments)
    # Trace each branch, to know which results are equal on all replicas in all of them.
    found: list[Columns] = []
    for bodies in branches:
        jax.eval_shape(lambda bodies=bodies: found.append(_columns(lockstep.beside().run(bodies, arguments))))
    shared = [all(map(is_equal, columns)) for columns in zip(*found, strict=True)]

    def branch_of(bodies: list[NodeList]) -> Callable:
        return lambda: Packing(groups, _columns(lockstep.beside().run(bodies, arguments)), shared).arrays()

    arrays = jax.lax.switch(choice[0].array, [branch_of(bodies) for bodies in branches])
    return Packing(groups, found[0], shared).values(arrays)


def _selected(
    lockstep: Any, equations: list[JaxprEqn], choice: Sequence[Value], branches: list[list[NodeList]], own: PerGroup
) -> PerGroup:
    """Run all branches, and return for each replica the results of the one that it chooses."""
    groups, count = lockstep.groups, len(equations[0].outvars)

    def select(index: Any, arrays: list[Any]) -> list[Any]:
        cases = [arrays[start : start + count] for start in range(1, len(arrays), count)]
        chosen = jnp.clip(arrays[0], 0, len(cases) - 1)
        return [jax.lax.select_n(chosen, *map(jnp.asarray, parts)) for parts in zip(*cases, strict=True)]

    results = [lockstep.run(bodies, own) for bodies in branches]
    operands = [[test, *(v for row in rows for v in row)] for test, *rows in zip(choice, *results, strict=True)]
    specs = [[spec_of_result(atom) for atom in equation.outvars] for equation in equations]
    arrays = groups.compute([select] * len(operands), operands, specs)
    return [[Value(array, None) for array in parts] for parts in arrays]


def _refuse_steps(lockstep: Any, equation: JaxprEqn) -> None:
    lockstep.refuse(
        f"the number of steps of {described(equation)}, which has a collective in it, may differ between them"
    )


def with_index(lockstep: Any, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """Compute a loop or a branch that reads the index of its replica, which runs by itself."""
    name = equation.primitive.name
    if name not in CONTROL_FLOW:
        lockstep.refuse(f"{described(equation)} reads the index of its replica")
    (results,) = CONTROL_FLOW[name](lockstep, [equation], [[Value(operand, None) for operand in operands]])
    return [value.array for value in results]


CONTROL_FLOW = {"scan": _scan, "while": _while, "cond": _branches}
"""Runs a loop or a branch in lockstep: `(lockstep, equations, operands) -> results`."""
