"""Rules for functions in a step: calls, branches, loops, and gradients summed over the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from anytpu.strategy.gradients import summed_value_and_grad
from anytpu.strategy.padded.axes import AbstractValue, PadState, RealRows, RowAxis, without_rows
from anytpu.strategy.padded.operation import GATHERS_NO_ROWS, Outcome, Rule, StepOperation
from anytpu.strategy.padded.planner import PaddedPlan, plan_nested
from anytpu.strategy.recorded import GATHERED

_VARIANCE = "_var"
"""Name of the function that `jax.numpy.var` calls. It divides by a number of rows minus another number."""


def call(operation: StepOperation) -> Outcome:
    """Call a function."""
    if operation.params.get("name") == GATHERED:
        if operation.values[0].axes[0] is None:
            operation.refuse(*GATHERS_NO_ROWS)
        return [without_rows(variable.aval) for variable in operation.equation.outvars], None
    name = "jaxpr" if "jaxpr" in operation.params else "call_jaxpr"
    plan = plan_nested(operation, name, operation.values, counts_are_divisors=operation.params.get("name") == _VARIANCE)
    return plan.outputs, None if plan.is_unchanged else plan.run


def checkpoint(operation: StepOperation) -> Outcome:
    """Call a function whose intermediate values are recomputed in the backward pass."""
    plan = plan_nested(operation, "jaxpr", operation.values)
    settings = {name: operation.params[name] for name in ("prevent_cse", "policy")}

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        return jax.checkpoint(lambda *arrays: plan.run(real, list(arrays)), **settings)(*operands)

    return plan.outputs, None if plan.is_unchanged else evaluate


def custom_derivative(operation: StepOperation) -> Outcome:
    """Call a function with a custom derivative."""
    name = next(name for name in ("call_jaxpr", "call") if name in operation.params)
    plan = plan_nested(operation, name, operation.values)
    if plan.is_unchanged:
        return plan.outputs, None
    if operation.context.is_differentiated or operation.name.startswith("custom_vmap"):
        operation.refuse("reduces the rows in a function that has a derivative of its own, which would count pads")
    return plan.outputs, plan.run


def branch(operation: StepOperation) -> Outcome:
    """Call one of several functions."""
    if operation.values[0].has_rows:
        operation.refuse("takes a branch for each row")
    count = len(operation.params["branches"])
    plans = [plan_nested(operation, "branches", operation.values[1:], index=index) for index in range(count)]
    outputs = [_union(operation, values) for values in zip(*(plan.outputs for plan in plans), strict=True)]
    if all(plan.is_unchanged for plan in plans):
        return outputs, None

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        branches = [lambda *arrays, plan=plan: plan.run(real, list(arrays)) for plan in plans]
        return lax.switch(operands[0], branches, *operands[1:])

    return outputs, evaluate


def _union(operation: StepOperation, values: Sequence[AbstractValue]) -> AbstractValue:
    """Return the abstract value of a result that is one of several values."""
    axes: list[RowAxis | None] = []
    for parts in zip(*(value.axes for value in values), strict=True):
        axis = operation.aligned(parts)
        pads = min(PadState.UNMASKED if part is None else part.pads for part in parts)
        axes.append(axis and axis.with_pads(pads))
    return AbstractValue(tuple(axes), all(value.is_zero for value in values))


def _fixed_point(
    operation: StepOperation, carry: list[AbstractValue], plan_body: Callable[[list[AbstractValue]], PaddedPlan]
) -> tuple[list[AbstractValue], PaddedPlan]:
    """Return a loop's carry that is the same before and after each iteration, and the plan of the loop's body."""
    # A union only adds row axes and lowers the state of their pads, so this ends.
    while True:
        plan = plan_body(carry)
        after = [_union(operation, pair) for pair in zip(carry, plan.outputs[: len(carry)], strict=True)]
        if after == carry:
            return carry, plan
        carry = after


def scan(operation: StepOperation) -> Outcome:
    """Loop over an axis; if it is over rows, the iterations of pads do not change the carry."""
    params = operation.params
    # 1. Plan the body. The carry must have the same axes before and after each iteration.
    fixed, carried = _scan_operands(operation.equation)
    consts, carry, lists = operation.values[:fixed], operation.values[fixed:carried], operation.values[carried:]
    along = _scanned_axis(operation, lists)
    items = [AbstractValue(value.axes[1:], value.is_zero) for value in lists]
    carry, plan = _fixed_point(operation, carry, lambda held: plan_nested(operation, "jaxpr", [*consts, *held, *items]))
    # 2. The scanned axis is the first axis of the stacked results.
    leading = along and RowAxis(along.segments, along.pads if along.is_uniform else PadState.UNMASKED)
    outputs = [*carry, *(AbstractValue((leading, *value.axes)) for value in plan.outputs[len(carry) :])]
    if plan.is_unchanged and (along is None or not carry):
        return outputs, None

    # 3. Compute: the carry keeps its value in an iteration of a pad.
    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        mask = None if along is None else along.mask(real.rows, real.padded)

        def body(held: list[Any], item: Any) -> tuple[list[Any], list[Any]]:
            is_real, own = item
            results = plan.run(real, [*operands[:fixed], *held, *own])
            new = _cast_like(results[: len(held)], held)
            if is_real is not None:
                new = [
                    lax.select(jnp.broadcast_to(is_real, jnp.shape(a)), a, b) for a, b in zip(new, held, strict=True)
                ]
            return new, results[len(held) :]

        start = [jnp.asarray(array) for array in operands[fixed:carried]]
        settings = {name: params[name] for name in ("length", "reverse", "unroll")}
        last, rows = lax.scan(body, start, (mask, operands[carried:]), **settings)
        return [*last, *rows]

    return outputs, evaluate


def _cast_like(arrays: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    pairs = zip(arrays, like, strict=True)
    return [lax.convert_element_type(a, b.dtype) if a.dtype != b.dtype else a for a, b in pairs]


def _scan_operands(equation: Any) -> tuple[int, int]:
    """Return the number of constant operands of a scan, and the number of constant or carried ones.

    The parameters with these numbers have other names in each version of JAX. A scanned operand has one axis more
    outside of the body than inside.
    """
    body = getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"])
    scanned = sum(
        len(outside.aval.shape) > len(inside.aval.shape)
        for outside, inside in zip(equation.invars, body.invars, strict=True)
    )
    carried = sum(
        len(outside.aval.shape) == len(inside.aval.shape)
        for outside, inside in zip(equation.outvars, body.outvars, strict=True)
    )
    return len(equation.invars) - scanned - carried, len(equation.invars) - scanned


def _scanned_axis(operation: StepOperation, lists: Sequence[AbstractValue]) -> RowAxis | None:
    """Return the axis of a scan; None if it is not over rows."""
    axis = operation.aligned([value.axes[0] for value in lists])
    if axis is None and operation.other is not None:
        return operation.new_axis((operation.params["length"], operation.other_param("length")), is_uniform=False)
    return axis


def while_loop(operation: StepOperation) -> Outcome:
    """Loop while a condition holds."""
    params = operation.params
    tested, fixed = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond_consts, consts, carry = operation.values[:tested], operation.values[tested:fixed], operation.values[fixed:]
    carry, body = _fixed_point(operation, carry, lambda held: plan_nested(operation, "body_jaxpr", [*consts, *held]))
    condition = plan_nested(operation, "cond_jaxpr", [*cond_consts, *carry])
    if condition.outputs[0].has_rows:
        operation.refuse("has a condition for each row")
    if body.is_unchanged and condition.is_unchanged:
        return carry, None

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        return lax.while_loop(
            lambda held: condition.run(real, [*operands[:tested], *held])[0],
            lambda held: _cast_like(body.run(real, [*operands[tested:fixed], *held]), held),
            [jnp.asarray(array) for array in operands[fixed:]],
        )

    return carry, evaluate


def summed_gradients(operation: StepOperation) -> Outcome:
    """Differentiate a loss without pads, and sum the gradients over the replicas."""
    count, shape = operation.params["values"], operation.params["shape"]
    loss = plan_nested(operation, "loss", operation.values, is_loss=True)
    if any(value.has_rows for value in operation.values[:count]):
        operation.refuse("differentiates by rows")
    gradients = [AbstractValue((None,) * len(value.axes)) for value in operation.values[:count]]

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        def loss_of(values: list[Any]) -> Any:
            return jax.tree.unflatten(shape, loss.run(real, [*values, *operands[count:]]))

        out, gradients = summed_value_and_grad(loss_of, [jnp.asarray(array) for array in operands[:count]])
        return [*jax.tree.leaves(out), *gradients]

    return [*loss.outputs, *gradients], evaluate


RULES: dict[str, Rule] = {
    **dict.fromkeys(("jit", "pjit", "closed_call"), call),
    **dict.fromkeys(("checkpoint", "remat2"), checkpoint),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "custom_vmap_call"), custom_derivative),
    "cond": branch,
    "scan": scan,
    "while": while_loop,
    "summed_value_and_grad": summed_gradients,
}
