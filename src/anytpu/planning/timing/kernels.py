"""`kernel_price`: the time of a hand-written (Pallas) kernel.

Idea: its operations are those that its author states (`cost_estimate`), those of attention where it is a kernel of
JAX that is known by its name, or those of its own code. A kernel of products reaches nearly the peak, but each step of
its grid takes time: on v5e, a product of 4096 x 4096 took 11.77 ms in blocks of 128 and 0.89 ms in blocks of 512 x
1024, one of 8192 x 8192 6.10 ms, each with 0.1 ms of the host.

Rule: a kernel of which nothing is known is counted as its bytes, which is said.
Source: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html (the measured times), for `Rates.product_share` and
`Rates.grid_step_s`.
"""

from __future__ import annotations

import re
from typing import Literal

from anytpu.planning.hlo import Computation, Instruction
from anytpu.planning.target import Target
from anytpu.planning.timing.attention import attention_flops
from anytpu.planning.timing.irregular import VECTOR, vector_alus
from anytpu.planning.timing.mosaic import KernelCode, code_of
from anytpu.planning.timing.price import OpPrice
from anytpu.planning.timing.rates import NARROW, Rates, fast_flops_per_s

_COST = {name: re.compile(rf'"{name}":"?(-?[\d.e+]+)') for name in ("flops", "bytes_accessed")}
_ATTENTION = ("splash", "flash")


def kernel_price(home: Computation, one: Instruction, moved: float, target: Target, rates: Rates) -> OpPrice:
    """Return the price of one execution of a kernel.

    Args:
        home: the computation that it stands in.
        one: the custom call.
        moved: bytes of the arrays that it is given and gives back.
        target: the system.
        rates: what one of its devices does.
    """
    stated = one.text[one.text.find('"cost_estimate"') :] if '"cost_estimate"' in one.text else ""
    flops, said = (float(match[1]) if (match := _COST[name].search(stated)) else 0.0 for name in _COST)
    code, remark, priced_by = code_of(one.text), "", "cost estimate"
    known = None if stated else attention_flops(one, [home.instructions[name] for name in one.operands])
    if known:
        flops, priced_by, counted = known, "roofline", "causal attention, by its name"
    elif not stated and code and code.steps is not None:
        flops, said, priced_by, counted = code.flops, code.bytes, "its code", "the products and blocks of its own code"
    elif not stated:
        priced_by, counted = "floor", "the bytes that it reads and writes, a floor"
    if not stated:
        remark = f"a Pallas kernel without cost_estimate; counted as {counted}"
    compute_s = flops / (share_of(one.name, rates) * rates.flops_per_s)
    if not one.name.startswith(_ATTENTION):
        # The share of attention was fitted on whole kernels: their vector instructions and steps are in it.
        compute_s = max(compute_s, _vector_s(code, target, rates)) + _steps(code, flops) * rates.grid_step_s
    memory_s = max(said, moved) / rates.streaming_bytes_per_s
    bound: Literal["compute", "memory"] = "compute" if compute_s >= memory_s else "memory"
    seconds = rates.start_s + max(compute_s, memory_s)
    least_s = max(_least_compute_s(home, one, flops, target), moved / target.hbm_bytes_per_s)
    return OpPrice(seconds, "kernel", bound, priced_by, flops, max(said, moved), remark, least_s)


def share_of(name: str, rates: Rates) -> float:
    """Return the share of the matrix units' peak that a kernel reaches, by its name."""
    if name.startswith(_ATTENTION):
        return rates.kernel_share
    if name.startswith(("gmm", "tgmm")):
        return rates.grouped_share
    return rates.ragged_share if name.startswith("ragged-dot") else rates.product_share


def _least_compute_s(home: Computation, one: Instruction, flops: float, target: Target) -> float:
    """Return the time of a kernel's products at peak; of attention 0, since its mask may leave out any part of them."""
    if one.name.startswith(_ATTENTION):
        return 0.0
    operands = (home.instructions[name].shapes for name in one.operands if name in home.instructions)
    types = {shape.dtype for shapes in operands for shape in shapes if len(shape.dims) > 1}
    return flops / (fast_flops_per_s(target) if types & set(NARROW) else target.flops_per_s)


def _steps(code: KernelCode | None, flops: float) -> float:
    """Return the steps of a kernel's grid: those that its products need, where its size is known only when it runs."""
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
