"""The one compiled loop: many steps of a Program in one call, on the device.

Idea: a `fori_loop` whose step count is an argument of the call, over a buffer whose capacity is fixed when it is
compiled. So a remainder of 11 steps runs in the executable that ran the 24 before it, and 13 + 24 + 13 steps equal 50
bit for bit.

Rule: the step is traced once, to a jaxpr, and replayed inside the loop; nothing here knows what a step does. A carried
value keeps the dtype it came in with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun

from anytpu.engine.backend import Loop
from anytpu.errors import SettingError
from anytpu.program.contract import check_pair, check_result
from anytpu.program.program import Program, Tree

Step = Callable[[Tree, Tree], tuple[Tree, Tree]]


def looped(step: Step, state: Tree, batch: Tree, loop: Loop) -> Callable[..., tuple[Tree, Tree, Tree, Any]]:
    """Return a function that runs `step` up to `loop.capacity` times.

    Args:
        step: `(state, batch) -> (state, outputs)` on whole arrays.
        state: specs of the state.
        batch: specs of one batch, as the step wants it; a longer batch is cut to this many rows.
        loop: capacity, feed and guard.

    Returns:
        `run(state, feed, start, count) -> (state, last, every, bad_step)`, to be compiled; `bad_step` is None without a
        guard.

    Raises:
        SettingError: the step has no output of the guard's name.
    """
    replay, outputs = traced(step, state, batch)
    if loop.guard is not None and loop.guard not in outputs:
        raise SettingError(_no_guard(loop.guard, outputs))
    pick = _rows if loop.feed == "rows" else _batch

    def run_one(state: Tree, feed: Tree, start: Any, count: Any) -> tuple[Tree, Tree, Tree, Any]:
        new_state, last = replay(state, pick(feed, 0, batch))
        bad = _first_bad(_no_bad(loop), 0, last, loop.guard)
        state = jax.tree.map(lambda old, new: _kept(old, new, bad), state, new_state)
        return state, last, jax.tree.map(lambda one: one[None], last) if loop.keeps_every else None, bad

    def run(state: Tree, feed: Tree, start: Any, count: Any) -> tuple[Tree, Tree, Tree, Any]:
        def body(i: Any, carry: tuple) -> tuple:
            state, _, every, bad = carry
            new_state, last = replay(state, pick(feed, start + i, batch))
            bad = _first_bad(bad, i, last, loop.guard)
            state = jax.tree.map(lambda old, new: _kept(old, new, bad), state, new_state)
            if loop.keeps_every:
                every = jax.tree.map(lambda all_, one: lax.dynamic_update_index_in_dim(all_, one, i, 0), every, last)
            return state, last, every, bad

        last = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), outputs)
        kept = outputs if loop.keeps_every else None
        every = jax.tree.map(lambda s: jnp.zeros((loop.capacity, *s.shape), s.dtype), kept)
        bad = _no_bad(loop)
        return lax.fori_loop(0, count, body, (state, last, every, bad))

    return run if is_loop(loop) else run_one


def is_loop(loop: Loop | None) -> bool:
    """Say whether there is a loop around the step: one that holds a single step is that step."""
    return loop is not None and loop.capacity > 1


def traced(step: Step, state: Tree, batch: Tree) -> tuple[Step, Tree]:
    """Trace a step once. Return a function that replays it without running its Python, and the specs of its outputs."""
    closed, (new_state, outputs) = jax.make_jaxpr(step, return_shape=True)(state, batch)
    into = jax.tree.structure((new_state, outputs))
    flat = jaxpr_as_fun(closed)

    def replay(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        return jax.tree.unflatten(into, flat(*jax.tree.leaves((state, batch))))

    return replay, outputs


def carried(program: Program, step: Step) -> Step:
    """Return the step of a program with each new state in the dtype it came in with, checked to be of the same form.

    Raises:
        ProgramError: (when the step is traced) it does not return a pair, or the state has another structure or shape.
    """

    def carrying(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        new_state, outputs = check_pair(program.name, step(state, batch))
        if jax.tree.structure(new_state) == jax.tree.structure(state):
            new_state = jax.tree.map(lambda old, new: lax.convert_element_type(new, old.dtype), state, new_state)
        check_result(program.name, state, (new_state, outputs), program.state_names)
        return new_state, outputs

    return carrying


def feed_specs(batch: Tree, loop: Loop) -> Tree:
    """Return the specs of the feed of a call: see `Executable.steps`.

    Args:
        batch: specs of one batch as it travels (padded to what the cores divide).
        loop: capacity, feed and, for "rows", the number of examples.
    """
    if loop.feed == "batches":
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((loop.capacity, *s.shape), s.dtype), batch)
    resident = jax.tree.map(lambda s: jax.ShapeDtypeStruct((loop.examples, *s.shape[1:]), s.dtype), batch)
    rows = jax.tree.leaves(batch)[0].shape[0]
    return resident, jax.ShapeDtypeStruct((loop.capacity, rows), jnp.int32)


def _rows(feed: Tree, i: Any, batch: Tree) -> Tree:
    """Gather the rows of step `i` from the data set on the device."""
    resident, numbers = feed
    number = lax.dynamic_index_in_dim(numbers, i, 0, keepdims=False)
    return jax.tree.map(lambda all_, s: all_.at[number].get(mode="promise_in_bounds")[: s.shape[0]], resident, batch)


def _batch(feed: Tree, i: Any, batch: Tree) -> Tree:
    """Take batch `i` out of the stack, without the rows that were added for the transport."""
    return jax.tree.map(lambda stack, s: cut(lax.dynamic_index_in_dim(stack, i, 0, keepdims=False), s), feed, batch)


def cut(leaf: Any, spec: jax.ShapeDtypeStruct) -> Any:
    """Return a leaf of a batch without what was added for the transport."""
    return leaf if leaf.shape == spec.shape else leaf[tuple(slice(size) for size in spec.shape)]


def _no_guard(guard: str, outputs: Tree) -> str:
    there = ", ".join(map(repr, outputs)) or "none"
    return (
        f'on_nan="raise" watches the log {guard!r}, and the training step returns no such log; it returns {there}. Add '
        f"{guard!r} to what train_step returns, or leave on_nan away"
    )


def _no_bad(loop: Loop) -> Any:
    return None if loop.guard is None else jnp.int32(-1)


def _first_bad(bad: Any, i: Any, outputs: Tree, guard: str | None) -> Any:
    if guard is None:
        return None
    finite = jnp.all(jnp.isfinite(outputs[guard]))
    return jnp.where((bad < 0) & ~finite, i, bad)


def _kept(old: Any, new: Any, bad: Any) -> Any:
    """Return the new value, or the old one once a bad step was seen."""
    return new if bad is None else jnp.where(bad >= 0, old, new)
