"""`OpPricer`: the time of one execution of one instruction on one device.

Idea: the compiler prices most instructions itself, in cycles. These are corrected where they are known to be wrong.
Outside of fusions the compiler assumes no overlap, so there the bytes over the bandwidth count. Nothing is faster than
its bytes and its products allow. Instructions without cycles are priced by their instructions (sorts, gathers, ...), by
bytes (copies), by the network (collectives), or by the code of a kernel. Scalars belong to the scalar unit, which never
waits for the main memory.

Rule: each price names its source; None means no cost.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from anytpu.planning.hlo import Collective, HloInstruction, Module, Shape, flops_of
from anytpu.planning.records import Kind, OpPrice
from anytpu.planning.records.target import Target
from anytpu.planning.timing.irregular import LATENCY_S, VECTOR, counted_time, vector_alus
from anytpu.planning.timing.kernels import kernel_price
from anytpu.planning.timing.network import collective_price
from anytpu.planning.timing.rates import NARROW, Rates, fast_flops_per_s
from anytpu.planning.timing.traffic import FREE, SLICED, Traffic, largest_read, part_of, traffic_of

_COPIES = ("copy", "transpose", "reshape", "concatenate", "pad", "slice", "dynamic-slice", "dynamic-update-slice")
# Custom calls that rename a value, or reserve memory.
_FREE_CALLS = (
    "ConcatBitcast",
    "AllocateBuffer",
    "PrepareAsyncCallStart",
    "PrepareAsyncCallDone",
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
)
# Passes of the matrix unit for a product of these types: the peak is that of bfloat16 divided by them.
_PASSES = {"bf16x3": 3.0, "bf16x6": 6.0, "f32": 6.0}
HOST_SPACE = 5
"""The memory space of the host's memory: n of S(n)."""


SCALAR_CYCLES = 10  # a guess: a load from the scalar unit's memory takes 4 (read on v4), an operation, a store
TRIP_CYCLES = 100  # a guess: a fence is 11 cycles (read on v4); then a branch, and addresses for the next trip
STREAMED_RATIO = 4.0
"""Minimum ratio of the time of a product's bytes to that of its FLOPs from which it streams: up to 60 rows on v5e."""

STREAMED_SHARE = 0.9
"""Minimum share of the bytes of such a product that its weight has."""

REMARKED_S = 5e-6
"""Operations shorter than this get no remark."""


