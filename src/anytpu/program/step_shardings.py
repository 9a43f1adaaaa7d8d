"""`StepShardings`: the shardings that a step itself requests for its inputs and outputs.

Idea: `jax.jit(step, in_shardings=...)`, `jax.shard_map` and a sharding constraint request a sharding of an input. JAX
reshards the arrays of a call to it. A program with this step uses the same shardings for its inputs; otherwise each
call would begin with a reshard.

Rule: requests are read from the equations that take the inputs, unchanged or in another dtype, also inside jitted
functions, `jax.checkpoint`, `custom_jvp` and `custom_vjp`. The first request counts. Requests for intermediate values
stay in the step, and XLA follows them there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import AbstractMesh, NamedSharding, Sharding

from anytpu.program.jaxprs import called_jaxpr, inner_jaxprs, level_of

JIT = "jax.jit"
"""The source of requests that JAX enforces: it rejects an array with another sharding."""

CONSTRAINT = "a sharding constraint"
"""The source of requests that place a value inside the step."""

_CALLS = ("jit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
"""Equations that run a jaxpr once, on their own operands."""

_KEEPS = ("convert_element_type", "copy", "copy_p", "name", "reduce_precision", "optimization_barrier")
"""Equations whose results have the elements of their operands, at most in another dtype."""


@dataclasses.dataclass(frozen=True)
class ShardingRequest:
    """A sharding that a step requests.

    Attributes:
        sharding: the sharding.
        source: the requester: "jax.jit", "jax.shard_map" or "a sharding constraint".
    """

    sharding: Sharding
    source: str


@dataclasses.dataclass(frozen=True)
class StepShardings:
    """The shardings that a step requests.

    Attributes:
        inputs: request for each flat argument, or None.
        outputs: request for each flat result, or None.
        donated: for each flat argument, whether `jax.jit` may reuse its memory for a result.
        is_jitted: whether the step is a single jitted function; otherwise nothing is donated.
        has_memory_layout: whether `jax.jit` requests an order of dimensions in memory.
        meshes: the meshes of more than one device in the step.
    """

    inputs: tuple[ShardingRequest | None, ...]
    outputs: tuple[ShardingRequest | None, ...]
    donated: tuple[bool, ...]
    is_jitted: bool
    has_memory_layout: bool
    meshes: tuple[AbstractMesh, ...]


def step_shardings(traced: ClosedJaxpr) -> StepShardings:
    """Return the shardings that a traced step requests.

    Example:
        >>> step_shardings(jax.make_jaxpr(jax.jit(step, in_shardings=(whole, rows)))(state, batch)).inputs[1].source
        'jax.jit'
    """
    jaxpr = traced.jaxpr
    inputs: dict[int, ShardingRequest] = {}
    _collect_inputs(jaxpr, {variable: index for index, variable in enumerate(jaxpr.invars)}, inputs)
    outputs = tuple(_output(jaxpr, variable) for variable in jaxpr.outvars)
    requests = tuple(inputs.get(index) for index in range(len(jaxpr.invars)))
    is_jitted = len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name == "jit"
    donated = _donated(jaxpr.eqns[0]) if is_jitted else []
    flags = tuple(any(variable is other for other in donated) for variable in jaxpr.invars)
    return StepShardings(requests, outputs, flags, is_jitted, _has_memory_layout(jaxpr), tuple(_meshes(jaxpr)))


def _collect_inputs(jaxpr: Jaxpr, inputs: Mapping[Any, int], requests: dict[int, ShardingRequest]) -> dict[Any, int]:
    """Add the requests of a jaxpr's equations for input variables to `requests`.

    Args:
        jaxpr: the jaxpr.
        inputs: index of the step's argument, by variable of the jaxpr that holds it.
        requests: first request for each argument, by index.

    Returns:
        The extended `inputs`: with the variables that hold an argument unchanged or in another dtype.
    """
    known = dict(inputs)
    for equation in jaxpr.eqns:
        operands = enumerate(equation.invars)
        taken = {at: known[atom] for at, atom in operands if not isinstance(atom, Literal) and atom in known}
        # 1. Requests of this equation for operands that hold an argument.
        own = _requests(equation, len(equation.invars), "in")
        for position, index in taken.items():
            request = own[position]
            if request is not None:
                requests.setdefault(index, request)
        # 2. A called function may request more, and may return an argument unchanged.
        inner = _called(equation)
        if inner is not None:
            inner_inputs = {inner.invars[position]: index for position, index in taken.items()}
            inner_known = _collect_inputs(inner, inner_inputs, requests)
            known |= {
                outer: inner_known[atom]
                for outer, atom in zip(equation.outvars, inner.outvars, strict=True)
                if not isinstance(atom, Literal) and atom in inner_known
            }
        elif equation.primitive.name in _KEEPS:
            known |= {equation.outvars[position]: index for position, index in taken.items()}
    return known


def _output(jaxpr: Jaxpr, variable: Any) -> ShardingRequest | None:
    """Return the request for a result of a jaxpr by the equation that computes it."""
    for equation in jaxpr.eqns:
        if variable in equation.outvars:
            position = equation.outvars.index(variable)
            request, inner = _requests(equation, len(equation.outvars), "out")[position], _called(equation)
            if request is None and inner is not None:
                return _output(inner, inner.outvars[position])
            if request is None and equation.primitive.name in _KEEPS:
                return _output(jaxpr, equation.invars[position])
            return request
    return None


def _called(equation: JaxprEqn) -> Jaxpr | None:
    return called_jaxpr(equation) if equation.primitive.name in _CALLS else None


def _requests(equation: JaxprEqn, count: int, side: str) -> Sequence[ShardingRequest | None]:
    """Return the request of an equation for each of its operands ("in") or results ("out")."""
    name, params = equation.primitive.name, equation.params
    if name == "jit":
        shardings = params[f"{side}_shardings"]
        return [ShardingRequest(sharding, JIT) if isinstance(sharding, Sharding) else None for sharding in shardings]
    if name == "shard_map":
        return [
            ShardingRequest(NamedSharding(params["mesh"], spec), "jax.shard_map") for spec in params[f"{side}_specs"]
        ]
    if name == "sharding_constraint":
        return [ShardingRequest(params["sharding"], CONSTRAINT)] * count
    return [None] * count


def _donated(equation: JaxprEqn) -> list[Any]:
    """Return the operands that a jitted function may overwrite."""
    return [operand for operand, flag in zip(equation.invars, equation.params["donated_invars"], strict=True) if flag]


def _has_memory_layout(jaxpr: Jaxpr) -> bool:
    jits = [equation for equation in jaxpr.eqns if equation.primitive.name == "jit"]
    return any(layout is not None for jit in jits for layout in (*jit.params["in_layouts"], *jit.params["out_layouts"]))


def _meshes(jaxpr: Jaxpr) -> dict[AbstractMesh, None]:
    """Return the distinct meshes in the equations of a jaxpr and its nested jaxprs, as the keys of a dict."""
    meshes: dict[AbstractMesh, None] = {}
    for equation in jaxpr.eqns:
        for side, operands in (("in", equation.invars), ("out", equation.outvars)):
            for request in _requests(equation, len(operands), side):
                if (
                    request is not None
                    and isinstance(request.sharding, NamedSharding)
                    and request.sharding.mesh.size > 1
                ):
                    meshes[request.sharding.mesh.abstract_mesh] = None
        for inner in inner_jaxprs(equation):
            meshes |= _meshes(level_of(inner))
    return meshes
