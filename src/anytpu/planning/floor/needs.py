"""`needs_of`: the part of each value of a jaxpr that must be computed, given the needed part of its results.

Idea: if a slice follows a product, a compiler computes only the rows in the slice. The need of a value is a box: the
number of indices along each dimension that are certain to be needed, in all combinations. It is propagated backwards
from the results through element-wise and data-movement operations, sums and products.

Rule: a need is a lower bound. For two uses the larger box counts, not both, except for slices that do not overlap. If a
part of a result is needed and the operation is not handled here, no part of its operands counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from anytpu.program.jaxprs import called_jaxpr, scan_arguments

Box = tuple[int, ...] | None
"""Indices along each dimension; None: nothing is certain to be needed."""

_ONE_BY_ONE = frozenset(
    [
        "abs", "add", "add_any", "and", "atan2", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p",
        "cos", "cosh", "div", "eq", "erf", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow",
        "is_finite", "le", "log", "log1p", "log2", "logistic", "lt", "max", "min", "mul", "name", "ne", "neg", "not",
        "one_minus_square", "or", "pow", "reduce_precision", "rem", "reshard", "round", "rsqrt", "select_n",
        "sharding_constraint", "sign", "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor",
    ]
)  # fmt: skip
_SUMS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin")
_SLICES = ("slice", "dynamic_slice")
_IN_PLACE = ("scatter", "dynamic_update_slice")
_MAX_ROUNDS = 3  # of a scan, in which the need of its carry may change


def needs_of(jaxpr: Jaxpr, results: Sequence[Box]) -> dict[Any, Box]:
    """Return the need of each value of a jaxpr.

    Args:
        jaxpr: a jaxpr without dead code.
        results: need of each of its results.

    Example:
        >>> step = jax.make_jaxpr(lambda x: x.T[:2])(jnp.zeros((8, 16))).jaxpr
        >>> needs_of(step, [(2, 8)])[step.invars[0]]
        (8, 2)
    """
    needs: dict[Any, Box] = {}
    slices: dict[Any, list[JaxprEqn]] = {}

    def need(values: Sequence[Any], boxes: Sequence[Box]) -> None:
        for variable, box in zip(values, boxes, strict=True):
            if not isinstance(variable, Literal) and _size(box) > _size(needs.get(variable)):
                needs[variable] = box

    # Backwards, so that the needs of all users of a value are known before the equation that makes it.
    need(jaxpr.outvars, results)
    for equation in reversed(jaxpr.eqns):
        boxes = [needs.get(variable) for variable in equation.outvars]
        operands = (
            [whole(variable) for variable in equation.invars] if equation.effects else _operand_needs(equation, boxes)
        )
        # Slices of a value that do not overlap add up. `need` keeps the largest box, so all are joined each time.
        if equation.primitive.name == "slice" and boxes[0] is not None:
            taken = slices.setdefault(equation.invars[0], [])
            taken.append(equation)
            operands = [_joined([(variable, needs[variable.outvars[0]]) for variable in taken])]
        need(equation.invars, operands)
    return needs


def whole(variable: Any) -> Box:
    """Return the need of a value that is needed as a whole."""
    return tuple(getattr(variable.aval, "shape", ()))


def rounds_of(equation: JaxprEqn, results: Sequence[Box]) -> list[tuple[int, list[Box]]]:
    """Return the needs of the results of a scan's body, each with the number of iterations that have them, the last
    first.

    The carry of the last iteration is needed like the result, that of an earlier iteration as the next iteration needs
    it.
    """
    body, length = equation.params["jaxpr"].jaxpr, equation.params["length"]
    constants, carried = scan_arguments(equation)
    stacked: list[Box] = [box[1:] if box and box[0] == length else None for box in results[carried:]]
    carry, left, rounds = list(results[:carried]), length, list[tuple[int, list[Box]]]()
    # From the last iteration back. If the need of the carry is the same before and after an iteration, it is the same
    # in all earlier ones. Iterations beyond the maximum do not count, as a lower bound allows.
    for _ in range(_MAX_ROUNDS):
        needs = needs_of(body, [*carry, *stacked])
        before = [needs.get(variable) for variable in body.invars[constants : constants + carried]]
        is_last = before == carry
        rounds.append((left if is_last else min(1, left), [*carry, *stacked]))
        carry, left = before, left - rounds[-1][0]
        if left == 0:
            break
    return rounds


def _argument_needs(jaxpr: Jaxpr, results: Sequence[Box]) -> list[Box]:
    needs = needs_of(jaxpr, results)
    return [needs.get(variable) for variable in jaxpr.invars]


def _rank(variable: Any) -> int:
    return len(whole(variable) or ())


def _size(box: Box) -> int:
    return -1 if box is None else math.prod(box)


def _operand_needs(equation: JaxprEqn, results: list[Box]) -> list[Box]:
    name, everything = equation.primitive.name, [whole(variable) for variable in equation.invars]
    # 1. Nothing is needed.
    if all(not _size(box) > 0 for box in results):
        return [None] * len(everything)
    # 2. Control flow and calls. Only what every branch needs is certain.
    if name == "scan":
        return _of_scan(equation, results)
    if name == "cond":
        branches = [_argument_needs(variable.jaxpr, results) for variable in equation.params["branches"]]
        return [everything[0], *(_shared(boxes) for boxes in zip(*branches, strict=True))]
    inner = called_jaxpr(equation)
    if inner is not None and name not in ("shard_map", "pallas_call", "while"):
        return _argument_needs(inner, results)
    if name == "optimization_barrier":
        return results
    # 3. Operations that move parts of their operands.
    if name in _IN_PLACE:
        # The part that it overwrites need not be computed.
        return [None, *everything[1:]] if results[0] == everything[0] else [None] * len(everything)
    if name == "pad" and any(low < 0 or high < 0 for low, high, _ in equation.params["padding_config"]):
        return [None] * len(everything)
    if name in _SLICES:
        return [results[0], *everything[1:]]
    if name == "split":
        return [_added(results, equation.params["axis"])]
    if name == "gather":
        return [_of_gather(equation, results[0]), *everything[1:]]
    # 4. A result that is needed as a whole needs its operands as a whole; a loop or a kernel is not taken apart.
    if name in ("while", "pallas_call") or any(
        box == whole(variable) for box, variable in zip(results, equation.outvars, strict=True)
    ):
        return everything
    # 5. A part of a result.
    return _of_part(equation, results)


def _of_part(equation: JaxprEqn, results: list[Box]) -> list[Box]:
    """Return the needs of the operands of an operation whose result is needed in part."""
    name, params, box = equation.primitive.name, equation.params, results[0]
    shapes = [whole(variable) or () for variable in equation.invars]
    if box is None:
        return [None] * len(shapes)
    if name in _ONE_BY_ONE:
        return [box if len(shape) == len(box) else shape for shape in shapes]
    if name == "transpose":
        return [tuple(box[params["permutation"].index(axis)] for axis in range(len(box)))]
    if name == "broadcast_in_dim":
        placed = zip(shapes[0], params["broadcast_dimensions"], strict=True)
        return [tuple(min(size, box[axis]) for size, axis in placed), *[None] * (len(shapes) - 1)]
    if name in _SUMS:
        left = iter(box)
        return [tuple(size if axis in params["axes"] else next(left) for axis, size in enumerate(shapes[0]))]
    if name in ("reshape", "squeeze", "expand_dims"):
        return [_reshaped(box, whole(equation.outvars[0]) or (), shapes[0]), *[None] * (len(shapes) - 1)]
    if name == "dot_general":
        return _of_product(equation, box)
    if name == "conv_general_dilated":
        return _of_convolution(equation, box)
    return [None] * len(shapes)


def _of_product(equation: JaxprEqn, box: tuple[int, ...]) -> list[Box]:
    (contracted, batched), left = equation.params["dimension_numbers"], iter(box)
    shapes = [list(whole(variable) or ()) for variable in equation.invars]
    # A result has the batch axes first, then the free axes of the left operand, then those of the right one.
    for axes in zip(*batched, strict=True):
        extent = next(left)
        for shape, axis in zip(shapes, axes, strict=True):
            shape[axis] = extent
    for shape, summed, kept in zip(shapes, contracted, batched, strict=True):
        for axis in range(len(shape)):
            if axis not in (*summed, *kept):
                shape[axis] = next(left)
    return [tuple(shape) for shape in shapes]


def _of_convolution(equation: JaxprEqn, box: tuple[int, ...]) -> list[Box]:
    """Return the needs of the operands: None if only a part of the positions is needed, or one of several groups."""
    params, all_of_it = equation.params, whole(equation.outvars[0]) or ()
    of_left, of_right, of_result = params["dimension_numbers"]
    left, right = (list(whole(variable) or ()) for variable in equation.invars)
    is_part = any(box[axis] != all_of_it[axis] for axis in of_result[2:])
    is_group = params["feature_group_count"] > 1 and box[of_result[1]] != all_of_it[of_result[1]]
    if is_part or is_group or params["batch_group_count"] > 1:
        return [None, None]
    left[of_left[0]], right[of_right[0]] = box[of_result[0]], box[of_result[1]]
    return [tuple(left), tuple(right)]


def _joined(slices: list[tuple[JaxprEqn, Box]]) -> Box:
    """Return the combined need of several slices of a value."""
    joined: list[Box] = [box for _, box in slices]
    for axis in range(_rank(slices[0][0].invars[0])):
        apart: list[tuple[JaxprEqn, Box]] = []
        for slice_, box in reversed(slices):
            if all(not (_indices(slice_, axis) & _indices(other, axis)) for other, _ in apart):
                apart.append((slice_, box))
        joined.append(_added([box for _, box in apart], axis))
    return max(joined, key=_size)


def _indices(equation: JaxprEqn, axis: int) -> set[int]:
    """Return the indices along an axis that a slice takes."""
    params = equation.params
    strides = params["strides"] or (1,) * len(params["start_indices"])
    return set(range(params["start_indices"][axis], params["limit_indices"][axis], strides[axis]))


def _added(boxes: Sequence[Box], axis: int) -> Box:
    """Return the combined need of parts that do not overlap along an axis, for the boxes that agree on the other
    axes."""
    largest = max(boxes, key=_size)
    if largest is None:
        return None
    beside = _beside(largest, axis)
    extent = sum(box[axis] for box in boxes if box is not None and _beside(box, axis) == beside)
    return (*largest[:axis], extent, *largest[axis + 1 :])


def _beside(box: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*box[:axis], *box[axis + 1 :])


def _of_gather(equation: JaxprEqn, box: Box) -> Box:
    """Return the need of a single slice of a gather: its indices may all be equal."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    if box is None:
        return None
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    offsets = iter(numbers.offset_dims)
    return tuple(1 if axis in dropped else min(size, box[next(offsets)]) for axis, size in enumerate(sizes))


