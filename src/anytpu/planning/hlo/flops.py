"""`flops_of`: the floating-point operations of the matrix products inside an instruction, by their types.

Idea: the matrix units only multiply and add, so each multiplication counts two floating-point operations. A dot has one
multiplication for each element of its result and of the contracted size. A convolution has one for each existing pair
of kernel and input positions.

Rule: positions on the padding of a window, or between the elements of a dilated input, are not counted. XLA's own cost
analysis does the same. A fusion that recomputes a product counts it again. The body of a loop is counted once, a
conditional by its largest branch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable

from anytpu.errors import PlanError
from anytpu.planning.hlo.instruction import HloInstruction
from anytpu.planning.hlo.shapes import Shape, bits_of
from anytpu.planning.records.quoting import quoted

_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_BATCH_GROUPS = re.compile(r"batch_group_count=([1-9]\d{0,17})")
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_PRECISION = re.compile(r"operand_precision=\{(default|high|highest),(default|high|highest)\}")
_WINDOW_FIELDS = {
    **dict.fromkeys(("size", "stride", "lhs_dilate", "rhs_dilate"), re.compile(r"[1-9]\d{0,17}")),
    "pad": re.compile(r"-?\d{1,18}_-?\d{1,18}"),
}
_TRANSPARENT = ("fusion", "call", "while", "async-start", "conditional")
# bfloat16 passes for each float32 product, by precision.
_PASSES = {"default": "bf16", "high": "bf16x3", "highest": "bf16x6"}


@dataclasses.dataclass(frozen=True, slots=True)
class WindowDimension:
    """One dimension of a convolution's window, with the fields of `window={...}`."""

    size: int
    stride: int = 1
    pad_low: int = 0
    lhs_dilate: int = 1
    rhs_dilate: int = 1


def flops_of(instruction: HloInstruction) -> dict[str, float]:
    """Return the floating-point operations of the products in an instruction, by operand type. Loops count once.

    The type is that which the matrix units multiply. For float32 that is "bf16" at the default precision, "bf16x3"
    (three passes) at "high" and "bf16x6" at "highest". Else it is the operands' own: "bf16", "s8", "f8e4m3fn".
    """
    if instruction.opcode in ("convolution", "dot"):
        left, right = (operand.shapes[0] for operand in instruction.operands[:2])
        is_dot = instruction.opcode == "dot"
        flops = _dot_flops(instruction, left) if is_dot else _convolution_flops(instruction, left, right)
        return {_dtype(instruction, left, right): float(flops)}
    if instruction.opcode not in _TRANSPARENT:
        return {}
    bodies = [
        _sum(flops_of(inner) for inner in computation.instructions.values()) for computation in instruction.bodies
    ]
    if instruction.opcode == "conditional":
        return max(bodies, key=lambda flops: sum(flops.values()), default={})
    return _sum(bodies)


