"""Rejection of steps: wrong results, Python callbacks, large constants, and errors of JAX that concern a mesh.

Idea: a step is called repeatedly with its own state. A leaf that changes its shape or dtype in the first step would
make the second step another program. A Program may also leave this process, so it holds no Python callbacks and no
weights. Both are detected in the traced step (its jaxpr), because an equation of it still has its source line.

Rule: this package checks the result at every trace of a step; the error names the leaf. Weights are inputs. An array in
the closure of a step would be fixed at its present value, and stored in every copy of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.extend.source_info_util import summarize

from anytpu.errors import ProgramError
from anytpu.program.jaxprs import inner_jaxprs
from anytpu.program.program import Tree, leaf_names, leaf_text

CALLBACKS = {
    "pure_callback": "write it with jax.numpy, or compute it before the step and pass it in through the batch",
    "io_callback": "return the value with the outputs of the step, and use it between the steps",
    "debug_callback": "remove the jax.debug.callback or the jax.debug.breakpoint",
    "debug_print": "remove the jax.debug.print",
    "outside_call": "return the value with the outputs of the step, and use it between the steps",
}
"""The primitives that call back into Python, each with the alternative."""

_CHECK = "check"
"""The primitive of a `checkify.check` without `checkify.checkify`: it raises the error from Python."""

CONSTANT_BYTES = 2**20
"""Maximum size of a constant in a program, in bytes."""

OTHER_MESH = "should match the mesh passed to shard_map"
"""Part of JAX's error text for a `shard_map` in the context of another mesh."""


def check_result(name: str, state: Tree, result: Any, names: tuple[str, ...] = ()) -> None:
    """Check the result of a step against its input state.

    Args:
        name: name of the program, for the error.
        state: the input state, a tree of `jax.ShapeDtypeStruct`.
        result: the result of the step, with arrays replaced by `jax.ShapeDtypeStruct`.
        names: name of each leaf of `state`; empty: the path of each leaf.

    Raises:
        ProgramError: the result is not a pair, or its state has another structure, shape or dtype.
    """
    new_state, _ = check_pair(name, result)
    before, after = jax.tree.structure(state), jax.tree.structure(new_state)
    if before != after:
        raise ProgramError(
            f"The step of {name!r} must return a state of the same structure as the one that it was given: "
            f"it was given {before} and returned {after}."
        )
    for leaf_name, old, new in zip(
        names or leaf_names(state, "state"), jax.tree.leaves(state), jax.tree.leaves(new_state), strict=True
    ):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ProgramError(
                f"The step of {name!r} must return each state as it was given: {leaf_name!r} was given as "
                f"{leaf_text(old)} and returned as {leaf_text(new)}. Cast it back with .astype, or start with a state "
                "of the type that comes back."
            )


def check_pair(name: str, result: Any) -> tuple[Any, Any]:
    """Return the result of a step if it is a pair (state, outputs); otherwise raise `ProgramError`."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise ProgramError(
        f"The step of {name!r} must return a pair (state, outputs), not {_text(result)}. "
        "Where there is nothing to report, return (state, {})."
    )


def _text(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {len(result)}"
    if result is None:
        return "None"
    is_array = isinstance(result, jax.Array | jax.ShapeDtypeStruct)
    return "an array" if is_array else f"a {type(result).__name__}"


def refuse_callbacks(name: str, jaxpr: ClosedJaxpr) -> None:
    """Raise `ProgramError`, with the line of source, if the traced step of program `name` calls back into Python."""
    for level, _, scope in _levels(jaxpr, ""):
        for equation in level.eqns:
            called, inside = equation.primitive.name, _join(scope, equation)
            place = f"{f' inside {inside!r}' if inside else ''}, at {summarize(equation.source_info)}"
            if called in CALLBACKS:
                raise ProgramError(
                    f"The step of {name!r} calls back into Python ({called}{place}). A program that leaves this "
                    f"process cannot take Python code along: {CALLBACKS[called]}, or run the program in this process "
                    "only."
                )
            if called == _CHECK and not equation.params["debug"]:
                raise ProgramError(
                    f"The step of {name!r} raises an error from inside the program (checkify.check{place}). Return it "
                    "with the outputs: error, result = checkify.checkify(step)(state, batch). Or remove the check."
                )


def refuse_large_constants(name: str, jaxpr: ClosedJaxpr) -> None:
    """Raise `ProgramError` if the traced step of program `name` closed over an array of more than `CONSTANT_BYTES`."""
    for value, user in _constants(jaxpr):
        size_bytes = math.prod(value.shape) * value.dtype.itemsize
        if size_bytes > CONSTANT_BYTES:
            line = f", used at {summarize(user.source_info)}" if user is not None else ""
            raise ProgramError(
                f"The step of {name!r} holds the constant {leaf_text(value)} ({size_bytes / 2**20:.1f} MiB{line}). "
                "A program takes its arrays as inputs: pass this one in through the state or the batch. A constant may "
                f"have up to {CONSTANT_BYTES / 2**20:.0f} MiB."
            )


def _constants(jaxpr: ClosedJaxpr) -> Iterator[tuple[Any, JaxprEqn | None]]:
    """Yield each constant array of the jaxpr and its nested jaxprs, with the first equation that uses it."""
    for level, constants, _ in _levels(jaxpr, ""):
        for variable, value in zip(level.constvars, constants, strict=False):
            yield value, next((eqn for eqn in level.eqns if any(variable is operand for operand in eqn.invars)), None)
        for equation in level.eqns:
            for operand in equation.invars:
                if isinstance(operand, Literal) and getattr(operand.val, "shape", ()):
                    yield operand.val, equation


def _levels(jaxpr: ClosedJaxpr | Jaxpr, scope: str) -> Iterator[tuple[Jaxpr, Sequence[Any], str]]:
    """Yield the jaxpr and each nested one, with its constants and its name scope."""
    level, constants = (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else (jaxpr, ())
    yield level, constants, scope
    for equation in level.eqns:
        for inner in inner_jaxprs(equation):
            yield from _levels(inner, _join(scope, equation))


def _join(scope: str, equation: JaxprEqn) -> str:
    parts = (scope, *str(equation.source_info.name_stack).split("/"))
    return "/".join(part for part in parts if part not in ("", "vmap()"))


def explained(name: str, error: Exception) -> ProgramError | None:
    """Return our error for a JAX error in the trace of program `name`; None if the error is not about a mesh."""
    message = str(error)
    first = message.splitlines()[0] if message else ""
    if "jit requires a non-empty mesh" in message:
        return ProgramError(
            f"The step of {name!r} gives jax.jit a PartitionSpec, which needs a mesh of devices around each call. Give "
            "it jax.sharding.NamedSharding(mesh, spec) in its place."
        )
    if "requires a non-empty mesh" in message or "context mesh cannot be empty" in message:
        return ProgramError(
            f"The step of {name!r} names axes of a mesh, and no mesh is set. Put shardings over the mesh on the specs, "
            "or call this inside `with jax.set_mesh(mesh):`, or `with jax.sharding.use_abstract_mesh(mesh):` for a "
            f"mesh without devices. JAX said: {first}"
        )
    if "should evenly divide" in message:
        return ProgramError(f"The step of {name!r} asks for a sharding that does not fit: {first}.")
    if "`compiler_options` can only be passed to top-level" in message:
        return ProgramError(
            f"The step of {name!r} is jitted with compiler_options, which a program does not carry. Give them to "
            "the compilation, anytpu.plan(..., options={...}), and jax.jit none."
        )
    return None
