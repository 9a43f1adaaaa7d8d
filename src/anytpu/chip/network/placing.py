"""`place`: the operations of a program that the chip computes, and those left to the host, with the reason.

Idea: an operation is placed by its kind and by its operands. Functions of one number are gathered. A value that is
computed elementwise from one other value, its root, is one function of the root, however it was written. A cheap
operation on results of the host stays on the host.

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
from anytpu.chip.network.pooling import Averaged, averaged, is_pool
from anytpu.chip.network.products import fits
from anytpu.chip.network.reasons import why_not
from anytpu.chip.network.recorder import uniform
from anytpu.chip.network.trace import Trace


class Kind(enum.Enum):
    """The form that an operation gets: a kind of node, a part of a node, or the host."""

    VIEW = "the same numbers"
    AVERAGE = "the division of a sum, which the pool before it has done"
    ELEMENT = "part of a function of one number"
    AFFINE = "a factor and a summand for each channel"
    BINARY = "two tensors, number by number"
    BROADCAST = "one number for each channel, at every position"
    PRODUCT = "a product with weights"
    POOL = "a pool"
    CONCATENATE = "tensors side by side"
    SLICE = "a part of a tensor"
    PAD = "zeros around a tensor"
    REVERSE = "the other way round"
    HOST = "left to the host"


_CHEAP = {Kind.ELEMENT, Kind.AFFINE, Kind.BINARY, Kind.BROADCAST}
_MOVES = {Kind.VIEW, Kind.SLICE, Kind.CONCATENATE, Kind.PAD, Kind.REVERSE}
_AFFINE = {"add", "subtract", "multiply", "divide"}


@dataclasses.dataclass(frozen=True)
class Placing:
    """The placement of each value of a trace on the chip or the host.

    Attributes:
        kinds: kind of the operation that makes a value, by the value.
        roots: root of each value that is a function of one number.
        whys: reason for each value that the host makes.
        averages: sums over windows, each with the average that it belongs to.
        sources: for each value that the host makes, the values that it took from the chip.
    """

    kinds: dict[str, Kind]
    roots: dict[str, str]
    whys: dict[str, str]
    averages: dict[str, Averaged]
    sources: dict[str, frozenset[str]]

    def is_hosted(self, name: str) -> bool:
        """Return whether the host makes a value."""
        return self.kinds.get(name) is Kind.HOST


def place(trace: Trace) -> Placing:
    """Place each value of a trace on the chip or the host."""
    placing = Placing({}, {}, {}, {}, {})
    for operation in trace.operations:
        if operation.result not in placing.kinds:
            kind = _kind(operation, trace, placing)
            placing.kinds[operation.result] = kind
        _stay(operation, trace, placing)
    for operation in reversed(trace.operations):
        _sink(operation, trace, placing)
    for operation in trace.operations:
        _stay(operation, trace, placing)
    for operation in reversed(trace.operations):
        _sink(operation, trace, placing)
    return placing


def _kind(operation: Operation, trace: Trace, placing: Placing) -> Kind:
    if operation.name in elementwise.NAMES:
        kind = _of_elements(operation, trace, placing)
    elif not trace.is_float(operation.result) or not all(trace.is_float(value) for value in operation.values):
        kind = Kind.HOST
    elif is_pool(operation, trace):
        kind = _pooled(operation, trace, placing)
    else:
        kind = _RULES[operation.name](operation, trace) if operation.name in _RULES else Kind.HOST
    if kind is Kind.HOST:
        placing.whys[operation.result] = why_not(operation, trace)
    return kind


def _stay(operation: Operation, trace: Trace, placing: Placing) -> None:
    """Leave a cheap operation with the host if all its operands are there.

    At least one operand is a result of the host. The others are values that the host took from the chip for such an
    operand, as in `x - mean(x)`.
    """
    seen = [_seen_through(value, trace, placing) for value in operation.values]
    hosted = [value for value in seen if placing.is_hosted(value)]
    others = {value for value in seen if value not in hosted}
    known = frozenset().union(*(placing.sources[value] for value in hosted))
    if placing.kinds[operation.result] in _CHEAP and hosted and others <= known:
        _leave(operation, placing, "it works on what the host has made")
    if placing.is_hosted(operation.result):
        placing.sources[operation.result] = known | others


def _leave(operation: Operation, placing: Placing, why: str) -> None:
    placing.kinds[operation.result] = Kind.HOST
    placing.whys[operation.result] = why
    placing.roots.pop(operation.result, None)


def _seen_through(value: str, trace: Trace, placing: Placing) -> str:
    """Return the first value of a chain of views."""
    while placing.kinds.get(value) is Kind.VIEW:
        (value,) = trace.producers[value].values
    return value


def _sink(operation: Operation, trace: Trace, placing: Placing) -> None:
    """Leave with the host an operation that makes no tensor, or that only the host uses and that reduces no data."""
    users = trace.users.get(operation.result, ())
    kind, is_output = placing.kinds[operation.result], operation.result in trace.outputs
    if kind is Kind.ELEMENT and not trace.is_float(operation.result):
        root = placing.roots[operation.result]
        if is_output or not all(placing.roots.get(user.result) == root for user in users):
            _leave(operation, placing, "it makes whole numbers or truth values")
    elif kind is Kind.ELEMENT:
        root, hosted = (
            placing.roots[operation.result],
            [user.result for user in users if placing.is_hosted(user.result)],
        )
        taken = root in trace.inputs or any(root in placing.sources.get(user, ()) for user in hosted)
        if len(hosted) == len(users) > 0 and not is_output and taken:
            _leave(operation, placing, "only the host uses it")
            placing.sources[operation.result] = frozenset([root])
    elif kind is Kind.BROADCAST:
        if is_output or not all(_has_whole(user, placing) for user in users):
            _leave(operation, placing, "it repeats numbers")
    elif kind in _MOVES and all(placing.is_hosted(user.result) for user in users):
        from_host = all(placing.is_hosted(_seen_through(value, trace, placing)) for value in operation.values)
        if from_host or (kind is Kind.VIEW and not is_output):
            _leave(operation, placing, "only the host uses it")


def _has_whole(operation: Operation, placing: Placing) -> bool:
    """Return whether an operation takes two tensors, at least one of which is not broadcast over positions."""
    repeated = [placing.kinds.get(value) is Kind.BROADCAST for value in operation.values]
    return placing.kinds[operation.result] is Kind.BINARY and not all(repeated)


def _of_elements(operation: Operation, trace: Trace, placing: Placing) -> Kind:
    if operation.name == "convert" and trace.is_float(operation.result):
        (source,) = operation.values
        if trace.is_float(source) or source in trace.inputs:
            return Kind.VIEW
    if any(not trace.is_float(value) and value not in placing.roots for value in operation.values):
        return Kind.HOST
    roots = {placing.roots.get(value, value) for value in operation.values}
    constants = [operand for operand in operation.operands if isinstance(operand, np.ndarray)]
    if len(roots) == 1 and all(uniform(constant) is not None for constant in constants):
        if all(trace.types[value].shape == operation.shape for value in operation.values):
            placing.roots[operation.result] = roots.pop()
            return Kind.ELEMENT
        return Kind.HOST
    return _of_two(operation, constants, trace)


def _of_two(operation: Operation, constants: list[np.ndarray], trace: Trace) -> Kind:
    if (
        operation.name not in _AFFINE
        or not trace.is_float(operation.result)
        or not all(map(trace.is_float, operation.values))
    ):
        return Kind.HOST
    if not constants:
        return Kind.BINARY if operation.name != "divide" and len(operation.values) == 2 else Kind.HOST
    if operation.name == "divide" and isinstance(operation.operands[0], np.ndarray):
        return Kind.HOST
    lay = trace.lays[operation.result]
    return Kind.AFFINE if per_channel(constants[0], operation.shape, lay) is not None else Kind.HOST


def _pooled(operation: Operation, trace: Trace, placing: Placing) -> Kind:
    if operation.attributes["reducer"] == "add":
        average = averaged(operation, trace)
        placing.averages[operation.result] = average
        if average.divider is not None:
            placing.kinds[average.divider] = Kind.AVERAGE
    return Kind.POOL


def _reshape(operation: Operation, trace: Trace) -> Kind:
    return Kind.VIEW


def _transpose(operation: Operation, trace: Trace) -> Kind:
    """Return VIEW if only axes of size 1 or the batch axis move: then no data moves."""
    lay, order = trace.lays[operation.values[0]], operation.attributes["permutation"]
    if lay.is_merged:
        return Kind.HOST
    shape = trace.types[operation.values[0]].shape
    moved = [axis for axis in order if axis != lay.axis and shape[axis] != 1]
    return Kind.VIEW if moved == sorted(moved) else Kind.HOST


def _broadcast(operation: Operation, trace: Trace) -> Kind:
    (source,) = operation.values
    axes = operation.attributes["broadcast_dimensions"]
    if list(axes) != sorted(axes):
        return Kind.HOST
    if np.prod(trace.types[source].shape) == np.prod(operation.shape):
        return Kind.VIEW
    return (
        Kind.BROADCAST
        if trace.shape(source) == (1, 1, trace.shape(operation.result)[2])
        and (
            len(trace.example(operation.result)) - 1 == trace.lays[operation.result].example_axis(axes[-1])
            or trace.shape(source)[2] == 1
        )
        else Kind.HOST
    )


def _product(operation: Operation, trace: Trace) -> Kind:
    return Kind.PRODUCT if fits(operation, trace) else Kind.HOST


def _along(operation: Operation, trace: Trace, axis: int) -> bool:
    """Return whether an axis of a value is one of the chip's three."""
    rank = len(trace.example(operation.result))
    return rank <= 3 or trace.lays[operation.result].example_axis(axis) in (0, rank - 1)