def _sum(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for dtype, flops in part.items():
            total[dtype] = total.get(dtype, 0.0) + flops
    return total


def _dtype(instruction: HloInstruction, left: Shape, right: Shape) -> str:
    widest = max((left.dtype, right.dtype), key=bits_of)
    if widest != "f32":
        return widest
    match = _PRECISION.search(instruction.text)
    return _PASSES[max(match.groups(), key=list(_PASSES).index)] if match else _PASSES["default"]


def _dot_flops(instruction: HloInstruction, left: Shape) -> int:
    match = _CONTRACTING.search(instruction.text)
    # 18 digits fit in any integer that is compared below; a longer index exists in no array.
    axes = [int(axis[:18]) for axis in match[1].split(",") if axis] if match else []
    if not all(axis < len(left.dims) for axis in axes):
        raise PlanError(
            f"the dot {quoted(instruction.name)} contracts dimensions {quoted(axes)} of an array that has "
            f"{len(left.dims)}"
        )
    contracted = [left.dims[axis] for axis in axes]
    return 2 * math.prod(instruction.shapes[0].dims) * math.prod(contracted)


def _convolution_flops(instruction: HloInstruction, left: Shape, right: Shape) -> int:
    labels = _DIM_LABELS.search(instruction.text)
    if not labels:
        raise PlanError(
            f"the convolution {quoted(instruction.name)} has no dim_labels, such as 'dim_labels=b01f_01io->b01f'"
        )
    of_left, of_right, of_result = labels.groups()
    window = window_of(instruction.text)
    result = instruction.shapes[0]
    for written, features, shape in ((of_left, "bf", left), (of_right, "io", right), (of_result, "bf", result)):
        _check_labels(instruction.name, written, features, shape, len(window))
    if [dimension.size for dimension in window] != [right.dims[of_right.index(str(n))] for n in range(len(window))]:
        raise PlanError(
            f"the convolution {quoted(instruction.name)} has a window that is not of the size of its kernel {right}"
        )
    useful = 1
    for index, dimension in enumerate(window):
        inputs, outputs = left.dims[of_left.index(str(index))], result.dims[of_result.index(str(index))]
        useful *= useful_positions(inputs, outputs, dimension)
    features = right.dims[of_right.index("i")] * right.dims[of_right.index("o")]
    match = _BATCH_GROUPS.search(instruction.text)
    return 2 * features * left.dims[of_left.index("b")] // (int(match[1]) if match else 1) * useful


def _check_labels(name: str, written: str, features: str, shape: Shape, spatial: int) -> None:
    if sorted(written) != sorted([*map(str, range(spatial)), *features]) or len(written) != len(shape.dims):
        raise PlanError(
            f"the convolution {quoted(name)} labels the dimensions of {shape} {quoted(written)}, which does not fit"
        )


def window_of(text: str) -> tuple[WindowDimension, ...]:
    """Read the window of an instruction's text, () where it has none.

    Example:
        >>> window_of("window={size=3x1 stride=2x1 pad=1_1x0_0}, dim_labels=b01f_01io->b01f")[0]
        WindowDimension(size=3, stride=2, pad_low=1, lhs_dilate=1, rhs_dilate=1)
    """
    match = _WINDOW.search(text)
    if not match:
        return ()
    columns = {name: value.split("x") for name, _, value in (field.partition("=") for field in match[1].split())}
    sizes = columns.get("size", [])
    for name in columns.keys() & _WINDOW_FIELDS.keys():
        written = columns[name]
        if len(written) != len(sizes) or not all(map(_WINDOW_FIELDS[name].fullmatch, written)):
            raise PlanError(
                f"{quoted(match[0])} in the compiler's text is not a window, such as 'window={{size=3x3 pad=1_1x1_1}}'"
            )
    dimensions = []
    for index, size in enumerate(sizes):
        more = {name: int(columns[name][index]) for name in ("stride", "lhs_dilate", "rhs_dilate") if name in columns}
        pad_low = int(columns["pad"][index].split("_")[0]) if "pad" in columns else 0
        dimensions.append(WindowDimension(int(size), pad_low=pad_low, **more))
    return tuple(dimensions)


@functools.lru_cache(maxsize=4096)
def useful_positions(inputs: int, outputs: int, window: WindowDimension) -> int:
    """Return the number of pairs (output, kernel position) of one dimension that meet an element of the input.

    Output `o` and kernel position `k` meet position `o * stride + k * rhs_dilate - pad_low` of the dilated input. It
    holds an element at every `lhs_dilate`-th position.

    Example:
        >>> useful_positions(28, 28, WindowDimension(3, pad_low=1))  # 3 * 28, less one at either end
        82
    """
    common = math.gcd(window.stride, window.lhs_dilate)
    period, last = window.lhs_dilate // common, (inputs - 1) * window.lhs_dilate
    # The outputs that meet an element are the solutions of a linear congruence: none, or every `period`-th output.
    inverse = pow(window.stride // common, -1, period) if period > 1 else 0
    total = 0
    for position in range(window.size):
        offset = position * window.rhs_dilate - window.pad_low
        if offset % common:
            continue
        # Output o meets an element where (o * stride + offset) % lhs_dilate == 0: o is `first` modulo `period`.
        first = -(offset // common) * inverse % period if period > 1 else 0
        low, high = max(0, -(offset // window.stride)), min(outputs - 1, (last - offset) // window.stride)
        if high >= low and high >= first:
            total += (high - first) // period - (low - first - 1) // period
    return total