@dataclasses.dataclass(frozen=True)
class OpPricer:
    """Prices the instructions of one module for one target.

    Attributes:
        module: the module.
        target: the slice.
        rates: rates of one device.
    """

    module: Module
    target: Target
    rates: Rates

    def price(self, instruction: HloInstruction, collective: Collective | None = None) -> OpPrice | None:
        """Return the price of one execution, or of a start from start to end; None for an instruction without cost.

        Args:
            instruction: an instruction that is neither a loop nor a branch.
            collective: the collective that it is, starts or waits for, or None.
        """
        opcode, target_name = instruction.opcode, instruction.call_target
        # 1. Work beside the other operations, from its start to its end; the wait for it has no price of its own.
        if collective:
            if collective.stage == "done":
                return None
            price = collective_price(collective, self.target, self.rates)
            return price._replace(collective=collective.kind, dtype=collective.dtype)
        # 2. No work.
        if opcode in (*FREE, "send-done", "recv-done") or target_name in _FREE_CALLS:
            return None
        if opcode.endswith("-start"):
            return self._offloaded(instruction) if opcode == "call-start" else self._copy(instruction)
        # 3. The sources of a price, the most exact one first: the compiler's cycles, the code of a kernel, a count of
        # vector instructions, the bytes of a copy.
        if instruction.cycles is None and _is_scalar(instruction):
            return OpPrice(SCALAR_CYCLES / self.rates.clock_hz, "vector", "compute", "the scalar unit")
        moved = traffic_of(instruction)
        if instruction.cycles is not None:
            return self._by_cycles(instruction, moved)
        if target_name == "tpu_custom_call":
            constants = [self.module.literal(operand) for operand in instruction.operands]
            return kernel_price(instruction, constants, moved.bytes, self.target, self.rates)
        if counted := self._by_count(instruction, moved):
            return counted
        if opcode in _COPIES:
            seconds = self._streamed_s(moved) or self._passed_s(instruction)
            return OpPrice(seconds, "memory", "memory", "bandwidth", bytes=moved.bytes, least_s=self._least_s(moved))
        # 4. Nothing is known but the bytes.
        is_call = opcode == "custom-call"
        why = f"a custom call to {target_name!r}" if is_call else "the compiler gives no cycles"
        return self._floor(instruction, moved, f"{why}; counted as its bytes, a floor")

    def trip(self) -> OpPrice:
        """Return the price of one iteration of a loop, beside its condition and its body."""
        return OpPrice(TRIP_CYCLES / self.rates.clock_hz, "vector", "compute", "the scalar unit")

    def _copy(self, instruction: HloInstruction) -> OpPrice:
        """Return the price of an asynchronous copy, from its start instruction."""
        shapes = [shape for shape in instruction.shapes if shape.dims and shape.memory_space != 2]
        size = float(min((shape.padded_bytes for shape in shapes), default=0))
        is_of_host = any(shape.memory_space == HOST_SPACE for shape in shapes)
        rate = self.rates.host_bytes_per_s if is_of_host else self.rates.streaming_bytes_per_s
        return OpPrice(size / rate, "copy", "memory", "bandwidth", bytes=size)

    def _offloaded(self, instruction: HloInstruction) -> OpPrice:
        """Return the price of work that SparseCores do beside the other units, from its start: a gather, a scatter, a
        copy.

        Its first operand is the table whose rows are read or changed.
        """
        arrays = [shape for shape in instruction.shapes if math.prod(shape.dims) > 1]
        rows = [shape for shape in arrays if shape.dims != arrays[0].dims] or arrays[:1]
        moved = 2.0 * sum(shape.padded_bytes for shape in rows)
        remark = "done by SparseCores; counted as the bytes of its rows, a floor"
        return OpPrice(moved / self.rates.streaming_bytes_per_s, "copy", "memory", "floor", bytes=moved, remark=remark)

    def _by_cycles(self, instruction: HloInstruction, moved: Traffic) -> OpPrice:
        # 1. The compiler's estimate counts only as far as it exceeds the peaks, and of the excess only a share.
        rates, flops = self.rates, _flops(instruction)
        is_product = bool(flops) and ("CLASSIC" in instruction.text or instruction.opcode != "fusion")
        said_s = self._said_s(instruction, moved, is_product)
        compute_s = sum(count / self._peak(dtype) for dtype, count in flops.items())
        memory_s = moved.bytes / rates.streaming_bytes_per_s
        needed_s = max(compute_s, memory_s)
        # A product of few rows streams its weights, which the compiler's cycles do not overlap.
        is_streamed = is_product and memory_s > STREAMED_RATIO * compute_s and _streams(instruction, moved)
        excess_share = rates.streamed_excess_share if is_streamed else rates.excess_share
        seconds = rates.factor * (needed_s + excess_share * max(0.0, said_s - needed_s))
        if not is_product and _multiplies_row(instruction):
            # The next weights arrive while these are multiplied. The cycles are those of a chip with one vector unit.
            seconds = max(needed_s, said_s * rates.row_share / vector_alus(self.target))
        priced_by = "cycles" if said_s > needed_s else "roofline" if compute_s > memory_s else "bandwidth"
        # 2. The bounds: no operation outside of fusions is slower than its streamed arrays, and none is faster than the
        # peaks of the chip and the latency of its memory.
        ceiling = None if is_product else self._ceiling(instruction, moved)
        # Outside of fusions the compiler's cycles are two to four times too high (docs/decisions/0014).
        if ceiling is not None and (ceiling < seconds or (moved.bytes and said_s > needed_s)):
            seconds, priced_by = min(ceiling, rates.factor * said_s), "bandwidth"
        least_s = max(self._least_s(moved), self._least_compute_s(compute_s))
        seconds = max(seconds, least_s, moved.ways * LATENCY_S)
        # 3. The unit that limits it, and the kind under which reports count it.
        # An operation whose bytes take more than half of its time is bound by the memory.
        bound: Literal["compute", "memory"] = "memory" if memory_s > max(compute_s, 0.5 * seconds) else "compute"
        busy: Kind = "matmul" if is_product else "memory" if _moves_only(instruction) else "vector"
        kind: Kind = "memory" if bound == "memory" else busy
        return OpPrice(seconds, kind, bound, priced_by, sum(flops.values()), moved.bytes, least_s=least_s)

    def _said_s(self, instruction: HloInstruction, moved: Traffic, is_product: bool) -> float:
        """Return the compiler's estimate, with half of the wait for the main memory that it includes.

        The compiler adds `early_s` to a product for each direction, in and out, and to other operations once, wherever
        their arrays are. Half of it is the observed latency of one direction.
        """
        assert instruction.cycles is not None
        said_s, half_s = instruction.cycles / self.rates.clock_hz, self.rates.early_s / 2
        early_s = half_s * (moved.ways if is_product else 2 - moved.ways)
        return max(said_s - early_s, 0.3 * said_s) if said_s > self.rates.early_s else said_s

    def _ceiling(self, instruction: HloInstruction, moved: Traffic) -> float | None:
        """Return the maximum time of an operation outside of any fusion: its arrays as if they streamed.

        An array in on-chip memory takes no longer than one in the main memory.
        """
        passed = moved.bytes if instruction.opcode in SLICED else _passed_bytes(instruction)
        if instruction.opcode in ("fusion", "custom-call") or not passed:
            return None
        is_turned = instruction.opcode in ("copy", "transpose") and _reorders(instruction)
        share = self.rates.transpose_share if is_turned else self.rates.hbm_share
        return self.rates.start_s + passed / (self.rates.hbm_bytes_per_s * share)

    def _by_count(self, instruction: HloInstruction, moved: Traffic) -> OpPrice | None:
        """Return the price of a sort, a gather, ... by its instructions, or None for another operation."""
        counted = counted_time(instruction, self.target, self.rates.clock_hz)
        if counted is None:
            return None
        memory_s = self._streamed_s(moved)
        seconds, is_computing = max(counted.time_s, memory_s), counted.time_s >= memory_s
        kind, bound = ("vector", "compute") if is_computing else ("memory", "memory")
        said = f"the compiler gives no cycles; counted by its {counted.counted_by}"
        remark = said if seconds > REMARKED_S else ""
        return OpPrice(seconds, kind, bound, counted.counted_by, 0.0, moved.bytes, remark, self._least_s(moved))

    def _floor(self, instruction: HloInstruction, moved: Traffic, remark: str) -> OpPrice:
        flops, rates = _flops(instruction), self.rates
        peak_s = sum(count / self._peak(dtype) for dtype, count in flops.items())
        # The excess that the compiler's cycles would have, as those of other products of the chip.
        compute_s = rates.factor * peak_s * (1 + rates.excess_share * (1 / rates.said_share - 1))
        seconds = max(self._streamed_s(moved), self._passed_s(instruction), compute_s)
        remark = remark if seconds > REMARKED_S else ""
        least_s, total = max(self._least_s(moved), self._least_compute_s(peak_s)), sum(flops.values())
        if compute_s == seconds > 0:
            remark = remark.replace("counted as its bytes, a floor", "counted as the chip's products with cycles")
            return OpPrice(seconds, "matmul", "compute", "products", total, moved.bytes, remark, least_s)
        return OpPrice(seconds, "memory", "memory", "floor", total, moved.bytes, remark, least_s)

    def _streamed_s(self, moved: Traffic) -> float:
        return self.rates.start_s + moved.bytes / self.rates.streaming_bytes_per_s if moved.bytes else 0.0

    def _passed_s(self, instruction: HloInstruction) -> float:
        """Return the time of loading and storing an operation's arrays once in on-chip memory, seconds."""
        return _passed_bytes(instruction) / (4 * VECTOR * self.rates.clock_hz)

    def _least_s(self, moved: Traffic) -> float:
        return moved.bytes / self.target.max_hbm_bytes_per_s

    def _least_compute_s(self, compute_s: float) -> float:
        return compute_s * self.rates.flops_per_s / self.target.flops_per_s

    def _peak(self, dtype: str) -> float:
        fast = fast_flops_per_s(self.target)
        if dtype in NARROW and fast > self.target.flops_per_s:
            return fast
        return self.rates.flops_per_s / _PASSES.get(dtype, 1.0)


