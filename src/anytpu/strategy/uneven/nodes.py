"""The operations of one replica's trace as a flat list, and what they need of other replicas.

Idea: a call of a function with a collective in it is replaced by the function's operations. So a collective is in the
list itself, or in a loop or a branch of it.

Rule: an operation without use and without effect is left out.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sysconfig
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.program.jaxprs import called_jaxpr, inner_jaxprs, level_of
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.uneven.recorded import GRADIENTS

Ref = int | Literal
"""An operand: the index of a value, or a literal."""

CONTROL_FLOW = ("scan", "while", "cond")


class StepNode(NamedTuple):
    """One operation.

    Attributes:
        equation: the operation in the trace.
        operands: its operands.
        results: indices of its results.
    """

    equation: JaxprEqn
    operands: list[Ref]
    results: list[int]


@dataclasses.dataclass(frozen=True)
class NodeList:
    """The operations of a trace.

    Attributes:
        nodes: the operations, in order.
        inputs: indices of the arguments.
        outputs: the results of the trace.
        constants: arrays that the trace captured, by their index.
        last_use: index of the last operation that reads a value; the number of operations for a result of the trace.
    """

    nodes: list[StepNode]
    inputs: list[int]
    outputs: list[Ref]
    constants: dict[int, Any]
    last_use: dict[int, int]


def node_list(jaxpr: ClosedJaxpr | Jaxpr, constants: Sequence[Any] | None = None) -> NodeList:
    """Return the operations of a trace.

    Args:
        jaxpr: the trace, closed or not.
        constants: the arrays that it captured; None makes them the first arguments.
    """
    level, counter, captured = level_of(jaxpr), itertools.count(), dict[int, Any]()
    nodes: list[StepNode] = []
    names: list[int] = [next(counter) for _ in level.constvars]
    inputs = [next(counter) for _ in level.invars]
    if constants is None:
        arguments = [*names, *inputs]
    else:
        captured.update(zip(names, constants, strict=True))
        arguments = inputs
    outputs = _flatten(level, [*names, *inputs], nodes, captured, counter)
    nodes = _used(nodes, outputs)
    last_use = {ref: index for index, node in enumerate(nodes) for ref in node.operands if isinstance(ref, int)}
    last_use |= {ref: len(nodes) for ref in outputs if isinstance(ref, int)}
    return NodeList(nodes, arguments, outputs, captured, last_use)


def _flatten(
    level: Jaxpr, given: list[Ref], nodes: list[StepNode], captured: dict[int, Any], counter: Any
) -> list[Ref]:
    """Append the operations of a jaxpr, given the refs of its constants and arguments. Return those of its results."""
    refs: dict[Any, Ref] = dict(zip([*level.constvars, *level.invars], given, strict=True))

    def ref(atom: Any) -> Ref:
        return atom if isinstance(atom, Literal) else refs[atom]

    for equation in level.eqns:
        operands = [ref(atom) for atom in equation.invars]
        called = None if equation.primitive.name in CONTROL_FLOW else called_jaxpr(equation)
        if called is not None and (meets(equation) or has_index(equation)):
            closed = next(inner_jaxprs(equation))
            constants = [next(counter) for _ in called.constvars]
            captured.update(zip(constants, getattr(closed, "consts", ()), strict=True))
            results: list[Ref] = _flatten(called, [*constants, *operands], nodes, captured, counter)
        else:
            own = [next(counter) for _ in equation.outvars]
            nodes.append(StepNode(equation, operands, own))
            results = list(own)
        refs.update(zip(equation.outvars, results, strict=True))
    return [ref(atom) for atom in level.outvars]


def _used(nodes: list[StepNode], outputs: list[Ref]) -> list[StepNode]:
    needed = {ref for ref in outputs if isinstance(ref, int)}
    kept = []
    for node in reversed(nodes):
        if node.equation.effects or not needed.isdisjoint(node.results):
            needed.update(ref for ref in node.operands if isinstance(ref, int))
            kept.append(node)
    return kept[::-1]


def meets(equation: JaxprEqn) -> bool:
    """Return whether an operation needs values of other replicas."""
    if equation.primitive is GRADIENTS:
        return True
    if equation.primitive.name != "axis_index" and _names_axis(equation):
        return True
    return any(meets_in(inner) for inner in inner_jaxprs(equation))


def meets_in(jaxpr: ClosedJaxpr | Jaxpr) -> bool:
    """Return whether an operation of a jaxpr needs values of other replicas."""
    return any(meets(equation) for equation in level_of(jaxpr).eqns)


def has_index(equation: JaxprEqn) -> bool:
    """Return whether an operation reads the index of the replica."""
    if equation.primitive.name == "axis_index" and _names_axis(equation):
        return True
    return any(has_index(inner) for jaxpr in inner_jaxprs(equation) for inner in level_of(jaxpr).eqns)


def _names_axis(equation: JaxprEqn) -> bool:
    names = equation.params.get("axes", equation.params.get("axis_name", ()))
    return REPLICA_AXIS in (names if isinstance(names, tuple | list) else (names,))


_OF_DERIVATIVES = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees")
"""Parameters of an operation that only say how it is differentiated."""

_MAX_COMPARED_BYTES = 2**16
"""Maximum size of a constant that is compared by its content; a larger one is compared by its identity."""


def identity_of(equation: JaxprEqn, operands: Sequence[Hashable], with_derivative: bool = False) -> Hashable:
    """Return the identity of an operation's results: equal operations on equal operands have equal results.

    Args:
        equation: the operation.
        operands: the identities of its operands.
        with_derivative: equal results also have equal derivatives.
    """
    params = _params_key(equation, with_derivative)
    return equation.primitive.name, params, tuple(operands)


def _params_key(equation: JaxprEqn, with_derivative: bool) -> Hashable:
    left_out = () if with_derivative else _OF_DERIVATIVES
    params = equation.params.items()
    return tuple((name, _key(value, with_derivative)) for name, value in params if name not in left_out)


def identity_of_constant(value: Any) -> Hashable:
    """Return the identity of an array that a trace captured."""
    is_small = isinstance(value, np.ndarray | np.generic | jax.Array) and not isinstance(value, Tracer)
    if not is_small or value.nbytes > _MAX_COMPARED_BYTES or jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return "constant", id(value)
    array = np.asarray(value)
    return "constant", str(array.dtype), array.shape, array.tobytes()


def identity_of_literal(literal: Literal) -> Hashable:
    """Return the identity of a literal."""
    value = np.asarray(literal.val)
    return "literal", str(literal.aval), value.tobytes()


def _key(value: Any, with_derivative: bool) -> Hashable:
    if isinstance(value, Jaxpr | ClosedJaxpr):
        return _jaxpr_key(value, with_derivative)
    if isinstance(value, tuple | list):
        return tuple(_key(item, with_derivative) for item in value)
    if isinstance(value, dict):
        return tuple((name, _key(item, with_derivative)) for name, item in value.items())
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _jaxpr_key(jaxpr: ClosedJaxpr | Jaxpr, with_derivative: bool) -> Hashable:
    """Return what a jaxpr computes: its operations on numbered variables."""
    level, numbers = level_of(jaxpr), dict[Any, int]()

    def key(atom: Any) -> Hashable:
        return identity_of_literal(atom) if isinstance(atom, Literal) else numbers.setdefault(atom, len(numbers))

    given = tuple((key(variable), str(variable.aval)) for variable in [*level.constvars, *level.invars])
    operations = tuple(
        (e.primitive.name, _params_key(e, with_derivative), tuple(map(key, e.invars)), tuple(map(key, e.outvars)))
        for e in level.eqns
    )
    constants = tuple(map(identity_of_constant, getattr(jaxpr, "consts", ())))
    return given, operations, constants, tuple(map(key, level.outvars))


def has_own_derivative(jaxpr: ClosedJaxpr | Jaxpr) -> bool:
    """Return whether a function with its own derivative meets other replicas, or reads the index of its replica."""
    for equation in level_of(jaxpr).eqns:
        if "num_consts" in equation.params and equation.primitive.name.startswith("custom_"):
            if meets(equation) or has_index(equation):
                return True
        elif any(map(has_own_derivative, inner_jaxprs(equation))):
            return True
    return False


def bind(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Compute an operation."""
    primitive, context = equation.primitive, equation.ctx
    params = {name: int(v) if type(v).__name__ == "AxisSize" else v for name, v in equation.params.items()}
    with context.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return list(results) if primitive.multiple_results else [results]


def spec_of_result(atom: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a result."""
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


_LIBRARIES = (
    str(Path(jax.__file__).parents[1]),
    str(Path(__file__).parents[2]),
    sysconfig.get_paths()["stdlib"],
    "<",  # Code without a file, such as "<frozen importlib._bootstrap>" or "<string>".
)


def described(equation: JaxprEqn) -> str:
    """Return the name of an operation and the line of the user's code that calls it, "psum (line 12 of train.py)"."""
    traceback = equation.source_info.traceback
    for frame in [] if traceback is None else traceback.frames:
        if not frame.file_name.startswith(_LIBRARIES):
            return f"{equation.primitive.name} (line {frame.line_num} of {os.path.basename(frame.file_name)})"
    return equation.primitive.name
