"""`kernel_price`: the time of a hand-written (Pallas) kernel.

Idea: its operations are stated by its author (`cost_estimate`), known for the attention kernels of JAX, or read from
its own code. The attention kernels, flash and splash, are recognised by their names. Their products follow from the
shapes of queries and keys. The forward pass has two products (scores, values). The backward pass has three for the
gradient of the queries, four for those of keys and values, five for all in one.

A kernel of products nearly reaches the peak, but each step of its grid takes time. On v5e, a product of
4096 x 4096 took 11.77 ms in blocks of 128 and 0.89 ms in blocks of 512 x 1024. One of 8192 x 8192 took 6.10 ms. Each
includes 0.1 ms of the host.

Rule: bytes are those that the author states, else those of the blocks that its code moves. Arrays of which it may
use a part (`memory_space=ANY`) widen the upper side of the interval. An unreadable kernel is counted as all its
arrays, of which it may use less; a text says so. A kernel of unknown length has no upper bound, unless its author
states its cost.

Source: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html (the measured times), for `Rates.product_share` and
`Rates.grid_step_s`.
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

from anytpu.planning.hlo import HloInstruction, result_aliases
from anytpu.planning.records import OpPrice
from anytpu.planning.records.target import Target
from anytpu.planning.timing.irregular import VECTOR, vector_alus
from anytpu.planning.timing.mosaic import KernelCode, code_of
from anytpu.planning.timing.rates import NARROW, Rates, fast_flops_per_s

_COST = {name: re.compile(rf'"{name}":"?(-?[\d.e+]+)') for name in ("flops", "bytes_accessed")}
_ATTENTION = ("splash", "flash")
_RANK = 4
"""Number of dimensions of queries, keys and values: (batch, heads, length, features)."""

_SILENT = "a Pallas kernel without cost_estimate"
_UNREADABLE = KernelCode(0.0, 0.0, 0.0, None)


def kernel_price(instruction: HloInstruction, moved: float, target: Target, rates: Rates) -> OpPrice:
    """Return the price of one execution of a kernel.

    Args:
        instruction: the custom call.
        moved: bytes of its operands and results.
        target: the system.
        rates: rates of one device.
    """
    code = code_of(instruction.text) or _UNREADABLE
    # 1. The work, and the time of the unit that takes longest.
    claim = _claim(instruction, code, moved)
    compute_s = claim.flops / (share_of(instruction.name, rates) * rates.flops_per_s)
    if not instruction.name.startswith(_ATTENTION):
        # The share of attention was fitted on whole kernels, so it includes their vector instructions and steps.
        compute_s = max(compute_s, _vector_s(code, target, rates)) + _steps(code, claim.flops) * rates.grid_step_s
    memory_s = claim.bytes / rates.streaming_bytes_per_s
    bound: Literal["compute", "memory"] = "compute" if compute_s >= memory_s else "memory"
    seconds = rates.start_s + max(compute_s, memory_s)
    # 2. The bounds: a floor may be all too much, and arrays that are used in part may add bytes.
    least_memory_s = min(claim.least_bytes, moved) / target.max_hbm_bytes_per_s
    least_s = max(_least_compute_s(instruction, claim.least_flops, target), least_memory_s)
    return OpPrice(
        seconds,
        "kernel",
        bound,
        claim.priced_by,
        claim.flops,
        claim.bytes,
        claim.remark,
        least_s,
        seconds - least_s if claim.priced_by == "floor" else 0.0,
        claim.further_bytes / rates.streaming_bytes_per_s,
        claim.is_endless,
    )


class _Claim(NamedTuple):
    """FLOPs and bytes of a kernel, their source, their minimum, and bytes that may come on top."""

    flops: float
    bytes: float
    priced_by: str
    least_flops: float = 0.0
    least_bytes: float = 0.0
    further_bytes: float = 0.0
    remark: str = ""
    is_endless: bool = False


def _claim(instruction: HloInstruction, code: KernelCode, moved: float) -> _Claim:
    # 1. The author's statement. Arrays that are used or changed in part are not certain to move.
    _, is_stated, cost = instruction.text.partition('"cost_estimate"')
    flops, said = (float(match[1]) if (match := _COST[name].search(cost)) else 0.0 for name in _COST)
    if is_stated:
        least = min(said, moved - _aliased_bytes(instruction) - code.whole_bytes)
        return _Claim(flops, said or code.bytes or moved, "cost estimate", flops, max(least, 0.0))
    # 2. JAX's own attention kernels: how much a mask leaves out is known from their names and shapes.
    if known := attention_of(instruction, code.steps):
        remark = f"{_SILENT}; counted as causal attention, by its name"
        # Fully masked blocks are not moved: the index map reads the next block from memory.
        masked = (1 - known.active) * code.chosen_bytes
        size = code.bytes - masked or moved
        return _Claim(known.flops, size, "roofline", 0.0, code.least_bytes, code.whole_bytes, remark)
    # 3. A kernel that cannot be read, or whose grid is known only at run time.
    if code.steps is None:
        remark = f"{_SILENT}; counted as all bytes of its arrays, of which it may use less"
        return _Claim(0.0, moved, "floor", remark=remark, is_endless=code.is_endless)
    # 4. The kernel's own code.
    remark = f"{_SILENT}; counted as the products and blocks of its own code"
    remark += "; a loop in it runs nobody knows how often, and counts once" if code.is_endless else ""
    least = code.least_flops, code.least_bytes
    return _Claim(code.flops, code.bytes, "its code", *least, code.whole_bytes, remark, code.is_endless)


def _aliased_bytes(instruction: HloInstruction) -> float:
    """Return the bytes of results that alias operands, and of those operands: only a part of them may change."""
    shared = set(result_aliases(instruction))
    return 2.0 * sum(instruction.shapes[place].padded_bytes for place in shared if place < len(instruction.shapes))


def share_of(name: str, rates: Rates) -> float:
    """Return the share of the matrix units' peak that a kernel reaches, by its name."""
    if name.startswith(_ATTENTION):
        return rates.kernel_share
    if name.startswith(("gmm", "tgmm")):
        return rates.grouped_share
    return rates.ragged_share if name.startswith("ragged-dot") else rates.product_share


