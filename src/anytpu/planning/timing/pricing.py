"""`price_of`: what one execution of one instruction takes on one device.

Idea: the compiler prices most instructions itself, in cycles. Where it is known to be wrong it is corrected: what
stands outside of any fusion it prices as if nothing overlapped, so there the bytes over the bandwidth count; and
nothing is faster than its bytes and its products allow. What it leaves unpriced is priced by bytes (copies), by the
network (collectives) or by what the author of a kernel says of it.

Rule: who priced it stands beside every price; None means that nobody could.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from anytpu.planning.hlo import Collective, Computation, Instruction, Module
from anytpu.planning.records import Kind
from anytpu.planning.target import Target
from anytpu.planning.timing.attention import attention_flops
from anytpu.planning.timing.dcn import Transfer, transfer_s
from anytpu.planning.timing.network import collective_price
from anytpu.planning.timing.rates import Rates
from anytpu.planning.timing.traffic import FREE, traffic_of

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_COST = {
    name: re.compile(rf'"{name}":"?(-?[\d.e+]+)') for name in ("flops", "bytes_accessed", "transcendentals")
}  # fmt: skip
_COPIES = ("copy", "transpose", "reshape", "concatenate", "pad", "slice", "dynamic-slice", "dynamic-update-slice")
# Custom calls that give new names to what is there, or set aside room.
_FREE_CALLS = (
    "ConcatBitcast",
    "AllocateBuffer",
    "PrepareAsyncCallStart",
    "PrepareAsyncCallDone",
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
)
# Rate of a type over that of bfloat16, where the unit of the chip knows it.
_PASSES = {"bf16x3": 3.0, "bf16x6": 6.0, "f32": 6.0}
HOST_SPACE = 5
"""What stands in S(n) for the host's memory."""
_HALF = ("s8", "u8", "s4", "u4", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz")


class OpPrice(NamedTuple):
    """What one execution takes.

    Attributes:
        time_s: from start to end, seconds.
        kind: what it keeps busy.
        bound: what limits it.
        priced_by: who said so.
        flops: of its products and convolutions.
        bytes: to and from the memory, or over the network.
        remark: why its price is a guess, or "".
    """

    time_s: float
    kind: Kind
    bound: Literal["compute", "memory", "network", ""]
    priced_by: str
    flops: float = 0.0
    bytes: float = 0.0
    remark: str = ""


class Pricer:
    """Prices instructions of one module for one target.

    Args:
        module: the module.
        target: the slice.
        rates: what one of its devices does.
    """

    def __init__(self, module: Module, target: Target, rates: Rates) -> None:
        self.module, self.target, self.rates = module, target, rates

    def price(self, home: Computation, one: Instruction) -> OpPrice | None:
        """Return the price of one execution; None for what costs nothing.

        Args:
            home: the computation that it stands in.
            one: an instruction that is neither a loop nor a branch.
        """
        if one.opcode in FREE:
            return None
        if one.opcode == "custom-call":
            return self._custom_call(home, one)
        if one.cycles is not None:
            return self._by_cycles(home, one)
        return self._by_bytes(home, one)

    def copy_s(self, home: Computation, one: Instruction) -> tuple[float, float]:
        """Return seconds and bytes of an asynchronous copy, from its start instruction."""
        shapes = [shape for shape in one.shapes if shape.dims and shape.memory_space != 2]
        size = float(min((shape.padded_bytes for shape in shapes), default=0))
        is_of_host = any(shape.memory_space == HOST_SPACE for shape in shapes)
        return size / (self.rates.host_bytes_per_s if is_of_host else self.rates.streaming_bytes_per_s), size

    def collective(self, found: Collective) -> OpPrice:
        """Return the price of a collective from start to end."""
        priced = collective_price(found, self.target, self.rates)
        return OpPrice(priced.time_s, "collective", "network", "network", bytes=priced.bytes)

    def transfer(self, half: Transfer) -> OpPrice:
        """Return the price of an exchange with other slices from start to end."""
        seconds, sent = transfer_s(half, self.target)
        return OpPrice(seconds, "collective", "network", "network", bytes=sent)

    def _custom_call(self, home: Computation, one: Instruction) -> OpPrice | None:
        match = _TARGET.search(one.text)
        name = match[1] if match else ""
        if name in _FREE_CALLS:
            return None
        moved = traffic_of(self.module, home, one)
        if one.cycles is not None:
            return self._by_cycles(home, one)
        if name != "tpu_custom_call":
            seconds = moved / self.rates.streaming_bytes_per_s
            remark = "" if moved <= 0 else f"a custom call to {name!r}; counted as the bytes that it reads and writes"
            return OpPrice(seconds, "memory", "memory", "bandwidth", bytes=moved, remark=remark)
        return self._kernel(home, one, moved)

    def _kernel(self, home: Computation, one: Instruction, moved: float) -> OpPrice:
        cost = one.text[one.text.find('"cost_estimate"') :] if '"cost_estimate"' in one.text else ""
        flops, said = (float(m[1]) if (m := _COST[name].search(cost)) else 0.0 for name in ("flops", "bytes_accessed"))
        remark, priced_by = "", "cost estimate"
        if not cost:
            known = attention_flops(one, [home.instructions[name] for name in one.operands])
            flops, priced_by = known or 0.0, "roofline" if known else "bandwidth"
            counted = "causal attention, by its name" if known else "the bytes that it reads and writes, a floor"
            remark = f"a Pallas kernel without cost_estimate; counted as {counted}"
        compute_s = flops / (self.rates.kernel_share * self.rates.flops_per_s)
        memory_s = max(said, moved) / self.rates.streaming_bytes_per_s
        bound: Literal["compute", "memory"] = "compute" if compute_s >= memory_s else "memory"
        seconds = self.rates.start_s + max(compute_s, memory_s)
        return OpPrice(seconds, "kernel", bound, priced_by, flops, max(said, moved), remark)

    def _by_cycles(self, home: Computation, one: Instruction) -> OpPrice:
        assert one.cycles is not None
        rates, moved = self.rates, traffic_of(self.module, home, one)
        flops = self.module.flops_by_dtype(one) if one.opcode in ("fusion", "convolution", "dot") else {}
        is_product = bool(flops) and ("CLASSIC" in one.text or one.opcode != "fusion")
        said_s = one.cycles / rates.clock_hz
        if moved:
            said_s = max(said_s - rates.early_s, 0.3 * said_s)
        compute_s = sum(count / self._peak(dtype) for dtype, count in flops.items())
        memory_s = moved / rates.streaming_bytes_per_s
        needed_s = max(compute_s, memory_s)
        seconds = rates.factor * (needed_s + rates.excess_share * max(0.0, said_s - needed_s))
        priced_by = "cycles" if said_s > needed_s else "roofline" if compute_s > memory_s else "bandwidth"
        ceiling = None if is_product else self._ceiling(one, moved)
        if ceiling is not None and (ceiling < seconds or said_s > needed_s):
            seconds, priced_by = min(ceiling, rates.factor * said_s), "bandwidth"
        bound: Literal["compute", "memory"] = "memory" if memory_s > max(compute_s, 0.5 * seconds) else "compute"
        kind: Kind = "matmul" if is_product else "memory" if _moves_only(self.module, one) else "vector"
        return OpPrice(seconds, kind, bound, priced_by, sum(flops.values()), moved)

    def _ceiling(self, one: Instruction, moved: float) -> float | None:
        """Return the most that an operation outside of any fusion takes: its traffic, as if it streamed."""
        if one.opcode == "fusion" or not moved:
            return None
        is_turned = one.opcode in ("copy", "transpose") and _reorders(one, self)
        share = self.rates.transpose_share if is_turned else self.rates.hbm_share
        return self.rates.start_s + moved / (self.rates.hbm_bytes_per_s * share)

    def _by_bytes(self, home: Computation, one: Instruction) -> OpPrice | None:
        moved = traffic_of(self.module, home, one)
        if not moved:
            return None
        seconds = self.rates.start_s + moved / self.rates.streaming_bytes_per_s
        kind: Kind = "memory" if one.opcode in _COPIES else "vector"
        remark = (
            "" if moved < 1e6 or kind == "memory" else "the compiler gives no cycles; counted as its bytes, a floor"
        )
        return OpPrice(seconds, kind, "memory", "bandwidth", bytes=moved, remark=remark)

    def _peak(self, dtype: str) -> float:
        chip = self.target.chip
        assert chip is not None
        fast = max(chip.int8_ops_per_s or 0.0, chip.fp8_flops_per_s or 0.0) / chip.replicas
        if dtype in _HALF and fast:
            return fast
        return self.rates.flops_per_s / _PASSES.get(dtype, 1.0)


def _reorders(one: Instruction, pricer: Pricer) -> bool:
    home = pricer.module.home_of(one)
    operand = home.instructions.get(one.operands[0]) if one.operands else None
    return operand is None or operand.shapes[0].minor_to_major != one.shapes[0].minor_to_major


def _moves_only(module: Module, one: Instruction) -> bool:
    if one.opcode != "fusion":
        return one.opcode in _COPIES
    inner = module.computations[one.called[0]].instructions.values()
    return all(
        step.opcode in FREE or step.opcode in _COPIES or step.opcode in ("broadcast", "convert") for step in inner
    )
