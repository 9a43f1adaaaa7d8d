"""`kernel_price`: the time of a hand-written (Pallas) kernel.

Idea: its operations are stated by its author (`cost_estimate`), known for the attention kernels of JAX, or read from
its own code. A kernel of products nearly reaches the peak, but each step of its grid takes time. On v5e, a product of
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
from typing import Literal, NamedTuple

from anytpu.planning.hlo import Computation, Instruction
from anytpu.planning.hlo.aliases import result_aliases
from anytpu.planning.target import Target
from anytpu.planning.timing.attention import attention_of
from anytpu.planning.timing.irregular import VECTOR, vector_alus
from anytpu.planning.timing.mosaic import KernelCode, code_of
from anytpu.planning.timing.price import OpPrice
from anytpu.planning.timing.rates import NARROW, Rates, fast_flops_per_s

_COST = {name: re.compile(rf'"{name}":"?(-?[\d.e+]+)') for name in ("flops", "bytes_accessed")}
_ATTENTION = ("splash", "flash")
_SILENT = "a Pallas kernel without cost_estimate"


def kernel_price(home: Computation, instruction: Instruction, moved: float, target: Target, rates: Rates) -> OpPrice:
    """Return the price of one execution of a kernel.

    Args:
        home: the computation of the instruction.
        instruction: the custom call.
        moved: bytes of its operands and results.
        target: the system.
        rates: rates of one device.
    """
    code = code_of(instruction.text)
    claim = _claim(home, instruction, code, moved)
    compute_s = claim.flops / (share_of(instruction.name, rates) * rates.flops_per_s)
    if not instruction.name.startswith(_ATTENTION):
        # The share of attention was fitted on whole kernels, so it includes their vector instructions and steps.
        compute_s = max(compute_s, _vector_s(code, target, rates)) + _steps(code, claim.flops) * rates.grid_step_s
    memory_s = claim.bytes / rates.streaming_bytes_per_s
    bound: Literal["compute", "memory"] = "compute" if compute_s >= memory_s else "memory"
    seconds = rates.start_s + max(compute_s, memory_s)
    least_memory_s = min(claim.least_bytes, moved) / target.max_hbm_bytes_per_s
    least_s = max(_least_compute_s(home, instruction, claim.least_flops, target), least_memory_s)
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


def _claim(home: Computation, instruction: Instruction, code: KernelCode | None, moved: float) -> _Claim:
    stated = (
        instruction.text[instruction.text.find('"cost_estimate"') :] if '"cost_estimate"' in instruction.text else ""
    )
    flops, said = (float(match[1]) if (match := _COST[name].search(stated)) else 0.0 for name in _COST)
    blocks = code.bytes if code else 0.0
    operands = [home.instructions[name] for name in instruction.operands if name in home.instructions]
    if stated:
        least = min(said, moved - _aliased_bytes(instruction, operands) - (code.whole_bytes if code else 0.0))
        return _Claim(flops, said or blocks or moved, "cost estimate", flops, max(least, 0.0))
    further = code.whole_bytes if code else 0.0
    if known := attention_of(instruction, operands, code.steps if code else None):
        remark = f"{_SILENT}; counted as causal attention, by its name"
        # Fully masked blocks are not moved: the index map reads the next block from memory.
        masked = (1 - known.active) * code.chosen_bytes if code else 0.0
        least = code.least_bytes if code else 0.0
        return _Claim(known.flops, blocks - masked or moved, "roofline", 0.0, least, further, remark)
    if code is None or code.steps is None:
        remark = f"{_SILENT}; counted as all bytes of its arrays, of which it may use less"
        return _Claim(0.0, moved, "floor", remark=remark, is_endless=code is not None)
    remark = f"{_SILENT}; counted as the products and blocks of its own code"
    remark += "; a loop in it runs nobody knows how often, and counts once" if code.is_endless else ""
    least_flops, least = code.least_flops, code.least_bytes
    return _Claim(code.flops, blocks, "its code", least_flops, least, further, remark, code.is_endless)


def _aliased_bytes(instruction: Instruction, operands: list[Instruction]) -> float:
    """Return the bytes of results that alias operands, and of those operands: only a part of them may change."""
    shared = set(result_aliases(instruction, operands))
    return 2.0 * sum(instruction.shapes[place].padded_bytes for place in shared if place < len(instruction.shapes))


def share_of(name: str, rates: Rates) -> float:
    """Return the share of the matrix units' peak that a kernel reaches, by its name."""
    if name.startswith(_ATTENTION):
        return rates.kernel_share
    if name.startswith(("gmm", "tgmm")):
        return rates.grouped_share
    return rates.ragged_share if name.startswith("ragged-dot") else rates.product_share


def _least_compute_s(home: Computation, instruction: Instruction, flops: float, target: Target) -> float:
    """Return the time of a kernel's products at peak, seconds; 0 for attention, whose mask may remove any part."""
    if instruction.name.startswith(_ATTENTION):
        return 0.0
    operands = (home.instructions[name].shapes for name in instruction.operands if name in home.instructions)
    types = {shape.dtype for shapes in operands for shape in shapes if len(shape.dims) > 1}
    return flops / (fast_flops_per_s(target) if types & set(NARROW) else target.flops_per_s)


def _steps(code: KernelCode | None, flops: float) -> float:
    """Return the steps of a kernel's grid; if its size is known only at run time, those that its products need."""
    if code is None:
        return 0.0
    if code.steps is not None:
        return float(code.steps)
    return flops / code.flops if code.flops else 0.0


def _vector_s(code: KernelCode | None, target: Target, rates: Rates) -> float:
    if code is None or code.steps is None:
        return 0.0
    cores_hz = rates.clock_hz * target.chip.cores / target.chip.replicas
    return code.vector_operations / (VECTOR * vector_alus(target) * cores_hz)
