"""`work_of`: a lower bound on a step's work: FLOPs of its matrix products by operand type, and arrays that it moves.

Idea: every compiler must perform the multiplications of the step's products. A multiplication counts two FLOPs, as in
XLA's cost analysis.

Rule: FLOPs are summed over all devices. Shapes outside a `shard_map` are global. Shapes inside are per device, so their
FLOPs are multiplied by the number of devices along the mapped axes.

Work that a compiler may omit does not count:

1. Dead code.
2. Common subexpressions: a product that is computed twice counts once.
3. Rows of a product outside a slice of its result (`needs.py`).
4. All branches of a conditional except the cheapest.
5. Loops with an unknown number of iterations.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.interpreters import partial_eval

from anytpu.planning.compiler.export import left_out_note, trace_once
from anytpu.planning.compiler.places import TracedOperation
from anytpu.planning.floor.needs import Box, needs_of, rounds_of, whole
from anytpu.planning.floor.traffic import read_whole, written_whole
from anytpu.planning.hlo.flops import WindowDimension, useful_positions
from anytpu.planning.memory.arguments import dtype_bits
from anytpu.program.jaxprs import called_jaxpr
from anytpu.program.program import Program

_PASSES = {jax.lax.Precision.DEFAULT: "", jax.lax.Precision.HIGH: "x3", jax.lax.Precision.HIGHEST: "x6"}

Flops = collections.Counter[str]
"""FLOPs by operand type of the matrix unit: "bf16", "bf16x3" and "bf16x6" (3 and 6 passes), "f8", "s8", "s4"."""


@dataclasses.dataclass(frozen=True)
class RequiredWork:
    """The minimum work of a step, over all devices.

    Attributes:
        program: the program.
        flops: FLOPs of the products, by operand type.
        is_read: for each argument of the step, whether it must be read completely.
        is_written: for each result of the step, whether it must be written completely.
        outputs: shape and dtype of each result other than the state.
        uncounted: loops whose products are not counted, a sentence each.
        notes: further notes on the step, a sentence each.
    """

    program: Program
    flops: Flops
    is_read: Sequence[bool]
    is_written: Sequence[bool]
    outputs: Sequence[Any]
    uncounted: tuple[str, ...]
    notes: tuple[str, ...]


def work_of(program: Program) -> RequiredWork:
    """Trace a step and return its minimum work.

    Raises:
        ProgramError: the step cannot be traced.
    """
    traced, left_out = trace_once(program)
    (flops, uncounted), step = products_of(traced.jaxpr), alive(traced.jaxpr.jaxpr)
    outputs = traced.jaxpr.out_avals[len(jax.tree.leaves(program.state)) :]
    is_read, is_written = read_whole(step), written_whole(step)
    return RequiredWork(program, flops, is_read, is_written, outputs, tuple(uncounted), left_out_note(left_out))


def products_of(jaxpr: ClosedJaxpr) -> tuple[Flops, list[str]]:
    """Return the FLOPs over all devices, and a sentence for each loop that was not counted.

    Args:
        jaxpr: the step, traced with the global batch.

    Example:
        >>> step = jax.make_jaxpr(lambda x, w: x @ w)(jnp.zeros((8, 16)), jnp.zeros((16, 4)))
        >>> products_of(step)
        (Counter({'bf16': 1024}), [])
    """
    uncounted: list[str] = []
    needed = alive(jaxpr.jaxpr)
    flops = _in(needed, [whole(variable) for variable in needed.outvars], (), uncounted)
    return flops, list(dict.fromkeys(uncounted))


def alive(jaxpr: Jaxpr) -> Jaxpr:
    """Return a jaxpr without dead code."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def _in(jaxpr: Jaxpr, results: Sequence[Box], around: tuple[JaxprEqn, ...], uncounted: list[str]) -> Flops:
    jaxpr = _distinct(jaxpr)
    total, needs = Flops(), needs_of(jaxpr, results)
    for equation in jaxpr.eqns:
        boxes = [needs.get(variable) for variable in equation.outvars]
        if equation.effects or any(box is not None for box in boxes):
            total += _of(equation, boxes, around, uncounted)
    return total


