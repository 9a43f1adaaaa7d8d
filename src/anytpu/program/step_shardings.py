"""`StepShardings`: the shardings that a step itself asks for its inputs and outputs.

Idea: `jax.jit(step, in_shardings=...)`, `jax.shard_map` and a sharding constraint on an input each say how that input
lies. JAX lays the arrays of a call so; a program that holds the step lays its inputs so too, or each call would begin
with moving them.

Rule: read from the equations that take the inputs, as they are or in another dtype; inside of jitted functions,
`jax.checkpoint`, `custom_jvp` and `custom_vjp` too. The first equation that asks counts. What is asked deeper stays in
the step, and XLA honours it there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import AbstractMesh, NamedSharding, Sharding

from anytpu.program.jaxprs import called_jaxpr, inner_jaxprs, level_of

JIT = "jax.jit"
"""The asker whose shardings JAX enforces: an array that lies in another way is refused by it."""

_CALLS = ("jit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
"""Equations that run a jaxpr once, on their own operands."""

_KEEPS = ("convert_element_type", "copy", "copy_p", "name", "reduce_precision", "optimization_barrier")
"""Equations whose results are their operands: the same elements, at most in another dtype."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """A sharding that a step asks for.

    Attributes:
        sharding: the sharding.
        by: who asks: "jax.jit", "jax.shard_map" or "a sharding constraint".
    """

    sharding: Sharding
    by: str


@dataclasses.dataclass(frozen=True)
class StepShardings:
    """The shardings that a step asks for.

    Attributes:
        inputs: for each flat argument, or None where the step does not ask.
        outputs: for each flat result, or None.
        donated: for each flat argument whether `jax.jit` may use its memory for a result.
        is_jitted: whether the step is one jitted function; else nothing is donated.
        has_memory_layout: whether `jax.jit` asks for an order of dimensions in memory.
        meshes: the meshes of more than one device that anything in the step names.
    """

    inputs: tuple[Ask | None, ...]
    outputs: tuple[Ask | None, ...]
    donated: tuple[bool, ...]
    is_jitted: bool
    has_memory_layout: bool
    meshes: tuple[AbstractMesh, ...]


def step_shardings(traced: ClosedJaxpr) -> StepShardings:
    """Return what a traced step asks for.

    Example:
        >>> step_shardings(jax.make_jaxpr(jax.jit(step, in_shardings=(whole, rows)))(state, batch)).inputs[1].by
        'jax.jit'
    """
    jaxpr = traced.jaxpr
    inputs: dict[int, Ask] = {}
    _inputs(jaxpr, {variable: number for number, variable in enumerate(jaxpr.invars)}, inputs)
    outputs = tuple(_output(jaxpr, variable) for variable in jaxpr.outvars)
    asked = tuple(inputs.get(number) for number in range(len(jaxpr.invars)))
    is_jitted = len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name == "jit"
    donated = _donated(jaxpr.eqns[0]) if is_jitted else []
    flags = tuple(any(variable is one for one in donated) for variable in jaxpr.invars)
    return StepShardings(asked, outputs, flags, is_jitted, _has_memory_layout(jaxpr), tuple(_meshes(jaxpr)))


def _inputs(jaxpr: Jaxpr, numbers: Mapping[Any, int], found: dict[int, Ask]) -> dict[Any, int]:
    """Find what the equations of a jaxpr ask of the variables that are inputs, by number; return all such variables."""
    known = dict(numbers)
    for equation in jaxpr.eqns:
        given = enumerate(equation.invars)
        taken = {place: known[one] for place, one in given if not isinstance(one, Literal) and one in known}
        asks = _asks(equation, len(equation.invars), "in")
        for place, number in taken.items():
            ask = asks[place]
            if ask is not None:
                found.setdefault(number, ask)
        inner = _called(equation)
        if inner is not None:
            inside = _inputs(inner, {inner.invars[place]: number for place, number in taken.items()}, found)
            known |= {
                outer: inside[one]
                for outer, one in zip(equation.outvars, inner.outvars, strict=True)
                if not isinstance(one, Literal) and one in inside
            }
        elif equation.primitive.name in _KEEPS:
            known |= {equation.outvars[place]: number for place, number in taken.items()}
    return known


def _output(jaxpr: Jaxpr, variable: Any) -> Ask | None:
    """Return what is asked for a result of a jaxpr by the equation that makes it."""
    for equation in jaxpr.eqns:
        if variable in equation.outvars:
            place = equation.outvars.index(variable)
            ask, inner = _asks(equation, len(equation.outvars), "out")[place], _called(equation)
            if ask is None and inner is not None:
                return _output(inner, inner.outvars[place])
            if ask is None and equation.primitive.name in _KEEPS:
                return _output(jaxpr, equation.invars[place])
            return ask
    return None


def _called(equation: JaxprEqn) -> Jaxpr | None:
    return called_jaxpr(equation) if equation.primitive.name in _CALLS else None


def _asks(equation: JaxprEqn, count: int, side: str) -> Sequence[Ask | None]:
    """Return what an equation asks for each of its operands ("in") or results ("out")."""
    name, params = equation.primitive.name, equation.params
    if name == "jit":
        return [Ask(one, JIT) if isinstance(one, Sharding) else None for one in params[f"{side}_shardings"]]
    if name == "shard_map":
        return [Ask(NamedSharding(params["mesh"], spec), "jax.shard_map") for spec in params[f"{side}_specs"]]
    if name == "sharding_constraint":
        return [Ask(params["sharding"], "a sharding constraint")] * count
    return [None] * count


def _donated(equation: JaxprEqn) -> list[Any]:
    """Return the variables that a jitted function takes and may overwrite."""
    return [one for one, flag in zip(equation.invars, equation.params["donated_invars"], strict=True) if flag]


def _has_memory_layout(jaxpr: Jaxpr) -> bool:
    jits = [equation for equation in jaxpr.eqns if equation.primitive.name == "jit"]
    return any(one is not None for each in jits for one in (*each.params["in_layouts"], *each.params["out_layouts"]))


def _meshes(jaxpr: Jaxpr) -> dict[AbstractMesh, None]:
    """Return the meshes that the equations of a jaxpr name, those inside of others too, each once."""
    found: dict[AbstractMesh, None] = {}
    for equation in jaxpr.eqns:
        for side, operands in (("in", equation.invars), ("out", equation.outvars)):
            for ask in _asks(equation, len(operands), side):
                if ask is not None and isinstance(ask.sharding, NamedSharding) and ask.sharding.mesh.size > 1:
                    found[ask.sharding.mesh.abstract_mesh] = None
        for inner in inner_jaxprs(equation):
            found |= _meshes(level_of(inner))
    return found