def _concatenate(operation: Operation, trace: Trace) -> Kind:
    known = any(isinstance(operand, np.ndarray) for operand in operation.operands)
    return Kind.CONCATENATE if not known and _along(operation, trace, operation.attributes["dimension"]) else Kind.HOST


def _slice(operation: Operation, trace: Trace) -> Kind:
    old, new = trace.types[operation.values[0]].shape, operation.shape
    lay = trace.lays[operation.result]
    cut = [axis for axis in range(len(new)) if axis != lay.axis and new[axis] != old[axis]]
    steps = [axis for axis in cut if operation.attributes["strides"][axis] != 1]
    rank = len(trace.example(operation.result))
    if any(lay.example_axis(axis) == rank - 1 for axis in steps) or (steps and (rank > 3 or lay.is_merged)):
        return Kind.HOST
    return Kind.SLICE if all(_along(operation, trace, axis) for axis in cut) else Kind.HOST


def _pad(operation: Operation, trace: Trace) -> Kind:
    known = operation.operands[1]
    rank = len(trace.example(operation.result))
    lay = trace.lays[operation.result]
    inner = any(operation.attributes["interior_padding"])
    zero = isinstance(known, np.ndarray) and float(known) == 0
    old = trace.types[operation.values[0]].shape
    grown = [
        lay.example_axis(axis) for axis in range(len(old)) if axis != lay.axis and operation.shape[axis] != old[axis]
    ]
    channels = rank - 1 in grown
    return Kind.PAD if zero and not inner and rank <= 3 and not lay.is_merged and not channels else Kind.HOST


def _reverse(operation: Operation, trace: Trace) -> Kind:
    rank, lay = len(trace.example(operation.result)), trace.lays[operation.result]
    axes = [lay.example_axis(axis) for axis in operation.attributes["dimensions"]]
    return Kind.REVERSE if rank in (2, 3) and len(axes) == 1 and axes[0] != rank - 1 else Kind.HOST


_RULES: dict[str, Callable[[Operation, Trace], Kind]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "convolution": _product,
    "dot_general": _product,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "transpose": _transpose,
}
