"""Rules for operations that reduce or order entries: sums, maxima, sorting, windows, matrix products, convolutions.

Idea: the pads are replaced by an identity of the operation, such as 0 for a sum and -inf for a maximum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from anytpu.strategy.padded.axes import AbstractValue, PadState, RealRows, RowAxis, zero
from anytpu.strategy.padded.operation import Evaluation, Outcome, Rule, StepOperation


def _minimum(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return -np.inf
    return False if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).min


def _maximum(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.inf
    return True if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).max


def _unit(dtype: Any) -> Any:
    return True if jnp.issubdtype(dtype, jnp.bool_) else 1


def _all_bits(dtype: Any) -> Any:
    return True if jnp.issubdtype(dtype, jnp.bool_) else jnp.array(-1).astype(dtype)


def _last_in_order(dtype: Any) -> Any:
    return np.nan if jnp.issubdtype(dtype, jnp.inexact) else _maximum(dtype)


_IDENTITIES: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": zero,
    "reduce_max": _minimum,
    "reduce_min": _maximum,
    "reduce_prod": _unit,
    "reduce_and": _all_bits,
    "reduce_or": zero,
    "reduce_xor": zero,
    "argmax": _minimum,
    "argmin": _maximum,
    "cumsum": zero,
    "cumprod": _unit,
    "cummax": _minimum,
    "cummin": _maximum,
    "cumlogsumexp": _minimum,
}
_KEEP_ZERO = frozenset(["reduce_sum", "reduce_or", "reduce_and", "reduce_max", "reduce_min"])


def check_maskable(operation: StepOperation, axes: Sequence[RowAxis | None], verb: str = "reduces") -> None:
    """Refuse an operation on unmasked rows in a step that can be traced for one number of rows only.

    A mean is a sum divided by a constant. Without a second trace, the constant may count rows or not.
    """
    if operation.context.other_rows is None and any(axis and axis.pads is PadState.UNMASKED for axis in axes):
        operation.refuse(
            f"{verb} the rows. The step {operation.context.failure}, so a number of rows in it cannot be distinguished "
            "from other numbers"
        )


def _without_zero_guarantee(axes: Sequence[RowAxis | None]) -> tuple[RowAxis | None, ...]:
    """Return the axes of a result whose pads may differ from zero, even if those of the operand are zero."""
    return tuple(axis and axis.with_pads(min(axis.pads, PadState.SET_BY_STEP)) for axis in axes)


def _unmasked(axes: Sequence[RowAxis | None]) -> tuple[RowAxis | None, ...]:
    return tuple(axis and RowAxis(axis.segments) for axis in axes)


def _masked(operation: StepOperation, axes: Sequence[tuple[int, RowAxis]], fill: Callable) -> Evaluation:
    """Return the evaluation that masks the first operand along some axes."""

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        masked, *rest = operands
        for dimension, axis in axes:
            masked = real.masked(masked, dimension, axis, fill)
        return operation.bind([masked, *rest])

    return evaluate


def reduction(operation: StepOperation) -> Outcome:
    """Reduce axes, with an identity of the reduction in place of the pads."""
    operand, reduced, fill = operation.values[0], operation.params["axes"], _IDENTITIES[operation.name]
    reduced_axes = [(dimension, axis) for dimension, axis in operand.row_axes() if dimension in reduced]
    kept = [axis for dimension, axis in enumerate(operand.axes) if dimension not in reduced]
    value = AbstractValue(tuple(kept) if operation.name in _KEEP_ZERO else _without_zero_guarantee(kept))
    check_maskable(operation, [axis for _, axis in reduced_axes])
    if operation.name in ("argmax", "argmin") and any(axis.per_row is None for _, axis in reduced_axes):
        operation.refuse("returns an index into an axis that repeats the rows")
    # A sum needs no mask where the pads are zero already.
    unmasked = [pair for pair in reduced_axes if not (pair[1].pads is PadState.ZERO and fill is zero)]
    if operation.context.other_rows is None or not unmasked:
        return [value], None
    return [value], _masked(operation, unmasked, fill)


def cumulative(operation: StepOperation) -> Outcome:
    """Reduce cumulatively along an axis, with an identity of the reduction in place of the pads."""
    operand, along = operation.values[0], operation.params["axis"]
    axis = operand.axes[along]
    if axis is None:
        return [AbstractValue(_without_zero_guarantee(operand.axes))], None
    check_maskable(operation, [axis])
    axes = [*operand.axes]
    axes[along] = RowAxis(axis.segments)
    return [AbstractValue(tuple(axes))], _masked(operation, [(along, axis)], _IDENTITIES[operation.name])


def sort(operation: StepOperation) -> Outcome:
    """Sort the pads behind all rows."""
    along, rank = operation.params["dimension"], len(operation.out_sizes())
    axes = [operation.aligned([value.axes[index] for value in operation.values]) for index in range(rank)]
    axis = axes[along]
    if axis is None:
        return [AbstractValue(_without_zero_guarantee(axes))] * len(operation.values), None
    check_maskable(operation, [axis])
    if axis.per_row is None:
        operation.refuse("sorts rows that are there more than once")
    axes[along] = unmasked = RowAxis(axis.segments)

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        # The pads get the last value of the order as their key. The sort is stable, and pads are behind rows already.
        keys = operation.params["num_keys"]
        filled = [real.masked(key, along, unmasked, _last_in_order) for key in operands[:keys]]
        return lax.sort([*filled, *operands[keys:]], dimension=along, is_stable=True, num_keys=keys)

    return [AbstractValue(tuple(axes))] * len(operation.values), evaluate


def window(operation: StepOperation) -> Outcome:
    """Reduce windows; each window must be in one row."""
    rank = len(operation.out_sizes())
    axes = [operation.aligned([v.axes[index] for v in operation.values if v.axes]) for index in range(rank)]
    for dimension, axis in enumerate(axes):
        if axis is not None and not _has_unit_windows(operation.params, dimension):
            operation.refuse("reduces windows of rows")
    return [AbstractValue(_without_zero_guarantee(axes))] * len(operation.equation.outvars), None


def _has_unit_windows(params: dict[str, Any], dimension: int) -> bool:
    """Return whether each window along a dimension is one entry."""
    sizes = [params.get(name) for name in ("window_dimensions", "window_strides", "base_dilation", "window_dilation")]
    padding = params.get("padding")
    has_padding = padding is not None and tuple(padding[dimension]) != (0, 0)
    return not has_padding and all(size is None or size[dimension] == 1 for size in sizes)


def top_k(operation: StepOperation) -> Outcome:
    """Take the largest entries along an axis that is not over unmasked rows."""
    operand = operation.values[0]
    along = operation.params.get("axis", -1) % len(operand.axes)
    axis = operand.axes[along]
    if axis is not None and axis.pads is PadState.UNMASKED:
        operation.refuse("takes some of the rows only")
    axes = [*_without_zero_guarantee(operand.axes)]
    axes[along] = None
    return [AbstractValue(tuple(axes))] * 2, None


_Contraction = tuple[int, int, RowAxis, RowAxis]
"""The dimensions of both operands that are contracted, and their row axes."""


def _contracted(operation: StepOperation, contractions: Sequence[_Contraction]) -> Evaluation | None:
    """Return the evaluation that contracts rows, with zero in place of the pads of both operands."""
    for _, _, left_axis, right_axis in contractions:
        if PadState.ZERO not in (left_axis.pads, right_axis.pads):
            check_maskable(operation, [left_axis, right_axis])
    if not contractions or operation.context.other_rows is None:
        return None

    def evaluate(real: RealRows, operands: list[Any]) -> Sequence[Any]:
        left, right = operands
        # Mask both: zero times a pad that is not finite would be NaN.
        for left_dimension, right_dimension, left_axis, right_axis in contractions:
            left = real.masked(left, left_dimension, left_axis, zero)
            right = real.masked(right, right_dimension, right_axis, zero)
        return operation.bind([left, right])

    return evaluate


def _product_axes(axes: Sequence[RowAxis | None]) -> tuple[RowAxis | None, ...]:
    """Return the axes of a product.

    Its pads may differ from zero, because zero times infinity is NaN. It is not uniform: the entries of a product of
    random rows depend on one another.
    """
    return _without_zero_guarantee([axis and dataclasses.replace(axis, is_uniform=False) for axis in axes])


def dot_general(operation: StepOperation) -> Outcome:
    """Contract axes of two operands."""
    (contracted, batched) = operation.params["dimension_numbers"]
    left, right = operation.values
    contractions = []
    for i, j in zip(*contracted, strict=True):
        axis = operation.aligned([left.axes[i], right.axes[j]])
        if axis is not None:
            right_axis = right.axes[j] or axis.with_pads(PadState.UNMASKED)
            contractions.append((i, j, left.axes[i] or axis, right_axis))
    batch = [operation.aligned([left.axes[i], right.axes[j]]) for i, j in zip(*batched, strict=True)]
    free = [
        axis
        for value, summed, joint in ((left, contracted[0], batched[0]), (right, contracted[1], batched[1]))
        for dimension, axis in enumerate(value.axes)
        if dimension not in (*summed, *joint)
    ]
    return [AbstractValue(_product_axes([*batch, *free]))], _contracted(operation, contractions)


def convolution(operation: StepOperation) -> Outcome:
    """Convolve each row by itself; the gradient of a kernel contracts the rows."""
    numbers = operation.params["dimension_numbers"]
    (image_rows, image_features, *image_space) = numbers.lhs_spec
    (filters, kernel_features, *kernel_space) = numbers.rhs_spec
    image, kernel = operation.values
    if any(image.axes[p] for p in image_space) or any(kernel.axes[p] for p in (filters, *kernel_space)):
        operation.refuse("convolves along the rows")
    # In the gradient of a kernel, the feature axes of both operands are rows.
    contractions = []
    axis = operation.aligned([image.axes[image_features], kernel.axes[kernel_features]])
    if axis is not None:
        if operation.params["feature_group_count"] != 1:
            operation.refuse("takes the rows for groups of features")
        image_axis, kernel_axis = image.axes[image_features] or axis, RowAxis(axis.segments)
        contractions.append((image_features, kernel_features, image_axis, kernel_axis))
    if image.axes[image_rows] is not None and operation.params["batch_group_count"] != 1:
        operation.refuse("takes the rows for groups")
    axes: list[RowAxis | None] = [None] * len(image.axes)
    axes[numbers.out_spec[0]] = image.axes[image_rows]
    return [AbstractValue(_product_axes(axes))], _contracted(operation, contractions)


def linear_algebra(operation: StepOperation) -> Outcome:
    """Compute on the matrices of the last two axes, which must not be over rows."""
    if any(any(value.axes[-2:]) for value in operation.values):
        operation.refuse("takes the rows for a matrix")
    batch_rank = max(len(value.axes) for value in operation.values) - 2
    results = []
    for index in range(len(operation.equation.outvars)):
        rank = len(operation.out_sizes(index))
        count = min(batch_rank, rank)
        batch = [operation.aligned([value.axes[p] for value in operation.values]) for p in range(count)]
        results.append(AbstractValue((*_unmasked(batch), *[None] * (rank - count))))
    return results, None


def per_row_call(operation: StepOperation) -> Outcome:
    """Compute each row by itself, as `engine/replica_rows.py` does."""
    function = operation.params["function"]
    operands = list(zip(operation.values, function.axes, strict=True))
    rows = [None if row_axis is None else value.axes[row_axis] for value, row_axis in operands]
    others = [
        axis for value, row_axis in operands for dimension, axis in enumerate(value.axes) if dimension != row_axis
    ]
    axis = operation.aligned(rows)
    if any(others) or (axis is not None and "replicas" in dict(operation.params["settings"])):
        operation.refuse("mixes the rows with the pads")
    result = axis and axis.with_pads(PadState.UNMASKED)
    outputs = [
        AbstractValue(tuple(result if dimension == row_axis else None for dimension in range(len(variable.aval.shape))))
        for variable, row_axis in zip(operation.equation.outvars, function.results, strict=True)
    ]
    return outputs, None


RULES: dict[str, Rule] = {
    **{name: cumulative if name.startswith("cum") else reduction for name in _IDENTITIES},
    "sort": sort,
    "top_k": top_k,
    "dot_general": dot_general,
    "conv_general_dilated": convolution,
    "over_rows": per_row_call,
    **dict.fromkeys(
        (
            "reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum", "select_and_gather_add",
            "select_and_scatter", "select_and_scatter_add",
        ),
        window,
    ),
    **dict.fromkeys(
        (
            "cholesky", "eigh", "geqrf", "householder_product", "lu", "qr", "svd", "triangular_solve",
            "tridiagonal_solve",
        ),
        linear_algebra,
    ),
}  # fmt: skip
