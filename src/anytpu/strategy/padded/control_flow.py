"""Rules for functions inside a step: calls, branches, loops, and gradients that are summed over the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from anytpu.strategy.gradients import summed_value_and_grad
from anytpu.strategy.padded.axes import Fill, RowAxis, Value
from anytpu.strategy.padded.operation import NOT_ROWS, Operation, Outcome, RealRows
from anytpu.strategy.recorded import GATHERED

_VARIANCE = "_var"
"""The name of the function that `jax.numpy.var` calls: it divides by a number of rows, less another."""


def _planned(operation: Operation, name: str, values: list[Value], **how: bool) -> Any:
    return operation.planner.inside(operation, name, None, values, **how)


def call(operation: Operation) -> Outcome:
    """Call a function."""
    if operation.params.get("name") == GATHERED:
        if operation.values[0].axes[0] is None:
            operation.refuse(*NOT_ROWS)
        return [Value((None,) * len(variable.aval.shape)) for variable in operation.equation.outvars], None
    name = "jaxpr" if "jaxpr" in operation.params else "call_jaxpr"
    plan = _planned(operation, name, operation.values, divides=operation.params.get("name") == _VARIANCE)
    return plan.outputs, None if plan.is_plain else plan.run


def call_again(operation: Operation) -> Outcome:
    """Call a function whose intermediate values are computed again in the backward pass."""
    plan = _planned(operation, "jaxpr", operation.values)
    kept = {name: operation.params[name] for name in ("prevent_cse", "policy")}

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        return jax.checkpoint(lambda *operands: plan.run(real, list(operands)), **kept)(*given)

    return plan.outputs, None if plan.is_plain else action


def call_own_derivative(operation: Operation) -> Outcome:
    """Call a function that has a derivative of its own."""
    name = next(name for name in ("call_jaxpr", "fun_jaxpr", "call") if name in operation.params)
    plan = _planned(operation, name, operation.values)
    if plan.is_plain:
        return plan.outputs, None
    if operation.planner.is_differentiated or operation.name.startswith("custom_vmap"):
        operation.refuse("reduces the rows in a function that has a derivative of its own, which would count pads")
    return plan.outputs, plan.run


def branch(operation: Operation) -> Outcome:
    """Take one of several branches."""
    if operation.values[0].has_rows:
        operation.refuse("takes a branch for each row")
    count = len(operation.params["branches"])
    plans = [operation.planner.inside(operation, "branches", index, operation.values[1:]) for index in range(count)]
    outputs = [_joined(operation, values) for values in zip(*(plan.outputs for plan in plans), strict=True)]
    if all(plan.is_plain for plan in plans):
        return outputs, None

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        branches = [lambda *operands, plan=plan: plan.run(real, list(operands)) for plan in plans]
        return lax.switch(given[0], branches, *given[1:])

    return outputs, action


def _joined(operation: Operation, values: Sequence[Value]) -> Value:
    """Return a value that is one of several."""
    axes = [operation.joined([value.axes[p] for value in values]) for p in range(len(values[0].axes))]
    made = []
    for position, axis in enumerate(axes):
        held = [value.axes[position] for value in values]
        fill = min((one.fill if one is not None else Fill.ANY) for one in held)
        made.append(axis if axis is None else axis.filled(fill))
    return Value(tuple(made), all(value.is_zero for value in values))


def _settled(operation: Operation, carry: list[Value], step: Callable[[list[Value]], Any]) -> tuple[list[Value], Any]:
    """Return what a loop carries, and the plan of its body: the same before and after each step."""
    while True:
        plan = step(carry)
        after = [_joined(operation, pair) for pair in zip(carry, plan.outputs[: len(carry)], strict=True)]
        if after == carry:
            return carry, plan
        carry = after


def scan(operation: Operation) -> Outcome:
    """Loop over an axis; where it is over rows, the steps of pads change nothing."""
    params = operation.params
    fixed, carried = _scanned(operation.equation)
    consts, carry, lists = operation.values[:fixed], operation.values[fixed:carried], operation.values[carried:]
    along = _along(operation, lists)
    items = [Value(value.axes[1:], value.is_zero) for value in lists]
    carry, plan = _settled(operation, carry, lambda held: _planned(operation, "jaxpr", [*consts, *held, *items]))
    leading = None if along is None else RowAxis(along.segments, along.fill if along.is_free else Fill.ANY)
    outputs = [*carry, *(Value((leading, *value.axes)) for value in plan.outputs[len(carry) :])]
    if plan.is_plain and (along is None or not carry):
        return outputs, None

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        mask = None if along is None else along.mask(real.rows, real.room)

        def body(held: list[Any], item: Any) -> tuple[list[Any], list[Any]]:
            is_real, own = item
            made = plan.run(real, [*given[:fixed], *held, *own])
            new = [_cast(one, old) for one, old in zip(made, held, strict=False)]
            if is_real is not None:
                new = [_chosen(is_real, *pair) for pair in zip(new, held, strict=True)]
            return new, made[len(held) :]

        start = [jnp.asarray(one) for one in given[fixed:carried]]
        last, rows = lax.scan(
            body,
            start,
            (mask, given[carried:]),
            length=params["length"],
            reverse=params["reverse"],
            unroll=params["unroll"],
        )
        return [*last, *rows]

    return outputs, action


def _chosen(is_real: Any, new: Any, old: Any) -> Any:
    return lax.select(jnp.broadcast_to(is_real, jnp.shape(new)), new, old)


def _cast(one: Any, like: Any) -> Any:
    return lax.convert_element_type(one, like.dtype) if one.dtype != like.dtype else one


def _scanned(equation: Any) -> tuple[int, int]:
    """Return how many operands of a scan go to each step as they are, and how many of these or carried.

    The parameters that say so have other names in each version of JAX. What is scanned has one axis more outside.
    """
    body = getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"])
    lists = sum(
        len(outside.aval.shape) > len(inside.aval.shape)
        for outside, inside in zip(equation.invars, body.invars, strict=True)
    )
    carried = sum(
        len(outside.aval.shape) == len(inside.aval.shape)
        for outside, inside in zip(equation.outvars, body.outvars, strict=True)
    )
    return len(equation.invars) - lists - carried, len(equation.invars) - lists


def _along(operation: Operation, lists: Sequence[Value]) -> RowAxis | None:
    """Return the axis that a scan goes along, where it is over rows."""
    found = operation.joined([value.axes[0] for value in lists])
    if found is None and operation.other is not None:
        return operation.created((operation.params["length"], operation.other_param("length")), is_free=False)
    return found


def loop(operation: Operation) -> Outcome:
    """Loop while a condition holds."""
    params = operation.params
    tested, fixed = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    asked, consts, carry = operation.values[:tested], operation.values[tested:fixed], operation.values[fixed:]
    carry, body = _settled(operation, carry, lambda held: _planned(operation, "body_jaxpr", [*consts, *held]))
    condition = _planned(operation, "cond_jaxpr", [*asked, *carry])
    if condition.outputs[0].has_rows:
        operation.refuse("has a condition for each row")
    if body.is_plain and condition.is_plain:
        return carry, None

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        start = [jnp.asarray(one) for one in given[fixed:]]
        return lax.while_loop(
            lambda held: condition.run(real, [*given[:tested], *held])[0],
            lambda held: [
                _cast(one, old) for one, old in zip(body.run(real, [*given[tested:fixed], *held]), held, strict=True)
            ],
            start,
        )

    return carry, action


def summed_gradients(operation: Operation) -> Outcome:
    """Differentiate a loss that leaves pads out, and sum the gradients over the replicas."""
    differentiated, shape = operation.params["values"], operation.params["shape"]
    loss = _planned(operation, "loss", operation.values, is_loss=True)
    if any(value.has_rows for value in operation.values[:differentiated]):
        operation.refuse("differentiates by rows")
    gradients = [Value((None,) * len(value.axes)) for value in operation.values[:differentiated]]

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        def loss_of(values: list[Any]) -> Any:
            return jax.tree.unflatten(shape, loss.run(real, [*values, *given[differentiated:]]))

        made, gradients = summed_value_and_grad(loss_of, [jnp.asarray(one) for one in given[:differentiated]])
        return [*jax.tree.leaves(made), *gradients]

    return [*loss.outputs, *gradients], action


RULES: dict[str, Callable[[Operation], Outcome]] = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "core_closed_call", "xla_call"), call),
    **dict.fromkeys(("checkpoint", "remat", "remat2"), call_again),
    **dict.fromkeys(
        ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call"), call_own_derivative
    ),
    "cond": branch,
    "scan": scan,
    "while": loop,
    "summed_value_and_grad": summed_gradients,
}
