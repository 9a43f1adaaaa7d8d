"""`attention_of`: the operations of an attention kernel that does not state them.

Idea: the attention kernels of JAX, flash and splash, are recognised by their names. Their products follow from the
shapes of queries and keys. The forward pass has two products (scores, values). The backward pass has three for the
gradient of the queries, four for those of keys and values, five for all in one.

Rule: causal attention is assumed, for which the kernels skip fully masked blocks. The caller of this function says
so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from anytpu.planning.hlo import Instruction, Shape

_RANK = 4


class Attention(NamedTuple):
    """The work of an attention kernel.

    Attributes:
        flops: floating-point operations of one execution, in the blocks that are computed.
        active: share of all blocks that are computed, 0 to 1: those that the causal mask does not cover whole.
    """

    flops: float
    active: float


def attention_of(kernel: Instruction, operands: Sequence[Instruction], steps: int | None) -> Attention | None:
    """Return the work of one execution, or None for an unknown kernel.

    Args:
        kernel: the custom call.
        operands: its operands. Queries `(batch, heads, length, features)` are the first of that rank, then keys.
        steps: steps of the kernel's grid, one for each pair of blocks of each head; None if not known.
    """
    products = _products(kernel)
    whole = [operand.shapes[0] for operand in operands if operand.shapes and len(operand.shapes[0].dims) == _RANK]
    if not products or len(whole) < 2:
        return None
    (batch, heads, queries, features), keys = whole[0].dims, whole[1].dims[2]
    active = _active(steps / (batch * heads)) if steps else 0.5
    return Attention(active * 2.0 * products * batch * heads * queries * keys * features, active)


def _active(pairs: float) -> float:
    """Return the share of the pairs of blocks on or below the diagonal, of as many blocks of queries as of keys."""
    blocks = max(1.0, math.sqrt(pairs))
    return (blocks + 1) / (2 * blocks)


def _products(kernel: Instruction) -> int:
    name = kernel.name
    if name.startswith(("splash_mha_fwd", "splash_mqa_fwd", "flash_attention")):
        return 2
    if name.startswith(("splash_mha_dkv", "splash_mqa_dkv", "flash_mha_bwd_dkv")):
        # A fused kernel gives the gradient of the queries too, in parts that are added up afterwards.
        return 5 if sum(_is_gradient(shape) for shape in kernel.shapes) > 2 else 4
    return 3 if name.startswith(("splash_mha_dq", "splash_mqa_dq", "flash_mha_bwd_dq")) else 0


def _is_gradient(shape: Shape) -> bool:
    return len(shape.dims) >= _RANK