def _flops(instruction: HloInstruction) -> dict[str, float]:
    return flops_of(instruction) if instruction.opcode in ("fusion", "convolution", "dot") else {}


def _passed_bytes(instruction: HloInstruction) -> int:
    """Return the bytes of an operation's arrays; if it takes or changes a part of an array, the part counts."""
    if instruction.opcode in SLICED and instruction.operands:
        return 2 * part_of(instruction).padded_bytes
    return sum(shape.padded_bytes for shape in _arrays(instruction))


def _arrays(instruction: HloInstruction) -> list[Shape]:
    """Return the results of an instruction and its operands."""
    return [shape for each in (instruction, *instruction.operands) for shape in each.shapes]


def _is_scalar(instruction: HloInstruction) -> bool:
    """Return whether an operation runs on the scalar unit: scalars in and out, wherever the compiler placed them."""
    if instruction.opcode in ("fusion", "custom-call", "infeed", "outfeed", "rng-get-and-update-state"):
        return False
    return all(math.prod(shape.dims) <= 1 for shape in _arrays(instruction))


def _reorders(copy: HloInstruction) -> bool:
    return copy.operands[0].shapes[0].minor_to_major != copy.shapes[0].minor_to_major


def _streams(product: HloInstruction, moved: Traffic) -> bool:
    """Return whether a product reads nearly all of its bytes of one operand, a weight."""
    return largest_read(product) >= STREAMED_SHARE * moved.bytes


def _multiplies_row(instruction: HloInstruction) -> bool:
    """Return whether an operation is a product of one row, which the compiler computes on the vector unit."""
    if instruction.opcode != "fusion" or not instruction.op_name.endswith("/dot_general"):
        return False
    taken = sum(shape.padded_bytes for operand in instruction.operands for shape in operand.shapes)
    return taken * (1 - STREAMED_SHARE) > sum(shape.padded_bytes for shape in instruction.shapes)


def _moves_only(instruction: HloInstruction) -> bool:
    if instruction.opcode != "fusion":
        return instruction.opcode in _COPIES
    steps = instruction.bodies[0].instructions.values()
    return all(step.opcode in FREE or step.opcode in (*_COPIES, "broadcast", "convert") for step in steps)