def _of(equation: JaxprEqn, boxes: list[Box], around: tuple[JaxprEqn, ...], uncounted: list[str]) -> Flops:
    name, params, inside = equation.primitive.name, equation.params, (*around, equation)
    is_whole = all(box == whole(variable) for box, variable in zip(boxes, equation.outvars, strict=True))
    # 1. Products.
    if name == "dot_general" and not is_whole:
        return Flops({_type_of(equation): _part_flops(equation, boxes[0] or (0,))})
    if name in ("dot_general", "ragged_dot_general"):
        return Flops({_type_of(equation): _product_flops(equation)} if is_whole else {})
    if name == "conv_general_dilated":
        return Flops({_type_of(equation): _convolution_flops(equation, boxes[0])} if boxes[0] else {})
    # 2. Control flow, each with the number of executions that is certain.
    if name == "scan":
        body = params["jaxpr"].jaxpr
        rounds = rounds_of(equation, boxes)
        return sum((_times(_in(body, needed, inside, uncounted), count) for count, needed in rounds), Flops())
    if name == "cond":
        branches = [_in(branch.jaxpr, boxes, inside, uncounted) for branch in params["branches"]]
        return min(branches, key=lambda flops: flops.total())
    if name == "shard_map":
        sizes = dict(params["mesh"].shape)
        count = math.prod(sizes[axis] for axis in params["newly_manual_axes"])
        body, parts = params["jaxpr"], zip(boxes, equation.outvars, params["jaxpr"].outvars, strict=True)
        # A part of a global result says nothing about the part of one device.
        needed = [whole(inner) if box == whole(outer) else None for box, outer, inner in parts]
        return _times(_in(body, needed, inside, uncounted), count)
    if name == "pallas_call":
        grid = params["grid_mapping"].grid
        # A grid whose size is known only at run time may be empty.
        runs = math.prod(grid) if all(isinstance(size, int) for size in grid) else 0
        return _times(_in(params["jaxpr"], [], inside, uncounted), runs)
    if name == "while":
        _count_none(TracedOperation(equation, around), uncounted)
        return Flops()
    # 3. Calls.
    inner = called_jaxpr(equation)
    return Flops() if inner is None else _in(inner, boxes, inside, uncounted)


def _times(flops: Flops, count: int) -> Flops:
    return Flops({dtype: count * each for dtype, each in flops.items()})


def _count_none(loop: TracedOperation, uncounted: list[str]) -> None:
    """Add a note that a loop of unknown length is not counted, if it has products."""
    body = loop.equation.params["body_jaxpr"].jaxpr
    if _in(body, [whole(variable) for variable in body.outvars], (*loop.around, loop.equation), []):
        uncounted.append(f"{loop.place}: its number of iterations is not known, so none is counted")


def _distinct(jaxpr: Jaxpr) -> Jaxpr:
    """Eliminate common subexpressions of a jaxpr, as the compiler does."""
    same: dict[Any, Any] = {}
    seen: dict[Any, JaxprEqn] = {}
    kept: list[JaxprEqn] = []
    for equation in jaxpr.eqns:
        operands = tuple(_value(variable, same) for variable in equation.invars)
        key = (equation.primitive, operands, *(_setting(name, equation.params[name]) for name in equation.params))
        before = seen.setdefault(key, equation)
        # An effect happens each time, so its equation stays.
        if before is equation or equation.effects:
            kept.append(equation.replace(invars=[_first(variable, same) for variable in equation.invars]))
        else:
            same.update(zip(equation.outvars, before.outvars, strict=True))
    return jaxpr.replace(eqns=kept, outvars=[_first(variable, same) for variable in jaxpr.outvars])


