"""What a kernel takes on a device: the longer of computing and moving.

Idea: a device computes and moves at the same time, so a kernel takes as long as the slower of the two, and a little to
start. Nothing reaches its peak: the shares that are reckoned with are those at which the estimate agrees best with what
the TPU's own compiler says of the same programs.

Rule: on a matrix unit of n x n a product is padded: rows to 8, both sizes of the weights to n.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping

from anytpu.planning.roofline.node import Node


@dataclasses.dataclass(frozen=True)
class Machine:
    """One device as a roofline knows it.

    Attributes:
        flops_per_s: peak rates by the type that is multiplied: "bf16", "f32", "s8"; passes ("bf16x3") are derived.
        hbm_bytes_per_s: peak bandwidth of its memory.
        product_share: the share of the peak rate that products reach.
        memory_share: the share of the peak bandwidth that kernels reach.
        kernel_s: what starting a kernel takes, seconds.
        mxu_side: the side of its matrix unit, or 1 where products are not padded.
        multiplies_f32_as: the type that float32 is multiplied in at the default precision.
    """

    flops_per_s: Mapping[str, float]
    hbm_bytes_per_s: float
    product_share: float
    memory_share: float
    kernel_s: float
    mxu_side: int = 1
    multiplies_f32_as: str = "bf16"

    def rate(self, dtype: str) -> float:
        """Return the peak rate for a type."""
        name, _, passes = dtype.partition("x")
        known = self.flops_per_s.get(name) or self.flops_per_s[_nearest(name, self.flops_per_s)]
        return known / int(passes or 1)

    def multiplied_as(self, dtype: str, operand_dtypes: Iterable[str]) -> str:
        """Return the type that this machine multiplies in, given what a TPU would: it has its own way with float32."""
        if self.multiplies_f32_as == "bf16" or "f32" not in operand_dtypes:
            return dtype
        return self.multiplies_f32_as if dtype == "bf16" else "f32"


def compute_s(node: Node, machine: Machine, part: float = 1.0) -> float:
    """Return how long the products in a kernel keep the matrix units busy, seconds."""
    padding = padding_factor(node, machine.mxu_side)
    seconds = 0.0
    for dtype, flops in node.flops.items():
        seconds += flops / machine.rate(dtype)
    return part * padding * seconds / machine.product_share


def padding_factor(node: Node, side: int) -> float:
    """Return how many times as much a matrix unit multiplies as there is to multiply, for a dot; else 1."""
    if side == 1 or node.opcode != "dot" or node.instruction is None:
        return 1.0
    rows, summed, columns = dot_sizes(node)
    # The compiler turns a product around where that pads less.
    ways = (
        _padded(rows, 8) * _padded(summed, side) * _padded(columns, side),
        _padded(columns, 8) * _padded(summed, side) * _padded(rows, side),
    )
    return min(ways) / max(1, rows * summed * columns)


def dot_sizes(node: Node) -> tuple[int, int, int]:
    """Return rows, summed size and columns of each product of a dot; batch dimensions count as none of them."""
    assert node.instruction is not None
    left, right = (operand.shapes[0].dims for operand in node.operands[:2])
    text = node.instruction.text
    over_left, over_right = _dims("lhs_contracting_dims", text), _dims("rhs_contracting_dims", text)
    batch_left, batch_right = _dims("lhs_batch_dims", text), _dims("rhs_batch_dims", text)
    rows = math.prod(size for axis, size in enumerate(left) if axis not in over_left | batch_left)
    columns = math.prod(size for axis, size in enumerate(right) if axis not in over_right | batch_right)
    return rows, math.prod(left[axis] for axis in over_left), columns


def _dims(name: str, text: str) -> set[int]:
    found = re.search(rf"{name}={{([\d,]*)}}", text)
    return {int(axis) for axis in found[1].split(",") if axis} if found else set()


def _padded(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def _nearest(dtype: str, known: Mapping[str, float]) -> str:
    if dtype.startswith(("s4", "u4", "s8", "u8")) and "s8" in known:
        return "s8"
    if dtype.startswith("f8") and "f8" in known:
        return "f8"
    if dtype.startswith(("f64", "c", "s32", "u32", "s64", "u64", "f32")) and "f32" in known:
        return "f32"
    return "bf16"
