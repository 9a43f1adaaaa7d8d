"""`kernel_price`: the time of a hand-written (Pallas) kernel.

Idea: its operations are those of its own code times its grid. Its author may state fewer (`cost_estimate`). A name
only chooses the measured share of the peak that such kernels reach.

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

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from anytpu.planning.hlo import HloInstruction, result_aliases
from anytpu.planning.records import OpPrice
from anytpu.planning.records.target import Target
from anytpu.planning.timing.irregular import VECTOR, vector_alus
from anytpu.planning.timing.mosaic import KernelCode, code_of
from anytpu.planning.timing.rates import NARROW, Rates, fast_flops_per_s

_COST = {name: re.compile(rf'"{name}":"?(-?[\d.e+]+)') for name in ("flops", "bytes_accessed")}
_ATTENTION = re.compile("splash_m|flash_attention|flash_mha")
"""The attention kernels of JAX. Inside of `jax.grad` their names have others before them."""

_ATTENTION_STEP_FLOPS = 2.0 * 2 * 512 * 512 * 128
"""FLOPs of a grid step of the fitted attention kernels: two products of blocks of 512, of 128 features."""

_SILENT = "a Pallas kernel without cost_estimate"
_UNREADABLE = KernelCode(0.0, 0.0, 0.0, None)


def kernel_price(
    instruction: HloInstruction, constants: Sequence[str | None], moved: float, target: Target, rates: Rates
) -> OpPrice:
    """Return the price of one execution of a kernel.

    Args:
        instruction: the custom call.
        constants: the literal of each operand; None for one that is not constant.
        moved: bytes of its operands and results.
        target: the system.
        rates: rates of one device.
    """
    code = code_of(instruction.text, constants) or _UNREADABLE
    # 1. The work, and the time of the unit that takes longest.
    claim = _claim(instruction, code, moved)
    compute_s = claim.flops / (share_of(instruction.name, rates) * rates.flops_per_s)
    if _ATTENTION.search(instruction.name):
        # The share of attention was fitted on whole kernels. It includes vector instructions, and steps of that size.
        compute_s += max(0.0, code.busy_steps - claim.flops / _ATTENTION_STEP_FLOPS) * rates.grid_step_s
    else:
        compute_s = max(compute_s, _vector_s(code, target, rates)) + _steps(code, claim.flops) * rates.grid_step_s
    memory_s = claim.bytes / rates.streaming_bytes_per_s
    bound: Literal["compute", "memory"] = "compute" if compute_s >= memory_s else "memory"
    seconds = rates.start_s + max(compute_s, memory_s)
    # 2. The bounds: a floor may be all too much, and arrays that are used in part may add bytes.
    least_memory_s = min(claim.least_bytes, moved) / target.max_hbm_bytes_per_s
    inputs = [operand for operand, constant in zip(instruction.operands, constants, strict=True) if constant is None]
    least_s = max(_least_compute_s(inputs, claim.least_flops, target), least_memory_s)
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
        is_known = code.steps is not None and not code.is_endless
        # JAX's flash attention states all blocks, also those that its causal mask leaves out.
        flops, least_flops = (min(flops, code.flops or flops), code.least_flops) if is_known else (flops, flops)
        return _Claim(flops, said or code.bytes or moved, "cost estimate", min(flops, least_flops), max(least, 0.0))
    # 2. A kernel that cannot be read, or whose grid is known only at run time.
    if code.steps is None:
        remark = f"{_SILENT}; counted as all bytes of its arrays, of which it may use less"
        return _Claim(0.0, moved, "floor", remark=remark, is_endless=code.is_endless)
    # 3. The kernel's own code.
    remark = f"{_SILENT}; counted as the products and blocks of its own code"
    remark += "; a loop in it runs nobody knows how often, and counts once" if code.is_endless else ""
    least = code.least_flops, code.least_bytes
    # The times of attention kernels were fitted; of others a name says nothing.
    priced_by = "roofline" if _ATTENTION.search(instruction.name) else "its code"
    return _Claim(code.flops, code.bytes, priced_by, *least, code.whole_bytes, remark, code.is_endless)


def _aliased_bytes(instruction: HloInstruction) -> float:
    """Return the bytes of results that alias operands, and of those operands: only a part of them may change."""
    shared = set(result_aliases(instruction))
    return 2.0 * sum(instruction.shapes[place].padded_bytes for place in shared if place < len(instruction.shapes))


def share_of(name: str, rates: Rates) -> float:
    """Return the share of the matrix units' peak that a kernel reaches, by its name."""
    if _ATTENTION.search(name):
        return rates.kernel_share
    if name.startswith(("gmm", "tgmm")):
        return rates.grouped_share
    return rates.ragged_share if name.startswith("ragged-dot") else rates.product_share


def _least_compute_s(inputs: Sequence[HloInstruction], flops: float, target: Target) -> float:
    """Return the time of a kernel's products at peak, seconds; at that of the fastest type of its inputs."""
    arrays = (shape for operand in inputs for shape in operand.shapes if len(shape.dims) > 1)
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
