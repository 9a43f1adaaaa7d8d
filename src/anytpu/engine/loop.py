"""The compiled loop: many steps of a Program in one call, on the device.

Idea: the loop is a `fori_loop` over a buffer of fixed capacity; the step count is an argument of the call. So a
remainder of 11 steps runs in the same executable as the 24 steps before it. Calls of 13, 24 and 13 steps equal one call
of 50 steps bit for bit.

Rule: the step is traced once, to a jaxpr, and replayed inside the loop; this module is independent of its contents.
Each carry keeps its initial dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun

from anytpu.engine.backend import Loop
from anytpu.errors import SettingError
from anytpu.program.program import Program, Tree
from anytpu.program.refusals import check_pair, check_result

Step = Callable[[Tree, Tree], tuple[Tree, Tree]]


def make_loop(step: Step, state: Tree, batch: Tree, loop: Loop) -> Callable[..., tuple[Tree, Tree, Tree, Any]]:
    """Return a function that runs `step` up to `loop.capacity` times.

    Args:
        step: `(state, batch) -> (state, outputs)` on whole arrays.
        state: specs of the state.
        batch: specs of one batch without padding; a padded batch is cut to these shapes.
        loop: capacity, feed and guard of the loop.

    Returns:
        The function to compile, `run(state, feed, start, count) -> (state, last, every, bad_steps)`; see `StepResults`.
        With capacity 1 the function has no loop, and ignores `start` and `count`.

    Raises:
        SettingError: no output of the step has the guard's name.
    """
    replay, outputs = trace_step(step, state, batch)
    if loop.guard is not None and loop.guard not in outputs:
        raise SettingError(_missing_guard_text(loop.guard, outputs))
    pick = _gather_rows if loop.feed == "rows" else _pick_batch

    def run_one(state: Tree, feed: Tree, start: Any, count: Any) -> tuple[Tree, Tree, Tree, Any]:
        new_state, last = replay(state, pick(feed, 0, batch))
        state, bad = _guarded(loop, state, new_state, last, _initial_bad(loop))
        return state, last, jax.tree.map(lambda output: output[None], last) if loop.keeps_every else None, bad

    def run(state: Tree, feed: Tree, start: Any, count: Any) -> tuple[Tree, Tree, Tree, Any]:
        def body(i: Any, carry: tuple) -> tuple:
            state, _, every, bad = carry
            new_state, last = replay(state, pick(feed, start + i, batch))
            state, bad = _guarded(loop, state, new_state, last, bad)
            if loop.keeps_every:
                every = jax.tree.map(
                    lambda stack, output: lax.dynamic_update_index_in_dim(stack, output, i, 0), every, last
                )
            return state, last, every, bad

        # The carry has its final shapes before the first step. Each step overwrites its entry; the rest stays zero.
        last = jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), outputs)
        kept = outputs if loop.keeps_every else None
        every = jax.tree.map(lambda spec: jnp.zeros((loop.capacity, *spec.shape), spec.dtype), kept)
        bad = _initial_bad(loop)
        return lax.fori_loop(0, count, body, (state, last, every, bad))

    return run if is_loop(loop) else run_one


def is_loop(loop: Loop | None) -> bool:
    """Return whether the compiled function has a loop around the step; with capacity 1 it is the step itself."""
    return loop is not None and loop.capacity > 1


def trace_step(step: Step, state: Tree, batch: Tree) -> tuple[Step, Tree]:
    """Trace a step once. Return a function that replays it without running its Python, and the specs of its outputs."""
    closed, (new_state, outputs) = jax.make_jaxpr(step, return_shape=True)(state, batch)
    result_structure = jax.tree.structure((new_state, outputs))
    flat = jaxpr_as_fun(closed)

    def replay(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        results = flat(*jax.tree.leaves((state, batch)))
        # JAX returns a Python number that the step returns as that number.
        arrays = [jnp.asarray(result, aval.dtype) for result, aval in zip(results, closed.out_avals, strict=True)]
        return jax.tree.unflatten(result_structure, arrays)

    return replay, outputs


def with_checked_state(program: Program, step: Step) -> Step:
    """Return a step that casts the new state to the dtypes of the old state, and checks its structure and shapes.

    Raises:
        ProgramError: (at tracing) the step does not return a pair, or the new state has another structure or shape.
    """

    def checked_step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        new_state, outputs = check_pair(program.name, step(state, batch))
        if jax.tree.structure(new_state) == jax.tree.structure(state):
            new_state = jax.tree.map(lambda old, new: lax.convert_element_type(new, old.dtype), state, new_state)
        check_result(program.name, state, (new_state, outputs), program.state_names)
        return new_state, outputs

    return checked_step


def feed_specs(batch: Tree, loop: Loop) -> Tree:
    """Return the specs of the feed of a call; see `Executable.steps`.

    Args:
        batch: specs of one batch, padded to a multiple of the number of cores.
        loop: capacity, feed and, for feed "rows", the number of examples.
    """
    if loop.feed == "batches":
        return jax.tree.map(lambda spec: jax.ShapeDtypeStruct((loop.capacity, *spec.shape), spec.dtype), batch)
    resident = jax.tree.map(lambda spec: jax.ShapeDtypeStruct((loop.examples, *spec.shape[1:]), spec.dtype), batch)
    rows = jax.tree.leaves(batch)[0].shape[0]
    return resident, jax.ShapeDtypeStruct((loop.capacity, rows), jnp.int32)


def _gather_rows(feed: Tree, i: Any, batch: Tree) -> Tree:
    """Gather the rows of step `i` from the data set on the device."""
    resident, indices = feed
    # The rows come from an order over the data set, so they need no bounds check. The slice cuts the rows' padding.
    rows = lax.dynamic_index_in_dim(indices, i, 0, keepdims=False)
    return jax.tree.map(
        lambda array, spec: array.at[rows].get(mode="promise_in_bounds")[: spec.shape[0]], resident, batch
    )


def _pick_batch(feed: Tree, i: Any, batch: Tree) -> Tree:
    """Take batch `i` out of the stack, without padding."""
    return jax.tree.map(
        lambda stack, spec: cut_padding(lax.dynamic_index_in_dim(stack, i, 0, keepdims=False), spec), feed, batch
    )


def cut_padding(leaf: Any, spec: jax.ShapeDtypeStruct) -> Any:
    """Cut a batch leaf to the shape of its spec; the rest is padding for the transfer."""
    return leaf if leaf.shape == spec.shape else leaf[tuple(slice(size) for size in spec.shape)]


def _missing_guard_text(guard: str, outputs: Tree) -> str:
    names = ", ".join(map(repr, outputs)) or "none"
    return (
        f"on_nan checks the log {guard!r}, but the training step does not return it; its logs are: {names}. "
        f"Add {guard!r} to the logs that train_step returns, or remove on_nan"
    )


def _initial_bad(loop: Loop) -> Any:
    """Return the number of bad steps before the first; None without a guard."""
    return None if loop.guard is None else jnp.int32(0)


def _guarded(loop: Loop, old: Tree, new: Tree, outputs: Tree, bad: Any) -> tuple[Tree, Any]:
    """Return the state after a step and the number of bad steps. A bad step has no effect on the state."""
    if loop.guard is None:
        return new, None
    is_bad = ~jnp.all(jnp.isfinite(outputs[loop.guard])) | _spoils(old, new)
    # Without `skips` the first bad step is the last that counts: all later ones leave the state unchanged.
    if not loop.skips:
        is_bad |= bad > 0
    return jax.tree.map(lambda before, after: jnp.where(is_bad, before, after), old, new), bad + is_bad


def _spoils(old: Tree, new: Tree) -> Any:
    """Return whether a leaf of the state that was finite is not any more: a finite loss may have NaN gradients."""
    leaves = zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)
    pairs = [(before, after) for before, after in leaves if jnp.issubdtype(after.dtype, jnp.inexact)]
    are_finite = [_is_finite(after) for _, after in pairs]

    def compare() -> Any:
        spoiled = [_is_finite(before) & ~is_finite for (before, _), is_finite in zip(pairs, are_finite, strict=True)]
        return functools.reduce(jnp.logical_or, spoiled, jnp.bool_(False))

    # The old state is read only if the new one has a fault: a metric may begin with an infinity.
    all_finite = functools.reduce(jnp.logical_and, are_finite, jnp.bool_(True))
    return lax.cond(all_finite, lambda: jnp.bool_(False), compare)


def _is_finite(leaf: Any) -> Any:
    # Three times as fast on a CPU as a reduction of booleans: 0 times NaN or infinity is NaN.
    return jnp.isfinite(jnp.sum(leaf * 0))
