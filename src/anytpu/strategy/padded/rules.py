"""The rule of each primitive of JAX: the row axes of its results, and the masks that it needs.

Rules of families of primitives are in files of their own. Here are those of elementwise operations, gather and scatter.

Rule: row i of the real rows is entry i of a row axis. So an index computed from real rows selects the same row as it
would among the real rows alone. Pads are not selected, and change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from anytpu.strategy.padded import control_flow, reductions, shapes
from anytpu.strategy.padded.axes import AbstractValue, PadState, RealRows, RowAxis
from anytpu.strategy.padded.operation import Evaluation, Outcome, Rule, StepOperation
from anytpu.strategy.padded.reductions import check_maskable

# Each table has several names on a line, in the order of the alphabet.
_ELEMENTWISE = frozenset(
    [
        "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
        "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type", "copy", "copy_p",
        "cos", "cosh", "digamma", "div", "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge",
        "gt", "igamma", "igamma_grad_a", "igammac", "imag", "integer_pow", "is_finite", "le", "le_to", "lgamma", "log",
        "log1p", "log2", "logistic", "lt", "lt_to", "max", "min", "mul", "mulhi", "name", "ne", "neg", "nextafter",
        "not", "one_minus_square", "or", "polygamma", "polynomial", "population_count", "pow", "random_gamma",
        "random_gamma_grad", "real", "reduce_precision", "regularized_incomplete_beta", "rem", "round", "rsqrt",
        "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt",
        "square", "stop_gradient", "sub", "tan", "tanh", "threefry2x32", "xor", "zeta",
    ]
)  # fmt: skip
"""The primitives that compute each entry of their results from the same entry of their operands."""

_ZERO_FROM_ZERO = frozenset(
    [
        "abs", "add", "add_any", "and", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "conj",
        "convert_element_type", "copy", "copy_p", "erf", "expm1", "floor", "imag", "log1p", "max", "min", "mul", "name",
        "neg", "or", "real", "reduce_precision", "round", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient",
        "sub", "tan", "tanh",
    ]
)  # fmt: skip
"""The primitives that return zero if all operands are zero."""

_IDENTITY = frozenset(
    [
        "debug_callback", "debug_print", "device_put", "layout_constraint", "optimization_barrier", "pvary", "pcast",
        "reshard", "sharding_constraint",
    ]
)  # fmt: skip
"""The primitives that return each operand, or nothing."""


def elementwise(operation: StepOperation) -> Outcome:
    """Keep the axes of an elementwise operation."""
    rank = len(operation.out_sizes())
    full = [value for value in operation.values if len(value.axes) == rank]
    axes: list[RowAxis | None] = []
    for dimension in range(rank):
        axis = operation.aligned([value.axes[dimension] for value in full])
        axes.append(axis and axis.with_pads(_pads_of_result(operation, dimension)))
    is_zero = operation.name in ("convert_element_type", "mul", "and", "copy") and operation.values[0].is_zero
    return [AbstractValue(tuple(axes), is_zero)] * len(operation.equation.outvars), None


def _pads_of_result(operation: StepOperation, dimension: int) -> PadState:
    """Return the state of the pads along an axis of an elementwise result."""
    pads = [_pads_of_operand(value, dimension) for value in operation.values]
    if operation.name in ("and", "mul") and PadState.ZERO in pads:
        # Zero times infinity is NaN, which is not zero for a sum.
        is_exact = not jnp.issubdtype(operation.equation.outvars[0].aval.dtype, jnp.inexact)
        return PadState.ZERO if is_exact or set(pads) == {PadState.ZERO} else PadState.SET_BY_STEP
    if operation.name == "div" and pads[0] is PadState.ZERO:
        return PadState.SET_BY_STEP
    if operation.name == "select_n":
        selected = pads[1] if pads[0] is PadState.ZERO else min(pads[1:])
        return PadState.UNMASKED if pads[0] is PadState.UNMASKED else selected
    if set(pads) == {PadState.ZERO} and operation.name in _ZERO_FROM_ZERO:
        return PadState.ZERO
    return min(PadState.SET_BY_STEP, *pads)


def _pads_of_operand(value: AbstractValue, dimension: int) -> PadState:
    if value.is_zero:
        return PadState.ZERO
    axis = value.axes[dimension] if len(value.axes) > dimension else None
    return PadState.SET_BY_STEP if axis is None or axis.is_uniform else axis.pads


def identity(operation: StepOperation) -> Outcome:
    """Keep the axes of each operand."""
    return [*operation.values][: len(operation.equation.outvars)], None


def row_mask(operation: StepOperation) -> Outcome:
    """Compute the mask of an axis: False for pads; True everywhere if the axis is not over rows."""
    axis, (sizes,) = operation.values[0].axes[operation.params["axis"]], operation.out_sizes()
    if axis is not None:
        result = AbstractValue((RowAxis(axis.segments, PadState.ZERO),))
        return [result], lambda real, operands: [axis.mask(real.rows, real.padded)]
    context = operation.context
    if context.other_rows is None and sizes[0] == context.rows:
        operation.refuse(
            f"has {sizes[0]} values as its argument, which may be rows or not: the step {context.failure}",
            "compute the values from the batch, row by row",
        )
    return [AbstractValue((None,))], lambda real, operands: [jnp.ones(sizes[0], bool)]


def gather(operation: StepOperation) -> Outcome:
    """Gather slices: a row axis is kept complete, or indexed with one index for each row."""
    operand, indices = operation.values
    numbers = operation.params["dimension_numbers"]
    sizes = operation.param_sizes("slice_sizes")
    # 1. Each axis of the operand: a batch axis, an axis of the index, or an axis of the slices.
    batch = list(indices.axes[:-1])
    offsets: list[RowAxis | None] = []
    for dimension, axis in enumerate(operand.axes):
        if dimension in numbers.operand_batching_dims:
            index = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(dimension)]
            batch[index] = operation.aligned([axis, batch[index]])
        elif dimension in numbers.collapsed_slice_dims:
            if axis is not None:
                _check_indexed(operation, axis, batch)
        elif axis is not None and sizes[dimension] != operation.in_sizes(0)[dimension]:
            operation.refuse("takes some of the rows only")
        else:
            offsets.append(axis)
    _check_index_vectors(operation, indices)
    # 2. The axes of the result, in the order that the gather has.
    remaining_batch, remaining_offsets = iter(batch), iter(offsets)
    axes = [
        next(remaining_offsets) if dimension in numbers.offset_dims else next(remaining_batch)
        for dimension in range(len(operation.out_sizes()))
    ]
    value = AbstractValue(tuple(axis and RowAxis(axis.segments) for axis in axes))
    # 3. Real rows only: indices into unmasked rows must not reach the pads.
    # Pads that the step has set are entries like others.
    indexed = {
        column: axis
        for column, dimension in enumerate(numbers.start_index_map)
        if (axis := operand.axes[dimension]) is not None
        and axis.pads is PadState.UNMASKED
        and dimension in numbers.collapsed_slice_dims
    }
    return [value], _gather_real_rows(operation, indexed) if indexed else None


def _gather_real_rows(operation: StepOperation, indexed: dict[int, RowAxis]) -> Evaluation:
    """Return the evaluation of a gather in which indices behind the real rows are out of bounds.

    Args:
        operation: the gather.
        indexed: the row axes that are indexed, by column of the indices.
    """
    is_filled = operation.params["mode"] is lax.GatherScatterMode.FILL_OR_DROP

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        rows, indices = operands
        columns = []
        for column in range(indices.shape[-1]):
            index = indices[..., column]
            if (axis := indexed.get(column)) is not None and axis.per_row is not None:
                limit = real.rows * axis.per_row
                out_of_bounds = _maximum_index(index.dtype) if is_filled else jnp.maximum(limit - 1, 0)
                index = jnp.where(index < limit, index, jnp.asarray(out_of_bounds, index.dtype))
            columns.append(index)
        # The changed indices may be unsorted or not unique.
        return operation.bind([rows, jnp.stack(columns, -1)], unique_indices=False, indices_are_sorted=False)

    return evaluate


def _check_indexed(operation: StepOperation, axis: RowAxis, batch: Sequence[RowAxis | None]) -> None:
    if axis.pads is PadState.UNMASKED and not any(batch):
        operation.refuse("takes some of the rows only")
    if axis.per_row is None:
        operation.refuse("indexes rows that are there more than once")
    check_maskable(operation, [axis], "indexes")


def _check_index_vectors(operation: StepOperation, indices: AbstractValue) -> None:
    if indices.axes and indices.axes[-1] is not None:
        operation.refuse("indexes with rows in the place of axes")


def scatter(operation: StepOperation) -> Outcome:
    """Write or add slices; drop the updates of pads."""
    operand, indices, updates = operation.values
    numbers = operation.params["dimension_numbers"]
    # 1. Slices: their row axes are the complete row axes of the operand.
    inner = [
        dimension
        for dimension in range(len(operand.axes))
        if dimension not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    ]
    axes = [*operand.axes]
    for dimension, source in zip(inner, numbers.update_window_dims, strict=True):
        if operand.axes[dimension] is None and updates.axes[source] is None:
            continue
        if operation.in_sizes(0)[dimension] != operation.in_sizes(2)[source]:
            operation.refuse("changes some of the rows only")
        axes[dimension] = operation.aligned([operand.axes[dimension], updates.axes[source]])
    # 2. One slice for each index: the row axes of the indices.
    _check_index_vectors(operation, indices)
    outer = [dimension for dimension in range(len(updates.axes)) if dimension not in numbers.update_window_dims]
    dropped: list[tuple[int, RowAxis]] = []
    for dimension, source in enumerate(outer):
        axis = operation.aligned([indices.axes[dimension], updates.axes[source]])
        if axis is None:
            continue
        if dimension in numbers.scatter_indices_batching_dims:
            target = numbers.operand_batching_dims[numbers.scatter_indices_batching_dims.index(dimension)]
            axes[target] = operation.aligned([axes[target], axis])
        else:
            dropped.append((dimension, axis.with_pads(PadState.UNMASKED)))
    # 3. Indices into the row axes of the operand.
    indexed = [operand.axes[dimension] for dimension in numbers.inserted_window_dims]
    if any(axis is not None and axis.per_row is None for axis in indexed):
        operation.refuse("changes rows that are there more than once")
    if operation.params["mode"] is lax.GatherScatterMode.CLIP and (dropped or any(indexed)):
        operation.refuse("moves indices that are out of bounds to the nearest row")
    result = AbstractValue(tuple(axis and RowAxis(axis.segments) for axis in axes))
    if not dropped:
        return [result], None

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        masked = operands[1]
        for dimension, axis in dropped:
            masked = real.masked(masked, dimension, axis, _maximum_index)
        # An index out of bounds changes nothing.
        changed = {"mode": lax.GatherScatterMode.FILL_OR_DROP, "unique_indices": False, "indices_are_sorted": False}
        return operation.bind([operands[0], masked, operands[2]], **changed)

    return [result], evaluate


def _maximum_index(dtype: Any) -> Any:
    return jnp.iinfo(dtype).max


RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(_IDENTITY, identity),
    **shapes.RULES,
    **reductions.RULES,
    "gather": gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub", "scatter_add"), scatter
    ),
    **control_flow.RULES,
    "row_mask": row_mask,
}
"""The rule of each primitive, by name."""
