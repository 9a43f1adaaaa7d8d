"""`work_of`: a lower bound on a step's work: FLOPs of its matrix products by operand type, and arrays that it moves.

Idea: one pass from the results back to the arguments says what is certain to be computed and read. A product counts if
all of its result is needed, two FLOPs for each multiplication, as in XLA's cost analysis. Between two steps, arguments
and results are in the main memory. So an argument that is needed is read once, and a computed result is written once.

Rule: the bound is simple. Work that a compiler may leave out does not count at all:

1. Dead code, and a common subexpression after its first time.
2. A product of which only a part is used.
3. All branches of a conditional except the cheapest, and loops with an unknown number of iterations.
4. A table from which rows are gathered, an argument that is updated in place, and a result that is an argument.

FLOPs are summed over all devices. Shapes outside a `shard_map` are global. Shapes inside are per device, so their
FLOPs are multiplied by the number of devices along the mapped axes.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.planning.compiler.export import left_out_note, trace_once
from anytpu.planning.compiler.places import TracedOperation
from anytpu.planning.hlo.flops import WindowDimension, useful_positions
from anytpu.planning.memory.arguments import dtype_bits
from anytpu.program.jaxprs import called_jaxpr, level_of, scan_arguments, shape_of
from anytpu.program.program import Program

PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")
"""Operations of the matrix units."""

_PASSES = {jax.lax.Precision.DEFAULT: "", jax.lax.Precision.HIGH: "x3", jax.lax.Precision.HIGHEST: "x6"}

# Needs of a value, as flags: a part of it is passed on; all of it is computed; all of it is read.
_NOT, _KEPT, _MADE, _READ = 0, 1, 2, 4
_ALL = _KEPT | _MADE | _READ
_IN_PLACE = ("scatter", "dynamic_update_slice")
_PARTS = ("gather", "dynamic_slice", "slice")
_SAME = (
    "reshape", "squeeze", "expand_dims", "copy", "copy_p", "sharding_constraint", "reshard", "optimization_barrier"
)  # fmt: skip
_OPAQUE = ("while", "pallas_call", "custom_linear_solve")
_MAX_ROUNDS = 3  # of a scan, in which the need of its carry may change

Flops = collections.Counter[str]
"""FLOPs by operand type of the matrix unit: "bf16", "bf16x3" and "bf16x6" (3 and 6 passes), "f8", "s8", "s4"."""


@dataclasses.dataclass(frozen=True)
class TracedWork:
    """The minimum work of a traced step.

    Attributes:
        flops: FLOPs of the products over all devices, by operand type.
        is_read: for each argument of the step, whether it must be read completely.
        is_written: for each result of the step, whether it must be written completely.
        uncounted: loops whose products are not counted, a sentence each.
    """

    flops: Flops
    is_read: Sequence[bool]
    is_written: Sequence[bool]
    uncounted: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class RequiredWork:
    """The minimum work of a program.

    Attributes:
        program: the program.
        traced: the work of its step.
        outputs: shape and dtype of each result other than the state.
        notes: notes on the step, a sentence each.
    """

    program: Program
    traced: TracedWork
    outputs: Sequence[Any]
    notes: tuple[str, ...]


def work_of(program: Program) -> RequiredWork:
    """Trace a step and return its minimum work.

    Raises:
        ProgramError: the step cannot be traced.
    """
    traced, left_out = trace_once(program)
    outputs = traced.jaxpr.out_avals[len(jax.tree.leaves(program.state)) :]
    return RequiredWork(program, traced_work(traced.jaxpr), outputs, left_out_note(left_out))


def traced_work(jaxpr: ClosedJaxpr) -> TracedWork:
    """Return the minimum work of a step that is traced with the global batch.

    Example:
        >>> step = jax.make_jaxpr(lambda x, w: x @ w)(jnp.zeros((8, 16)), jnp.zeros((16, 4)))
        >>> traced_work(step).flops
        Counter({'bf16': 1024})
        >>> step = jax.make_jaxpr(lambda w, table, rows: (w * 2, table[rows]))
        >>> traced_work(step(jnp.zeros(4), jnp.zeros((100, 8)), jnp.zeros(3, "int32"))).is_read
        [True, False, True]
    """
    uncounted: list[str] = []
    flops, needs = _work(jaxpr.jaxpr, [_KEPT | _MADE] * len(jaxpr.jaxpr.outvars), (), uncounted)
    is_read = [bool(need & _READ) for need in needs]
    return TracedWork(flops, is_read, _written(jaxpr.jaxpr), tuple(dict.fromkeys(uncounted)))


def _work(
    jaxpr: Jaxpr, results: Sequence[int], around: tuple[JaxprEqn, ...], uncounted: list[str]
) -> tuple[Flops, list[int]]:
    """Return the FLOPs of a jaxpr, and the need of each argument, given the need of each result."""
    jaxpr = _distinct(jaxpr)
    total, needs, slices = Flops(), collections.defaultdict[Any, int](int), collections.defaultdict[Any, list](list)

    def need(values: Sequence[Any], levels: Sequence[int]) -> None:
        for variable, level in zip(values, levels, strict=True):
            if not isinstance(variable, Literal):
                needs[variable] |= level

    # Backwards, so that the needs of all users of a value are known before the equation that makes it.
    need(jaxpr.outvars, results)
    for equation in reversed(jaxpr.eqns):
        levels = [needs[variable] for variable in equation.outvars]
        if not equation.effects and not any(levels):
            continue
        flops, operands = _of(equation, levels, around, uncounted)
        total += flops
        # Slices that cover a value together need all of it.
        if equation.primitive.name == "slice" and levels[0] & _MADE:
            taken = slices[equation.invars[0]]
            taken.append(equation.params)
            operands = [_ALL] if _cover(taken, shape_of(equation.invars[0])) else operands
        need(equation.invars, operands)
    return total, [needs[variable] for variable in jaxpr.invars]


def _of(
    equation: JaxprEqn, levels: list[int], around: tuple[JaxprEqn, ...], uncounted: list[str]
) -> tuple[Flops, list[int]]:
    """Return the FLOPs of an equation, and the need of each operand."""
    name, params, inside = equation.primitive.name, equation.params, (*around, equation)
    count, level = len(equation.invars), _either(levels)
    # 1. Control flow, each with the number of executions that is certain.
    if name == "scan":
        return _of_scan(equation, levels, inside, uncounted)
    if name == "cond":
        branches = [_work(level_of(branch), levels, inside, uncounted) for branch in params["branches"]]
        least = min((flops for flops, _ in branches), key=lambda flops: flops.total())
        shared = [_both(needs) for needs in zip(*(needs for _, needs in branches), strict=True)]
        return least, [_KEPT | _MADE, *shared]
    if name in _OPAQUE:
        return _of_opaque(equation, inside, uncounted), [_KEPT | _MADE] * count
    inner = called_jaxpr(equation)
    if inner is not None:
        flops, needs = _work(inner, levels, inside, uncounted)
        sizes = dict(params["mesh"].shape) if name == "shard_map" else {}
        return _times(flops, math.prod(sizes[axis] for axis in params.get("newly_manual_axes", ()))), needs
    # 2. Products, if all of the result is needed.
    flops = Flops()
    if name in PRODUCTS and level & _MADE:
        flops[_type_of(equation)] = product_flops(equation)
    # 3. Operations that pass parts of their first operand on.
    others = [_ALL] * (count - 1)
    if equation.effects:
        return flops, [_ALL] * count
    if name.startswith(_IN_PLACE):  # What it overwrites need not be computed.
        return flops, [level & ~_MADE, *([_KEPT | _READ | level & _MADE] * (count - 1))]
    if name in _PARTS or (name == "pad" and any(min(low, high) < 0 for low, high, _ in params["padding_config"])):
        return flops, [_NOT, *others]
    if name == "split":
        return flops, [_ALL if _both(levels) & _MADE else _NOT]
    if name in _SAME:
        return flops, levels if len(levels) == count else [level, *[_NOT] * (count - 1)]
    return flops, [_KEPT | _READ | level & _MADE] * count


def _both(levels: Sequence[int]) -> int:
    """Return the flags that all needs have."""
    return functools.reduce(operator.and_, levels, _ALL)


def _either(levels: Sequence[int]) -> int:
    """Return the flags that one of the needs has."""
    return functools.reduce(operator.or_, levels, _NOT)


def _of_scan(
    scan: JaxprEqn, levels: list[int], inside: tuple[JaxprEqn, ...], uncounted: list[str]
) -> tuple[Flops, list[int]]:
    """Return the work of a loop. The carry of its last iteration is needed like the result, that of an earlier one as
    the next iteration needs it."""
    body, length = level_of(scan.params["jaxpr"]), scan.params["length"]
    constants, carried = scan_arguments(scan)
    carry, stacked, left, total = levels[:carried], levels[carried:], length, Flops()
    rounds: list[list[int]] = []
    # From the last iteration back. If the need of the carry is the same before and after an iteration, it is the same
    # in all earlier ones. Iterations beyond the maximum do not count.
    while left and len(rounds) < _MAX_ROUNDS:
        flops, needs = _work(body, [*carry, *stacked], inside, uncounted)
        before = needs[constants : constants + carried]
        turns = left if before == carry else 1
        total, left, carry = total + _times(flops, turns), left - turns, before
        rounds.append(needs)
    if not rounds:
        return total, [_NOT] * len(scan.invars)
    known = [_both(level) if not left else _NOT for level in zip(*rounds, strict=True)]
    first = carry if not left else [_NOT] * carried
    everywhere = [_either(level) for level in zip(*rounds, strict=True)]
    return total, [*everywhere[:constants], *first, *known[constants + carried :]]


def _of_opaque(equation: JaxprEqn, inside: tuple[JaxprEqn, ...], uncounted: list[str]) -> Flops:
    """Return the FLOPs of a kernel, which has a grid, or of a loop of unknown length, which is named."""
    if equation.primitive.name == "pallas_call":
        grid = equation.params["grid_mapping"].grid
        # A grid whose size is known only at run time may be empty.
        runs = math.prod(grid) if all(isinstance(size, int) for size in grid) else 0
        return _times(_work(level_of(equation.params["jaxpr"]), [], inside, uncounted)[0], runs)
    if equation.primitive.name == "while":
        body = level_of(equation.params["body_jaxpr"])
        if _work(body, [_ALL] * len(body.outvars), inside, [])[0]:
            place = TracedOperation(equation, inside[:-1]).place
            uncounted.append(f"{place}: its number of iterations is not known, so none is counted")
    return Flops()


def _times(flops: Flops, count: int) -> Flops:
    return Flops({dtype: count * each for dtype, each in flops.items()})


def _cover(slices: Sequence[dict[str, Any]], shape: tuple[int, ...]) -> bool:
    """Return whether slices, each along one axis, have all indices of an array."""
    for axis, size in enumerate(shape):
        found: set[int] = set()
        for params in slices:
            strides = params["strides"] or (1,) * len(shape)
            ends = list(zip(params["start_indices"], params["limit_indices"], strides, strict=True))
            if all(end == (0, shape[other], 1) for other, end in enumerate(ends) if other != axis):
                found |= {*range(*ends[axis])}
        if len(found) == size:
            return True
    return False


def _written(jaxpr: Jaxpr) -> list[bool]:
    """Return for each result whether all of it has to be written; a repeated result counts once."""
    made = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    # Reversed, so that the first place of a repeated result wins.
    first = {id(variable): place for place, variable in reversed(list(enumerate(jaxpr.outvars)))}
    return [
        first[id(variable)] == place and not isinstance(variable, Literal) and _is_made(variable, made)
        for place, variable in enumerate(jaxpr.outvars)
    ]


def _is_made(variable: Any, made: dict[Any, JaxprEqn]) -> bool:
    """Return whether a value is computed as a whole, rather than being an argument with a changed part."""
    equation = made.get(variable)
    if equation is None or equation.primitive.name in ("cond", *_OPAQUE):
        return False
    name, place = equation.primitive.name, equation.outvars.index(variable)
    inner = called_jaxpr(equation)
    if inner is not None:
        return _written(inner)[place]
    if name in _SAME or name.startswith(_IN_PLACE):
        source = equation.invars[place if name == "optimization_barrier" else 0]
        return not isinstance(source, Literal) and _is_made(source, made)
    return True


def _distinct(jaxpr: Jaxpr) -> Jaxpr:
    """Eliminate common subexpressions of a jaxpr, as the compiler does."""
    same: dict[Any, Any] = {}
    seen: dict[Any, JaxprEqn] = {}
    kept: list[JaxprEqn] = []

    def first(variable: Any) -> Any:
        return variable if isinstance(variable, Literal) else same.get(variable, variable)

    def key_of(variable: Any) -> Any:
        return (str(variable.val), str(variable.aval)) if isinstance(variable, Literal) else first(variable)

    def setting(name: str, value: Any) -> tuple[str, Any]:
        # Jaxprs and functions compare by identity.
        has_code = callable(value) or (isinstance(value, ClosedJaxpr | Jaxpr | tuple | list) and "jaxpr" in name)
        return name, id(value) if has_code else str(value)

    for equation in jaxpr.eqns:
        operands = tuple(map(key_of, equation.invars))
        key = (equation.primitive, operands, *(setting(name, equation.params[name]) for name in equation.params))
        before = seen.setdefault(key, equation)
        # An effect happens each time, so its equation stays.
        if before is equation or equation.effects:
            kept.append(equation.replace(invars=[first(variable) for variable in equation.invars]))
        else:
            same.update(zip(equation.outvars, before.outvars, strict=True))
    return jaxpr.replace(eqns=kept, outvars=[first(variable) for variable in jaxpr.outvars])


def product_flops(equation: JaxprEqn) -> int:
    """Return the FLOPs of one of `PRODUCTS`; for a ragged product, as if every row belonged to a group."""
    if equation.primitive.name == "conv_general_dilated":
        return _convolution_flops(equation)
    left, right = map(shape_of, equation.invars[:2])
    params, groups = equation.params, ()
    if "ragged_dot_dimension_numbers" in params:
        ragged = params["ragged_dot_dimension_numbers"]
        numbers, groups = ragged.dot_dimension_numbers, ragged.rhs_group_dimensions
    else:
        numbers = params["dimension_numbers"]
    (_, contracted), (_, batched) = numbers
    free = set(range(len(right))) - {*contracted, *batched, *groups}
    return 2 * math.prod(left) * math.prod(right[axis] for axis in free)


def _convolution_flops(equation: JaxprEqn) -> int:
    """Return the FLOPs of a convolution. Kernel taps on the padding do not count."""
    left, right = map(shape_of, equation.invars[:2])
    result, params = shape_of(equation.outvars[0]), equation.params
    of_left, of_right, of_result = params["dimension_numbers"]
    useful = 1
    for place, (stride, pad, spread, hole) in enumerate(
        zip(params["window_strides"], params["padding"], params["lhs_dilation"], params["rhs_dilation"], strict=True), 2
    ):
        window = WindowDimension(right[of_right[place]], stride, pad[0], spread, hole)
        useful *= useful_positions(left[of_left[place]], result[of_result[place]], window)
    return 2 * right[of_right[1]] * result[of_result[1]] * result[of_result[0]] * useful


def _type_of(equation: JaxprEqn) -> str:
    """Return the operand type of the matrix unit: the fastest type that a compiler could choose."""
    avals: list[Any] = [variable.aval for variable in equation.invars[:2]]
    dtypes = [jnp.dtype(aval.dtype) for aval in avals]
    bits = max(dtype_bits(dtype) for dtype in dtypes)
    # A lower bound takes the fastest unit: integers as bytes, unless they are stored in 4 bits.
    if all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes):
        return "s4" if bits == 4 else "s8"
    if bits <= 8 and all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
        return "f8"
    precision = equation.params["precision"]
    wide = isinstance(precision, tuple) and any(dtype == jnp.float32 for dtype in dtypes)
    return "bf16" + max((_PASSES[precision_] for precision_ in precision), default="") if wide else "bf16"
