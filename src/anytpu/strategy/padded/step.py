"""A step on a batch with pads, computed so that each replica gets what its real rows alone give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from anytpu.errors import ReplicaError
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.padded.axes import ROWS, Value
from anytpu.strategy.padded.folds import ChangedError, Folds, folds_of
from anytpu.strategy.padded.operation import RealRows, Rooms
from anytpu.strategy.padded.planner import Plan, Planner

Specs = Any
"""A tree of `jax.ShapeDtypeStruct`."""


class PaddedStep:
    """A step `(state, arrays) -> (state, outputs)` of one replica on a batch with pads.

    Args:
        name: of the step, for errors.
        room: the number of rows with pads.
        step_for: returns the step for so many rows, and the specs of one replica's arrays.
        rows: whether each array has an axis of rows in front.
        replicas: the number of replicas.

    Attributes:
        has_rows: the outputs that have an axis of rows in front, a tree of booleans; None before the step was traced.
    """

    def __init__(
        self, name: str, room: int, step_for: Callable[[int], tuple[Callable, Specs]], rows: list[bool], replicas: int
    ) -> None:
        self._name, self._room, self._step_for, self._rows, self._replicas = name, room, step_for, rows, replicas
        self.has_rows: Any = None

    def __call__(self, state: Any, arrays: list[Any]) -> tuple[Any, Any]:
        """Trace the step, plan it and compute it; the number of real rows is the last array."""
        held = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        step, specs = self._step_for(self._room)
        first, shape = jax.make_jaxpr(step, return_shape=True)(held, specs)
        plan = self._plan(first, held, specs)
        self._check_outputs(plan.outputs, shape)
        leaves = jax.tree.leaves((state, arrays))
        total = jax.lax.psum(arrays[-1], REPLICA_AXIS)
        made = plan.run(RealRows(arrays[-1], self._room, total), leaves)
        return jax.tree.unflatten(jax.tree.structure(shape), made)

    def _plan(self, first: Any, held: Specs, specs: Specs) -> Plan:
        """Return the plan of the step.

        The other traces are for more and for fewer rows: what hangs on the number of rows in steps, such as half of
        them, or the rows up to a limit, differs from what the rows give in one of the two.
        """
        values = [Value((None,) * len(leaf.shape)) for leaf in jax.tree.leaves(held)]
        for spec, has_rows in zip(specs, self._rows, strict=True):
            axes = (None,) * len(spec.shape)
            values.append(Value((ROWS, *axes[1:]) if has_rows else axes))
        more, fewer = 2 * self._room + 1, 3
        planner = Planner(Rooms(self._name, self._room, more))
        planner = dataclasses.replace(planner, folds=self._folds(planner, first, held))
        try:
            second = self._traced(more, held)
        except Exception as error:
            # Such as a model with a fixed batch size.
            failure = f"cannot be traced for {more} rows ({type(error).__name__}: {str(error).split(chr(10))[0]})"
            rooms = Rooms(self._name, self._room, None, failure)
            return dataclasses.replace(planner, rooms=rooms).plan(first, None, values)
        plan = planner.plan(first, second, values)
        if self._room > fewer:
            try:
                third = self._traced(fewer, held)
            except Exception:
                # Such as the four best of three rows.
                return plan
            witness = Planner(Rooms(self._name, self._room, fewer), folds=planner.folds)
            witness.plan(first, third, values)
            planner.check_same(witness)
        return plan

    def _folds(self, planner: Planner, first: Any, held: Specs) -> Folds:
        """Return the folded sums of the step."""
        step, specs = self._step_for(self._room)
        try:
            return folds_of(step, (held, specs), self._replicas, first)
        except ChangedError as error:
            planner.refuse_folded(error.equation)

    def _traced(self, room: int, held: Specs) -> Any:
        """Return the trace for another number of rows."""
        step, specs = self._step_for(room)
        return jax.make_jaxpr(step)(held, specs)

    def _check_outputs(self, values: list[Value], shape: Any) -> None:
        """Note which outputs lose their pads, and refuse those whose pads are anywhere but at their ends."""
        state, outputs = shape
        count = len(jax.tree.leaves(state))
        if any(value.has_rows for value in values[:count]):
            raise ReplicaError(
                f"{self._name} was given a batch that does not fill all replicas, and writes its rows, pads "
                "included, to a state or a variable. Write what does not have an axis of rows, or leave such a batch "
                "out: batch(rows, drop_remainder=True)"
            )
        flags = []
        for value, spec in zip(values[count:], jax.tree.leaves(outputs), strict=True):
            found = value.rows()
            if found and (found[0][0] != 0 or len(found) > 1 or found[0][1].segments != ROWS.segments):
                raise ReplicaError(
                    f"{self._name} was given a batch that does not fill all replicas, and returns an array of "
                    f"shape {spec.shape} whose pads are not the last rows of axis 0, where they would be cut off. "
                    "Return the rows along axis 0, or leave such a batch out: batch(rows, drop_remainder=True)"
                )
            flags.append(bool(found))
        self.has_rows = jax.tree.unflatten(jax.tree.structure(outputs), flags)
