"""Rules for matrix products and convolutions: a contraction over rows is masked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anytpu.strategy.padded.axes import Fill, RowAxis, Value
from anytpu.strategy.padded.operation import Action, Operation, Outcome, RealRows, zero
from anytpu.strategy.padded.reductions import check_masks


def _masked(operation: Operation, pairs: Sequence[tuple[int, int, RowAxis, RowAxis]]) -> Action | None:
    """Return the action that gives the pads of both operands zero; see `product`."""
    for _, _, left, right in pairs:
        if Fill.ZERO not in (left.fill, right.fill):
            check_masks(operation, [left, right])
    if not pairs or operation.rooms.second is None:
        return None

    def action(real: RealRows, given: list[Any]) -> Sequence[Any]:
        left, right = given
        # Both: a zero times a pad that is not finite would be NaN.
        for first, second, one, two in pairs:
            left, right = real.replaced(left, first, one, zero), real.replaced(right, second, two, zero)
        return operation.bound([left, right])

    return action


def _product_axis(axis: RowAxis | None) -> RowAxis | None:
    """Return the row axis of a product: zeros times what is not finite are NaN."""
    return None if axis is None else RowAxis(axis.segments, min(axis.fill, Fill.CHOSEN))


def product(operation: Operation) -> Outcome:
    """Contract axes; where they are over rows, the pads of both operands are zero."""
    (contracted, batched) = operation.params["dimension_numbers"]
    left, right = operation.values
    pairs = []
    for first, second in zip(*contracted, strict=True):
        axis = operation.joined([left.axes[first], right.axes[second]])
        if axis is not None:
            pairs.append((first, second, left.axes[first] or axis, right.axes[second] or axis.filled(Fill.ANY)))
    shared = [operation.joined([left.axes[f], right.axes[s]]) for f, s in zip(*batched, strict=True)]
    free = [
        axis
        for value, summed, joint in ((left, contracted[0], batched[0]), (right, contracted[1], batched[1]))
        for position, axis in enumerate(value.axes)
        if position not in (*summed, *joint)
    ]
    axes = [_product_axis(axis) for axis in (*shared, *free)]
    return [Value(tuple(axes))], _masked(operation, pairs)


def convolution(operation: Operation) -> Outcome:
    """Convolve each row by itself; or, in a kernel's gradient, contract the rows."""
    numbers = operation.params["dimension_numbers"]
    (image_rows, image_features, *image_space) = numbers.lhs_spec
    (filters, kernel_features, *kernel_space) = numbers.rhs_spec
    image, kernel = operation.values
    if any(image.axes[p] for p in image_space) or any(kernel.axes[p] for p in (filters, *kernel_space)):
        operation.refuse("convolves along the rows")
    pairs = []
    contracted = operation.joined([image.axes[image_features], kernel.axes[kernel_features]])
    if contracted is not None:
        if operation.params["feature_group_count"] != 1:
            operation.refuse("takes the rows for groups of features")
        pairs.append(
            (image_features, kernel_features, image.axes[image_features] or contracted, RowAxis(contracted.segments))
        )
    axis = image.axes[image_rows]
    if axis is not None and operation.params["batch_group_count"] != 1:
        operation.refuse("takes the rows for groups")
    axes: list[RowAxis | None] = [None] * len(image.axes)
    axes[numbers.out_spec[0]] = _product_axis(axis)
    return [Value(tuple(axes))], _masked(operation, pairs)


def each_matrix(operation: Operation) -> Outcome:
    """Compute with the matrices of the last two axes; a row axis must be one before them."""
    for value in operation.values:
        if any(value.axes[-2:]):
            operation.refuse("takes the rows for a matrix")
    longest = max((value.axes for value in operation.values), key=len)
    results = []
    for index in range(len(operation.equation.outvars)):
        rank = len(operation.out_sizes(index))
        count = min(len(longest) - 2, rank)
        joint = [operation.joined([value.axes[p] for value in operation.values]) for p in range(count)]
        axes = [None if axis is None else RowAxis(axis.segments) for axis in joint]
        results.append(Value((*axes, *[None] * (rank - count))))
    return results, None


def over_rows(operation: Operation) -> Outcome:
    """Compute each row by itself: `engine/replica_rows.py`."""
    function = operation.params["function"]
    along = zip(operation.values, function.axes, strict=True)
    rows = [None if axis is None else value.axes[axis] for value, axis in along]
    others = [
        one
        for value, axis in zip(operation.values, function.axes, strict=True)
        for position, one in enumerate(value.axes)
        if position != axis
    ]
    known = operation.joined([one for one in rows if one is not None]) if any(rows) else None
    if any(others) or (known is not None and "replicas" in dict(operation.params["settings"])):
        operation.refuse("mixes the rows with the pads")
    made = None if known is None else known.filled(Fill.ANY)
    results = zip(operation.equation.outvars, function.results, strict=True)
    outputs = [Value(tuple(made if at == axis else None for at in range(len(v.aval.shape)))) for v, axis in results]
    return outputs, None


RULES: dict[str, Callable[[Operation], Outcome]] = {
    "over_rows": over_rows,
    "dot_general": product,
    "conv_general_dilated": convolution,
    **dict.fromkeys(
        (
            "cholesky",
            "eigh",
            "householder_product",
            "lu",
            "qr",
            "svd",
            "triangular_solve",
            "geqrf",
            "tridiagonal_solve",
        ),
        each_matrix,
    ),
}
