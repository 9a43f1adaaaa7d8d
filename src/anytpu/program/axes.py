"""`factors_of`: which axis of a result is which axis of an operand, for one operation.

Idea: label axes as einsum does. Axes with one label index the same things: `x @ w` is `ij,jk->ik`. A reshape needs more
labels for an axis: from `(8, 3)` it makes an axis of 24 with the factors 8 and 3. So an axis is a sequence of factors,
outermost first, and the relation is the factors that two axes share.

Rule: an operation without a rule of its own relates the axes of equal size at equal positions of its operands and
results. An axis that nothing relates has a factor of its own. Factors say where axes go. They do not say that examples
stay apart: a window or a reversal keeps its axis.

Source: the sharding rules of Shardy, https://openxla.org/shardy/sdy_dialect (`OpShardingRuleAttr`).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from jax.extend.core import JaxprEqn

from anytpu.program.jaxprs import shape_of

Axis = tuple[int, ...]
"""The factors of an axis, outermost first."""

Shape = Sequence[int]

Span = tuple[int, int]
"""The strides around an axis, in elements: that of the axis before it, and its own."""


@final
class Factors:
    """The factors of an operation's axes. At first each axis has its own; then the operation's rule relates them.

    Args:
        name: name of the JAX primitive.
        params: parameters of the primitive that say where its axes go.
        old: shape of each operand.
        new: shape of each result.

    Attributes:
        operands: the axes of each operand.
        results: the axes of each result.
        sizes: size of each factor.
        summed: axes that the operation sums over.
    """

    def __init__(self, name: str, params: Mapping[str, Any], old: Sequence[Shape], new: Sequence[Shape]) -> None:
        self.old, self.new = old, new
        self.sizes: list[int] = []
        self.summed: set[Axis] = set()
        self.operands = [[self.add(size) for size in shape] for shape in old]
        self.results = [[self.add(size) for size in shape] for shape in new]
        _RULES.get(name, _equal_sizes)(self, params)

    def add(self, size: int) -> Axis:
        """Return an axis with a new factor."""
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    @property
    def depth(self) -> int:
        """Number of products in each element of the result of a product or a convolution."""
        return math.prod(self.sizes[factor] for axis in self.operands[1] if axis in self.summed for factor in axis)

    def moved(self, operand: int, axis: int, result: int = 0) -> int | None:
        """Return the axis of a result that begins with the outermost factor of an operand's axis; None without one.

        Equal blocks of the two axes then hold the same elements.
        """
        outermost = self.operands[operand][axis][0]
        return next((index for index, own in enumerate(self.results[result]) if own[0] == outermost), None)


def factors_of(equation: JaxprEqn) -> Factors:
    """Return the factors of an equation. Inner jaxprs are not followed.

    Example:
        >>> product = jax.make_jaxpr(lambda x, w: x @ w)(np.ones((2, 3)), np.ones((3, 4))).jaxpr.eqns[0]
        >>> factors = factors_of(product)
        >>> factors.moved(0, 0), factors.moved(0, 1), factors.moved(1, 1), factors.depth
        (0, None, 1, 3)
    """
    old, new = map(shape_of, equation.invars), map(shape_of, equation.outvars)
    return Factors(equation.primitive.name, equation.params, [*old], [*new])


def _equal_sizes(factors: Factors, params: Mapping[str, Any]) -> None:
    """Relate axes of equal size at equal positions. Axes of one element are broadcast, and index nothing."""
    places = {(len(shape), axis, size) for shape in factors.old for axis, size in enumerate(shape) if size != 1}
    known: dict[tuple[int, int, int], Axis] = {}
    for shape, array in zip(factors.new, factors.results, strict=True):
        for axis, size in enumerate(shape):
            if (place := (len(shape), axis, size)) in places:
                array[axis] = known.setdefault(place, array[axis])
    for shape, array in zip(factors.old, factors.operands, strict=True):
        for axis, size in enumerate(shape):
            array[axis] = known.get((len(shape), axis, size), array[axis])


def _pairwise(factors: Factors, params: Mapping[str, Any]) -> None:
    factors.results[:] = [[*operand] for operand in factors.operands]


def _transpose(factors: Factors, params: Mapping[str, Any]) -> None:
    factors.results[0] = [factors.operands[0][axis] for axis in params["permutation"]]


def _broadcast(factors: Factors, params: Mapping[str, Any]) -> None:
    for axis, target in enumerate(params["broadcast_dimensions"]):
        if factors.old[0][axis] == factors.new[0][target]:
            factors.results[0][target] = factors.operands[0][axis]


def _drop(factors: Factors, params: Mapping[str, Any]) -> None:
    """Drop axes; an operation on several operands has a result for each."""
    # StableHLO and `squeeze` have another name for them than the reductions of JAX.
    dropped = params["axes"] if "axes" in params else params["dimensions"]
    for index in range(len(factors.results)):
        factors.results[index] = _without(factors.operands[index], dropped)


def _sum(factors: Factors, params: Mapping[str, Any]) -> None:
    _drop(factors, params)
    factors.summed.update(factors.operands[0][axis] for axis in params["axes"])


def _reshape(factors: Factors, params: Mapping[str, Any]) -> None:
    """Cut both shapes at all strides of either; a piece that divides an axis of both evenly is a factor of both."""
    if params.get("dimensions") is not None or 0 in factors.old[0]:
        return
    spans = spans_of(factors.old[0]), spans_of(factors.new[0])
    cuts = sorted({stride for axes in spans for span in axes for stride in span}, reverse=True)
    pieces = [
        (piece, factors.add(piece[0] // piece[1]))
        for piece in itertools.pairwise(cuts)
        if piece[0] % piece[1] == 0 and all(any(holds(span, piece) for span in axes) for axes in spans)
    ]
    for array, axes in ((factors.operands[0], spans[0]), (factors.results[0], spans[1])):
        array[:] = [_factored(factors, span, pieces) for span in axes]


def spans_of(shape: Shape) -> list[Span]:
    """Return the span of each axis of an array.

    Example:
        >>> spans_of((2, 3, 4))
        [(24, 12), (12, 4), (4, 1)]
    """
    strides = [*itertools.accumulate(reversed(shape), operator.mul, initial=1)]
    return [*itertools.pairwise(reversed(strides))]


def holds(span: Span, piece: Span) -> bool:
    """Return whether an axis divides evenly into blocks of a span that has the same place in another shape.

    Example:
        >>> holds((24, 4), (12, 4)), holds((24, 4), (8, 4)), holds((24, 4), (12, 2))
        (True, True, False)
    """
    return span[0] % piece[0] == 0 and piece[1] % span[1] == 0


def _factored(factors: Factors, span: Span, pieces: Sequence[tuple[Span, Axis]]) -> Axis:
    """Return the shared factors of an axis, with own factors for the rest of it."""
    (position, end), axis = span, ()
    for (outer, inner), shared in pieces:
        if position >= outer and inner >= end:
            axis += (*(factors.add(position // outer) if position != outer else ()), *shared)
            position = inner
    return axis if axis and position == end else (*axis, *factors.add(position // end))


def _dot_general(factors: Factors, params: Mapping[str, Any]) -> None:
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    first, second = factors.operands
    for axis, other in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        second[other] = first[axis]
    factors.summed.update([first[axis] for axis in left])
    batch = [first[axis] for axis in left_batch]
    factors.results[0] = [*batch, *_without(first, (*left, *left_batch)), *_without(second, (*right, *right_batch))]


def _convolution(factors: Factors, params: Mapping[str, Any]) -> None:
    """Relate examples and features. Groups are summed too, but each over its own features only."""
    (images, features, *_), (kernels, inputs, *window), (examples, outputs, *_) = params["dimension_numbers"]
    (picture, kernel), result = factors.operands, factors.results[0]
    if params["batch_group_count"] == 1:
        result[examples] = picture[images]
        if params["feature_group_count"] == 1:
            kernel[inputs] = picture[features]
    result[outputs] = kernel[kernels]
    factors.summed.update([picture[features], kernel[inputs], *(kernel[axis] for axis in window)])


def _gather(factors: Factors, params: Mapping[str, Any]) -> None:
    numbers, (source, indices), result = params["dimension_numbers"], factors.operands[:2], factors.results[0]
    kept = _without(range(len(source)), (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims))
    for target, axis in zip(numbers.offset_dims, kept, strict=True):
        if params["slice_sizes"][axis] == factors.old[0][axis]:
            result[target] = source[axis]
    for target, axis in zip(_without(range(len(result)), numbers.offset_dims), indices[:-1], strict=True):
        result[target] = axis
    for axis, other in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        source[axis] = indices[other]


def _scatter(factors: Factors, params: Mapping[str, Any]) -> None:
    numbers, (array, indices, updates) = params["dimension_numbers"], factors.operands[:3]
    factors.results[0] = [*array]
    kept = _without(range(len(array)), (*numbers.inserted_window_dims, *numbers.operand_batching_dims))
    for axis, update in zip(kept, numbers.update_window_dims, strict=True):
        if factors.old[0][axis] == factors.old[2][update]:
            updates[update] = array[axis]
    positions = _without(range(len(updates)), numbers.update_window_dims)
    for update, axis in zip(positions, indices[:-1], strict=True):
        updates[update] = axis


def _without(items: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    return [item for index, item in enumerate(items) if index not in indices]


_RULES: dict[str, Callable[[Factors, Mapping[str, Any]], None]] = {
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "gather": _gather,
    "optimization_barrier": _pairwise,
    "reduce_sum": _sum,
    "reshape": _reshape,
    "transpose": _transpose,
    **dict.fromkeys(
        ("squeeze", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"), _drop
    ),
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter-min", "scatter-max"), _scatter),
}