def _first(variable: Any, same: dict[Any, Any]) -> Any:
    return variable if isinstance(variable, Literal) else same.get(variable, variable)


def _value(variable: Any, same: dict[Any, Any]) -> Any:
    return (str(variable.val), str(variable.aval)) if isinstance(variable, Literal) else _first(variable, same)


def _setting(name: str, value: Any) -> tuple[str, Any]:
    """Return a key of a parameter for comparison; jaxprs and functions compare by identity."""
    has_code = callable(value) or (isinstance(value, ClosedJaxpr | Jaxpr | tuple | list) and "jaxpr" in name)
    return name, id(value) if has_code else str(value)


def _operands(equation: JaxprEqn) -> list[tuple[tuple[int, ...], Any]]:
    """Return shape and dtype of the two operands of a product."""
    avals: list[Any] = [variable.aval for variable in equation.invars[:2]]
    return [(aval.shape, jnp.dtype(aval.dtype)) for aval in avals]


def _product_flops(equation: JaxprEqn) -> int:
    """Return the FLOPs of a product; for a ragged product, as if every row belonged to a group."""
    left, right = (shape for shape, _ in _operands(equation))
    params, groups = equation.params, ()
    if "ragged_dot_dimension_numbers" in params:
        ragged = params["ragged_dot_dimension_numbers"]
        numbers, groups = ragged.dot_dimension_numbers, ragged.rhs_group_dimensions
    else:
        numbers = params["dimension_numbers"]
    (_, contracted), (_, batched) = numbers
    free = set(range(len(right))) - {*contracted, *batched, *groups}
    return 2 * math.prod(left) * math.prod(right[axis] for axis in free)


def _part_flops(equation: JaxprEqn, box: tuple[int, ...]) -> int:
    """Return the FLOPs of a product of which only a box is needed.

    Args:
        equation: the product.
        box: needed size along each axis of the result.
    """
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, _ = (shape for shape, _ in _operands(equation))
    return 2 * math.prod(box) * math.prod(left[axis] for axis in contracted)


def _convolution_flops(equation: JaxprEqn, box: tuple[int, ...]) -> int:
    """Return a lower bound on the FLOPs of a convolution of which only a box is needed.

    Kernel taps on the padding do not count. Each output position outside the box is assumed to have its full window.

    Args:
        equation: the convolution.
        box: needed size along each axis of the result.
    """
    left, right = (shape for shape, _ in _operands(equation))
    aval: Any = equation.outvars[0].aval
    result, params = aval.shape, equation.params
    of_left, of_right, of_result = params["dimension_numbers"]
    useful = 1
    for place, (stride, pad, spread, hole) in enumerate(
        zip(params["window_strides"], params["padding"], params["lhs_dilation"], params["rhs_dilation"], strict=True), 2
    ):
        window = WindowDimension(right[of_right[place]], stride, pad[0], spread, hole)
        positions = useful_positions(left[of_left[place]], result[of_result[place]], window)
        left_out = result[of_result[place]] - box[of_result[place]]
        useful *= max(positions - left_out * right[of_right[place]], 0)
    return 2 * right[of_right[1]] * box[of_result[1]] * box[of_result[0]] * useful


def _type_of(equation: JaxprEqn) -> str:
    """Return the operand type of the matrix unit: the fastest type that a compiler could choose."""
    dtypes = [dtype for _, dtype in _operands(equation)]
    bits = max(dtype_bits(dtype) for dtype in dtypes)
    # A lower bound takes the fastest unit: integers as bytes, unless they are stored in 4 bits.
    if all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes):
        return "s4" if bits == 4 else "s8"
    if bits <= 8 and all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
        return "f8"
    precision = equation.params["precision"]
    wide = isinstance(precision, tuple) and any(dtype == jnp.float32 for dtype in dtypes)
    return "bf16" + max((_PASSES[precision_] for precision_ in precision), default="") if wide else "bf16"
