"""`place_operations`: the operations of a program that the chip computes, and those left to the host, with the reason.

Idea: an operation is placed by its kind and by its operands. Scalar functions are collected: a value that is computed
elementwise from a single other value, its root, is one function of the root. A cheap operation on results of the host
stays on the host.

Rule: an operation that an earlier node computes is never left to the host, which would compute it again. So the
division of an average has a kind of its own: the values before and after it are both the average.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import numpy as np

from anytpu.chip.network import elementwise
from anytpu.chip.network.constants import per_channel
from anytpu.chip.network.operations import Operation
from anytpu.chip.network.pooling import WindowSum, averaged, is_pool
from anytpu.chip.network.products import fits
from anytpu.chip.network.reasons import reason_for_host
from anytpu.chip.network.recorder import uniform
from anytpu.chip.network.repeats import picked, repeated_axes
from anytpu.chip.network.trace import OperationTrace


class LoweringKind(enum.Enum):
    """The target of an operation: a kind of node, a part of a node, or the host."""

    VIEW = "the same values in another shape"
    AVERAGE = "the division of an average, done by the pool before it"
    ELEMENT = "part of a scalar function"
    AFFINE = "a scale and an offset per channel"
    BINARY = "an elementwise operation of two tensors"
    BROADCAST = "a value per channel, repeated at every position"
    PRODUCT = "a product with weights"
    POOL = "a pool"
    CONCATENATE = "a concatenation"
    SLICE = "a slice"
    PAD = "zero padding"
    REVERSE = "a reversal of an axis"
    REPEAT = "each value several times along axes"
    PICK = "positions at constant indices"
    PERMUTE = "positions in another order of axes"
    HOST = "left to the host"


_MAX_COLUMNS = 256
"""Maximum columns of a picture that is transposed; each is a copy of its own."""

_CHEAP = {
    LoweringKind.ELEMENT,
    LoweringKind.AFFINE,
    LoweringKind.BINARY,
    LoweringKind.BROADCAST,
    LoweringKind.REPEAT,
}
_MOVES = {
    LoweringKind.VIEW,
    LoweringKind.SLICE,
    LoweringKind.CONCATENATE,
    LoweringKind.PAD,
    LoweringKind.REVERSE,
    LoweringKind.REPEAT,
    LoweringKind.PICK,
    LoweringKind.PERMUTE,
}
_AFFINE = {"add", "subtract", "multiply", "divide"}
_EXTREME = {"maximum", "minimum"}


@dataclasses.dataclass(frozen=True)
class OperationPlacement:
    """The placement of each value of a trace on the chip or the host.

    Attributes:
        kinds: kind of the operation that makes a value, by the value.
        roots: root of each value that is a function of one number.
        whys: reason for each value that the host makes.
        averages: sums over windows, each with the average that it belongs to.
        sources: for each value that the host makes, the values that it took from the chip.
    """

    kinds: dict[str, LoweringKind]
    roots: dict[str, str]
    whys: dict[str, str]
    averages: dict[str, WindowSum]
    sources: dict[str, frozenset[str]]

    def is_hosted(self, name: str) -> bool:
        """Return whether the host makes a value."""
        return self.kinds.get(name) is LoweringKind.HOST


def place_operations(trace: OperationTrace) -> OperationPlacement:
    """Place each value of a trace on the chip or the host."""
    placement = OperationPlacement({}, {}, {}, {}, {})
    # 1. Forwards: the kind of each operation, by itself and its operands.
    for operation in trace.operations:
        if operation.result not in placement.kinds:
            kind = _kind(operation, trace, placement)
            placement.kinds[operation.result] = kind
        _stay_on_host(operation, trace, placement)
    # 2. Backwards: operations that only the host uses move to the host.
    for operation in reversed(trace.operations):
        _move_to_host(operation, trace, placement)
    # 3. Both again, because step 2 made more values of the host.
    for operation in trace.operations:
        _stay_on_host(operation, trace, placement)
    for operation in reversed(trace.operations):
        _move_to_host(operation, trace, placement)
    return placement


def _kind(operation: Operation, trace: OperationTrace, placement: OperationPlacement) -> LoweringKind:
    if operation.name in elementwise.NAMES:
        kind = _of_elements(operation, trace, placement)
    elif not trace.is_float(operation.result) or not all(trace.is_float(value) for value in operation.values):
        kind = LoweringKind.HOST
    elif is_pool(operation, trace):
        kind = _pooled(operation, trace, placement)
    else:
        kind = _RULES[operation.name](operation, trace) if operation.name in _RULES else LoweringKind.HOST
    if kind is LoweringKind.HOST:
        placement.whys[operation.result] = reason_for_host(operation, trace)
    return kind


def _stay_on_host(operation: Operation, trace: OperationTrace, placement: OperationPlacement) -> None:
    """Leave a cheap operation with the host if all its operands are there.

    At least one operand is a result of the host. The others are values that the host took from the chip for such an
    operand, as in `x - mean(x)`.
    """
    seen = [_seen_through(value, trace, placement) for value in operation.values]
    hosted = [value for value in seen if placement.is_hosted(value)]
    others = {value for value in seen if value not in hosted}
    known = frozenset().union(*(placement.sources[value] for value in hosted))
    if placement.kinds[operation.result] in _CHEAP and hosted and others <= known:
        _assign_to_host(operation, placement, "it works on what the host has made")
    if placement.is_hosted(operation.result):
        placement.sources[operation.result] = known | others


def _assign_to_host(operation: Operation, placement: OperationPlacement, why: str) -> None:
    placement.kinds[operation.result] = LoweringKind.HOST
    placement.whys[operation.result] = why
    placement.roots.pop(operation.result, None)


def _seen_through(value: str, trace: OperationTrace, placement: OperationPlacement) -> str:
    """Return the first value of a chain of views."""
    while placement.kinds.get(value) is LoweringKind.VIEW:
        (value,) = trace.producers[value].values
    return value


def _move_to_host(operation: Operation, trace: OperationTrace, placement: OperationPlacement) -> None:
    """Leave with the host an operation that makes no tensor, or that only the host uses and that reduces no data."""
    users = trace.users.get(operation.result, ())
    kind, is_output = placement.kinds[operation.result], operation.result in trace.outputs
    if kind is LoweringKind.ELEMENT and not trace.is_float(operation.result):
        root = placement.roots[operation.result]
        if is_output or not all(placement.roots.get(user.result) == root for user in users):
            _assign_to_host(operation, placement, "it makes integers or booleans")
    elif kind is LoweringKind.ELEMENT:
        root, hosted = (
            placement.roots[operation.result],
            [user.result for user in users if placement.is_hosted(user.result)],
        )
        taken = root in trace.inputs or any(root in placement.sources.get(user, ()) for user in hosted)
        if len(hosted) == len(users) > 0 and not is_output and taken:
            _assign_to_host(operation, placement, "only the host uses it")
            placement.sources[operation.result] = frozenset([root])
    elif kind is LoweringKind.BROADCAST:
        if is_output or not all(_has_whole(user, placement) for user in users):
            hosted = all(placement.is_hosted(user.result) for user in users)
            if repeated_axes(operation, trace) and (is_output or not hosted):
                placement.kinds[operation.result] = LoweringKind.REPEAT
            else:
                _assign_to_host(operation, placement, "it repeats numbers")
    elif kind in _MOVES and all(placement.is_hosted(user.result) for user in users):
        from_host = all(placement.is_hosted(_seen_through(value, trace, placement)) for value in operation.values)
        if from_host or (kind in (LoweringKind.VIEW, LoweringKind.REPEAT) and not is_output):
            _assign_to_host(operation, placement, "only the host uses it")


def _has_whole(operation: Operation, placement: OperationPlacement) -> bool:
    """Return whether an operation takes two tensors, at least one of which is not broadcast over positions."""
    repeated = [placement.kinds.get(value) is LoweringKind.BROADCAST for value in operation.values]
    binary = placement.kinds[operation.result] is LoweringKind.BINARY and operation.name not in _EXTREME
    return binary and not all(repeated)


def _of_elements(operation: Operation, trace: OperationTrace, placement: OperationPlacement) -> LoweringKind:
    if operation.name == "convert" and trace.is_float(operation.result):
        (source,) = operation.values
        if trace.is_float(source) or source in trace.inputs:
            return LoweringKind.VIEW
    if any(not trace.is_float(value) and value not in placement.roots for value in operation.values):
        return LoweringKind.HOST
    roots = {placement.roots.get(value, value) for value in operation.values}
    constants = [operand for operand in operation.operands if isinstance(operand, np.ndarray)]
    if len(roots) == 1 and all(uniform(constant) is not None for constant in constants):
        if all(trace.types[value].shape == operation.shape for value in operation.values):
            placement.roots[operation.result] = roots.pop()
            return LoweringKind.ELEMENT
        return LoweringKind.HOST
    return _of_two(operation, constants, trace)


def _of_two(operation: Operation, constants: list[np.ndarray], trace: OperationTrace) -> LoweringKind:
    if (
        operation.name not in _AFFINE | _EXTREME
        or not trace.is_float(operation.result)
        or not all(map(trace.is_float, operation.values))
    ):
        return LoweringKind.HOST
    if not constants:
        return LoweringKind.BINARY if operation.name != "divide" and len(operation.values) == 2 else LoweringKind.HOST
    if operation.name in _EXTREME or (operation.name == "divide" and isinstance(operation.operands[0], np.ndarray)):
        return LoweringKind.HOST
    layout = trace.layouts[operation.result]
    return LoweringKind.AFFINE if per_channel(constants[0], operation.shape, layout) is not None else LoweringKind.HOST


def _pooled(operation: Operation, trace: OperationTrace, placement: OperationPlacement) -> LoweringKind:
    if operation.attributes["reducer"] == "add":
        average = averaged(operation, trace)
        placement.averages[operation.result] = average
        if average.divider is not None:
            placement.kinds[average.divider] = LoweringKind.AVERAGE
    return LoweringKind.POOL


def _reshape(operation: Operation, trace: OperationTrace) -> LoweringKind:
    return LoweringKind.VIEW


def _transpose(operation: Operation, trace: OperationTrace) -> LoweringKind:
    """Return VIEW if only axes of size 1 or the batch axis move: then no data moves."""
    layout, order = trace.layouts[operation.values[0]], operation.attributes["permutation"]
    if layout.is_merged:
        return LoweringKind.HOST
    shape = trace.types[operation.values[0]].shape
    moved = [axis for axis in order if axis != layout.axis and shape[axis] != 1]
    if moved == sorted(moved):
        return LoweringKind.VIEW
    example = [layout.example_axis(axis) for axis in order if axis != layout.axis]
    columns = trace.shape(operation.values[0])[1]
    return LoweringKind.PERMUTE if example == [1, 0, 2] and columns <= _MAX_COLUMNS else LoweringKind.HOST


def _broadcast(operation: Operation, trace: OperationTrace) -> LoweringKind:
    (source,) = operation.values
    axes = operation.attributes["broadcast_dimensions"]
    if list(axes) != sorted(axes):
        return LoweringKind.HOST
    if np.prod(trace.types[source].shape) == np.prod(operation.shape):
        return LoweringKind.VIEW
    if trace.shape(source) == (1, 1, trace.shape(operation.result)[2]) and (
        len(trace.example(operation.result)) - 1 == trace.layouts[operation.result].example_axis(axes[-1])
        or trace.shape(source)[2] == 1
    ):
        return LoweringKind.BROADCAST
    return LoweringKind.REPEAT if repeated_axes(operation, trace) else LoweringKind.HOST


def _gather(operation: Operation, trace: OperationTrace) -> LoweringKind:
    return LoweringKind.PICK if picked(operation, trace) is not None else LoweringKind.HOST


def _product(operation: Operation, trace: OperationTrace) -> LoweringKind:
    return LoweringKind.PRODUCT if fits(operation, trace) else LoweringKind.HOST


def _along(operation: Operation, trace: OperationTrace, axis: int) -> bool:
    """Return whether an axis of a value is one of the chip's three."""
    rank = len(trace.example(operation.result))
    return rank <= 3 or trace.layouts[operation.result].example_axis(axis) in (0, rank - 1)


