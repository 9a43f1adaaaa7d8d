"""`PaddedStep`: a step on a padded batch, whose results depend on the real rows only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from anytpu.errors import ReplicaError
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.padded.axes import ROWS, AbstractValue, RealRows, without_rows
from anytpu.strategy.padded.counts import TraceDifferenceError, find_replica_sums
from anytpu.strategy.padded.operation import PaddedContext
from anytpu.strategy.padded.planner import PaddedPlan, check_same_findings, plan_function, refuse_replica_sum
from anytpu.strategy.padded.rules import RULES

Specs = Any
"""A tree of `jax.ShapeDtypeStruct`."""

_FEWER_ROWS = 3
"""Number of rows of the third trace."""


class PaddedStep:
    """A step `(state, arrays) -> (state, outputs)` of one replica on a padded batch.

    Args:
        name: name of the step, for errors.
        rows: number of rows of a replica, pads included.
        step_for: takes a number of rows; returns the step, and the specs of one replica's arrays.
        are_rows: for each array, whether its first axis is over rows.
        replicas: number of replicas.

    Attributes:
        has_rows: a tree of booleans: True for outputs whose first axis is over rows; None before the first trace.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        step_for: Callable[[int], tuple[Callable, Specs]],
        are_rows: list[bool],
        replicas: int,
    ) -> None:
        self._name, self._rows, self._step_for = name, rows, step_for
        self._are_rows, self._replicas = are_rows, replicas
        self.has_rows: Any = None

    def __call__(self, state: Any, arrays: list[Any]) -> tuple[Any, Any]:
        """Trace the step, plan it, and compute it; the last array is the number of real rows."""
        state_specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        step, specs = self._step_for(self._rows)
        trace, shape = jax.make_jaxpr(step, return_shape=True)(state_specs, specs)
        plan = self._plan(step, trace, state_specs, specs)
        self._check_outputs(plan.outputs, shape)
        total = jax.lax.psum(arrays[-1], REPLICA_AXIS)
        results = plan.run(RealRows(arrays[-1], self._rows, total), jax.tree.leaves((state, arrays)))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    def _plan(self, step: Callable, trace: Any, state_specs: Specs, specs: Specs) -> PaddedPlan:
        """Return the plan of the step.

        The step is traced for more and for fewer rows too. These traces find a number that is not a multiple of the
        rows, such as half of them, or the rows up to a limit.
        """
        values = [without_rows(leaf) for leaf in jax.tree.leaves(state_specs)]
        for spec, is_over_rows in zip(specs, self._are_rows, strict=True):
            axes = (None,) * len(spec.shape)
            values.append(AbstractValue((ROWS, *axes[1:]) if is_over_rows else axes))
        more = 2 * self._rows + 1
        context = PaddedContext(self._name, self._rows, more, RULES)
        # 1. Find the sums over the replicas.
        try:
            sums = find_replica_sums(step, (state_specs, specs), self._replicas, trace)
        except TraceDifferenceError as error:
            refuse_replica_sum(context, error.equation)
        context = dataclasses.replace(context, replica_sums=sums)
        # 2. Plan the step with the trace for more rows. A model with a fixed batch size has no such trace.
        try:
            second = self._trace(more, state_specs)
        except Exception as error:
            failure = f"cannot be traced for {more} rows ({type(error).__name__}: {str(error).split(chr(10))[0]})"
            return plan_function(dataclasses.replace(context, other_rows=None, failure=failure), trace, None, values)
        plan = plan_function(context, trace, second, values)
        # 3. Check the findings with the trace for fewer rows, which the best four of three rows do not have.
        if self._rows > _FEWER_ROWS:
            try:
                third = self._trace(_FEWER_ROWS, state_specs)
            except Exception:
                return plan
            fewer = dataclasses.replace(context, other_rows=_FEWER_ROWS, findings={})
            plan_function(fewer, trace, third, values)
            check_same_findings(context, fewer)
        return plan

    def _trace(self, rows: int, state_specs: Specs) -> Any:
        step, specs = self._step_for(rows)
        return jax.make_jaxpr(step)(state_specs, specs)

    def _check_outputs(self, values: list[AbstractValue], shape: Any) -> None:
        """Set `has_rows`, and refuse outputs whose pads are not the last rows of the first axis."""
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
            axes = value.row_axes()
            if axes and (len(axes) > 1 or axes[0][0] != 0 or axes[0][1].segments != ROWS.segments):
                raise ReplicaError(
                    f"{self._name} was given a batch that does not fill all replicas, and returns an array of "
                    f"shape {spec.shape} whose pads are not the last rows of axis 0, where they would be cut off. "
                    "Return the rows along axis 0, or leave such a batch out: batch(rows, drop_remainder=True)"
                )
            flags.append(bool(axes))
        self.has_rows = jax.tree.unflatten(jax.tree.structure(outputs), flags)
