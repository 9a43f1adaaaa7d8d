"""The rules for the primitives of JAX: which axes of the results run over rows, and what must be masked."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from anytpu.strategy.padded import control_flow, indexing, products, reductions, shapes
from anytpu.strategy.padded.axes import Fill, RowAxis, Value
from anytpu.strategy.padded.operation import Operation, Outcome

Rule = Callable[[Operation], Outcome]

_ELEMENTWISE = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "add",
        "add_any",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bessel_i0e",
        "bessel_i1e",
        "cbrt",
        "ceil",
        "clamp",
        "clz",
        "complex",
        "conj",
        "convert_element_type",
        "copy",
        "copy_p",
        "cos",
        "cosh",
        "digamma",
        "div",
        "eq",
        "eq_to",
        "erf",
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "igamma",
        "igamma_grad_a",
        "igammac",
        "imag",
        "integer_pow",
        "is_finite",
        "le",
        "le_to",
        "lgamma",
        "log",
        "log1p",
        "log2",
        "logistic",
        "lt",
        "lt_to",
        "max",
        "min",
        "mul",
        "mulhi",
        "name",
        "ne",
        "neg",
        "nextafter",
        "not",
        "one_minus_square",
        "or",
        "polygamma",
        "polynomial",
        "population_count",
        "pow",
        "random_gamma",
        "random_gamma_grad",
        "real",
        "reduce_precision",
        "regularized_incomplete_beta",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "threefry2x32",
        "xor",
        "zeta",
    ]
)
_EACH_ALONE = frozenset(
    [
        "debug_callback",
        "debug_print",
        "device_put",
        "layout_constraint",
        "optimization_barrier",
        "pvary",
        "pcast",
        "reshard",
        "sharding_constraint",
    ]
)
_KEEP_ZERO = frozenset(
    [
        "add",
        "add_any",
        "max",
        "min",
        "or",
        "sub",
        "abs",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cbrt",
        "ceil",
        "conj",
        "convert_element_type",
        "copy",
        "copy_p",
        "erf",
        "expm1",
        "floor",
        "imag",
        "log1p",
        "mul",
        "and",
        "name",
        "neg",
        "real",
        "reduce_precision",
        "round",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "tan",
        "tanh",
    ]
)
_ZERO_FROM_ANY = frozenset(["and", "mul"])

SIZES = frozenset(
    [
        "dimension_numbers",
        "end_index",
        "length",
        "limit_indices",
        "new_sizes",
        "out_sharding",
        "padding_config",
        "reps",
        "shape",
        "sharding",
        "sizes",
        "slice_sizes",
        "start_index",
        "start_indices",
        "window_dimensions",
    ]
)
"""The parameters that the rules compare themselves, or that follow from the sizes of the results."""


def is_elementwise(name: str) -> bool:
    """Say whether a primitive computes each entry of its results from the same entry of its operands."""
    return name in _ELEMENTWISE


def elementwise(operation: Operation) -> Outcome:
    """Keep the axes of an operation that works entry by entry."""
    rank = len(operation.out_sizes())
    full = [value for value in operation.values if len(value.axes) == rank]
    axes: list[RowAxis | None] = []
    for position in range(rank):
        axis = operation.joined([value.axes[position] for value in full])
        axes.append(None if axis is None else axis.filled(_fill(operation, position, axis)))
    is_zero = operation.name in ("convert_element_type", "mul", "and", "copy") and operation.values[0].is_zero
    return [Value(tuple(axes), is_zero)] * len(operation.equation.outvars), None


def _fill(operation: Operation, position: int, axis: RowAxis) -> Fill:
    """Return the entries of pads that an operation makes along an axis."""
    fills = [_entries(value, position) for value in operation.values]
    if operation.name in _ZERO_FROM_ANY and Fill.ZERO in fills:
        # Zero times infinity is NaN, which a sum must not take for zero.
        is_exact = not jnp.issubdtype(operation.equation.outvars[0].aval.dtype, jnp.inexact)
        return Fill.ZERO if is_exact or set(fills) == {Fill.ZERO} else Fill.CHOSEN
    if operation.name == "div" and fills[0] is Fill.ZERO:
        return Fill.CHOSEN
    if operation.name == "select_n":
        chosen = fills[1] if fills[0] is Fill.ZERO else min(fills[1:])
        if chosen is Fill.ANY or fills[0] is Fill.ANY:
            return Fill.ANY
        return chosen
    if all(fill is Fill.ZERO for fill in fills) and operation.name in (
        *_KEEP_ZERO,
        "add",
        "add_any",
        "sub",
        "max",
        "min",
        "or",
    ):
        return Fill.ZERO
    return Fill.ANY if Fill.ANY in fills else Fill.CHOSEN


def _entries(value: Value, position: int) -> Fill:
    if value.is_zero:
        return Fill.ZERO
    axis = value.axes[position] if len(value.axes) > position else None
    if axis is None or axis.is_free:
        return Fill.CHOSEN
    return axis.fill


def each_alone(operation: Operation) -> Outcome:
    """Keep the axes of an operation that returns each operand."""
    return [*operation.values][: len(operation.equation.outvars)], None


def row_mask(operation: Operation) -> Outcome:
    """Compute the mask of an axis, which is False for pads, and True everywhere where it does not run over rows."""
    axis, sizes = operation.values[0].axes[operation.params["axis"]], operation.out_sizes()
    if axis is not None:
        return [Value((RowAxis(axis.segments, Fill.ZERO),))], lambda real, given: [axis.mask(real.rows, real.room)]
    if operation.rooms.second is None and sizes[0][0] == operation.rooms.first:
        operation.refuse(
            f"is asked of {sizes[0][0]} values, which may be rows or not: the step {operation.rooms.failure}",
            "compute the values from the batch, row by row",
        )
    return [Value((None,))], lambda real, given: [jnp.ones(sizes[0][0], bool)]


CALLS = frozenset(["debug_callback", "debug_print", *control_flow.RULES])
"""The primitives with functions among their parameters, which nothing can compare."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_EACH_ALONE, each_alone),
    **shapes.RULES,
    **reductions.RULES,
    **products.RULES,
    **indexing.RULES,
    **control_flow.RULES,
    "row_mask": row_mask,
}
"""By the name of the primitive; those that work entry by entry have the rule `elementwise`."""