def _least_compute_s(instruction: HloInstruction, flops: float, target: Target) -> float:
    """Return the time of a kernel's products at peak, seconds; 0 for attention, whose mask may remove any part."""
    if instruction.name.startswith(_ATTENTION):
        return 0.0
    arrays = (shape for operand in instruction.operands for shape in operand.shapes if len(shape.dims) > 1)
    types = {shape.dtype for shape in arrays}
    return flops / (fast_flops_per_s(target) if types & set(NARROW) else target.flops_per_s)


def _steps(code: KernelCode, flops: float) -> float:
    """Return the steps of a kernel's grid; if its size is known only at run time, those that its products need."""
    if code.steps is not None:
        return float(code.steps)
    return flops / code.flops if code.flops else 0.0


def _vector_s(code: KernelCode, target: Target, rates: Rates) -> float:
    cores_hz = rates.clock_hz * target.chip.cores / target.chip.replicas
    return 0.0 if code.steps is None else code.vector_operations / (VECTOR * vector_alus(target) * cores_hz)


class AttentionWork(NamedTuple):
    """The work of an attention kernel.

    Attributes:
        flops: floating-point operations of one execution, in the blocks that are computed.
        active: share of all blocks that are computed, 0 to 1: those that the causal mask does not cover whole.
    """

    flops: float
    active: float


def attention_of(kernel: HloInstruction, steps: int | None) -> AttentionWork | None:
    """Return the work of one execution, or None for an unknown kernel.

    Args:
        kernel: the custom call. Queries `(batch, heads, length, features)` are its first operand of that rank, then
            keys.
        steps: steps of the kernel's grid, one for each pair of blocks of each head; None if not known.
    """
    products = _products(kernel)
    whole = [
        operand.shapes[0] for operand in kernel.operands if operand.shapes and len(operand.shapes[0].dims) == _RANK
    ]
    if not products or len(whole) < 2:
        return None
    (batch, heads, queries, features), keys = whole[0].dims, whole[1].dims[2]
    # Without a grid: half of the blocks, the limit for very many.
    active = _active(steps / (batch * heads)) if steps else 0.5
    return AttentionWork(active * 2.0 * products * batch * heads * queries * keys * features, active)


def _active(pairs: float) -> float:
    """Return the share of the pairs of blocks on or below the diagonal, of as many blocks of queries as of keys."""
    blocks = max(1.0, math.sqrt(pairs))
    return (blocks + 1) / (2 * blocks)


def _products(kernel: HloInstruction) -> int:
    name = kernel.name
    if name.startswith(("splash_mha_fwd", "splash_mqa_fwd", "flash_attention")):
        return 2
    if name.startswith(("splash_mha_dkv", "splash_mqa_dkv", "flash_mha_bwd_dkv")):
        # A fused kernel gives the gradient of the queries too, in parts that are added up afterwards.
        return 5 if sum(len(shape.dims) >= _RANK for shape in kernel.shapes) > 2 else 4
    return 3 if name.startswith(("splash_mha_dq", "splash_mqa_dq", "flash_mha_bwd_dq")) else 0