def _concatenate(operation: Operation, trace: OperationTrace) -> LoweringKind:
    known = any(isinstance(operand, np.ndarray) for operand in operation.operands)
    return (
        LoweringKind.CONCATENATE
        if not known and _along(operation, trace, operation.attributes["dimension"])
        else LoweringKind.HOST
    )


def _slice(operation: Operation, trace: OperationTrace) -> LoweringKind:
    old, new = trace.types[operation.values[0]].shape, operation.shape
    layout = trace.layouts[operation.result]
    cut = [axis for axis in range(len(new)) if axis != layout.axis and new[axis] != old[axis]]
    steps = [axis for axis in cut if operation.attributes["strides"][axis] != 1]
    rank = len(trace.example(operation.result))
    if any(layout.example_axis(axis) == rank - 1 for axis in steps) or (steps and (rank > 3 or layout.is_merged)):
        return LoweringKind.HOST
    return LoweringKind.SLICE if all(_along(operation, trace, axis) for axis in cut) else LoweringKind.HOST


def _pad(operation: Operation, trace: OperationTrace) -> LoweringKind:
    known = operation.operands[1]
    rank = len(trace.example(operation.result))
    layout = trace.layouts[operation.result]
    inner = any(operation.attributes["interior_padding"])
    zero = isinstance(known, np.ndarray) and float(known) == 0
    old = trace.types[operation.values[0]].shape
    grown = [
        layout.example_axis(axis)
        for axis in range(len(old))
        if axis != layout.axis and operation.shape[axis] != old[axis]
    ]
    channels = rank - 1 in grown
    return (
        LoweringKind.PAD
        if zero and not inner and rank <= 3 and not layout.is_merged and not channels
        else LoweringKind.HOST
    )


def _reverse(operation: Operation, trace: OperationTrace) -> LoweringKind:
    rank, layout = len(trace.example(operation.result)), trace.layouts[operation.result]
    axes = [layout.example_axis(axis) for axis in operation.attributes["dimensions"]]
    return LoweringKind.REVERSE if rank in (2, 3) and len(axes) == 1 and axes[0] != rank - 1 else LoweringKind.HOST


_RULES: dict[str, Callable[[Operation, OperationTrace], LoweringKind]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "convolution": _product,
    "dot_general": _product,
    "gather": _gather,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "transpose": _transpose,
}