def _of_scan(equation: JaxprEqn, results: list[Box]) -> list[Box]:
    body, length = equation.params["jaxpr"].jaxpr, equation.params["length"]
    needs = [(count, needs_of(body, needed)) for count, needed in rounds_of(equation, results)]
    (count, last), (constants, _) = needs[-1], scan_arguments(equation)
    boxes: list[Box] = []
    for place, (inner, outer) in enumerate(zip(body.invars, equation.invars, strict=True)):
        box = last.get(inner)
        # 1. A constant: the largest need of any iteration.
        if place < constants:
            box = max((known.get(inner) for _, known in needs), key=_size)
        # 2. A stacked operand has one slice for each iteration.
        elif _rank(inner) < _rank(outer):
            is_same = all(known.get(inner) == box for _, known in needs)
            box = None if box is None else (length if is_same else count, *box)
        # 3. The initial carry: known only if the rounds reach the first iteration.
        elif sum(times for times, _ in needs) < length:
            box = None
        boxes.append(box)
    return boxes


def _shared(boxes: Sequence[Box]) -> Box:
    known = [box for box in boxes if box is not None]
    return tuple(map(min, zip(*known, strict=True))) if len(known) == len(boxes) else None


def _reshaped(box: tuple[int, ...], shape: tuple[int, ...], to: tuple[int, ...]) -> Box:
    """Return a box after a reshape: a kept dimension keeps its extent; others need one index, or all."""
    extents: list[int] = []
    left, right = 0, 0
    while right < len(to):
        if to[right] == 1:
            extents, right = [*extents, 1], right + 1
            continue
        while left < len(shape) and shape[left] == 1:
            left += 1
        if left == len(shape):
            return None
        # The smallest groups of dimensions with equal numbers of elements on both sides.
        ends = left + 1, right + 1
        while math.prod(shape[left : ends[0]]) != math.prod(to[right : ends[1]]):
            is_shorter = math.prod(shape[left : ends[0]]) < math.prod(to[right : ends[1]])
            ends = (ends[0] + 1, ends[1]) if is_shorter else (ends[0], ends[1] + 1)
            if ends[0] > len(shape) or ends[1] > len(to):
                return None
        group, sizes = box[left : ends[0]], to[right : ends[1]]
        is_whole = group == shape[left : ends[0]]
        extents += sizes if is_whole else group if len(group) == len(sizes) == 1 else [1] * len(sizes)
        left, right = ends
    return tuple(extents)
