"""`Clock`: walk over a program in order of execution and note when each operation starts and ends.

Idea: a device runs one operation after another, except for asynchronous copies and collectives, which it starts and
waits for later. The part of these that is not over at the wait is exposed, and takes time; the rest is hidden behind
other work. Copies share the memory, collectives the links, and slices the hosts' network, so each kind has a queue.

Rule: the body of a loop is walked once and multiplied by its trip count. A conditional counts its longest branch, but
only the time of its cheapest branch is certain. A sentence names an operation by its layer, its primitive or its
kernel's function, and its line. The compiler's name, "fusion.312", is used if none of these is known.
"""

from __future__ import annotations

import dataclasses
import re

from anytpu.planning.hlo import Collective, Computation, HloInstruction, Module, collective_of, is_recomputed, layer_of
from anytpu.planning.records import OpPrice, OpTime
from anytpu.planning.timing.mosaic import code_of
from anytpu.planning.timing.network import Transfer, is_between_slices, transfer_of, transfer_price
from anytpu.planning.timing.pricing import HOST_SPACE, REMARKED_S, OpPricer
from anytpu.units import format_seconds

_PRIMITIVE = re.compile(r"[a-z][a-z0-9_-]*")
_NUMBER = re.compile(r"(\.\d+)+$")


@dataclasses.dataclass
class _PendingWork:
    """An asynchronous operation in progress: its end, and its price from start to end."""

    end_s: float
    price: OpPrice


class _Started:
    """The asynchronous operations of a computation that were started and not waited for yet."""

    def __init__(self) -> None:
        # Work in progress, by the name of its start, by a name that passes the start on, and by channel.
        self._pending: dict[str | int, _PendingWork] = {}
        # The time at which each queue is free.
        self._free_s: dict[str, float] = {}
        # Copies through the memory that may still run.
        self._copies: list[_PendingWork] = []
        # The name of an exchange between slices, by the instruction whose wait ends it.
        self._exchanges: dict[str, str] = {}

    def begin(self, instruction: HloInstruction, collective: Collective | None, price: OpPrice, now_s: float) -> None:
        """Note the start of an operation, when its queue is free."""
        queue = _queue(instruction, collective)
        # The operations of a queue run one after the other, in the order of their starts.
        end_s = max(self._free_s.get(queue, 0.0), now_s) + price.time_s
        self._free_s[queue] = end_s
        self._pending[instruction.name] = _PendingWork(end_s, price)
        if queue == "memory":
            self._copies.append(self._pending[instruction.name])
        # The done of a fused collective need not read its start; both have the same channel.
        if collective and collective.channel is not None:
            self._pending[collective.channel] = self._pending[instruction.name]

    def share_memory(self, traffic_s: float, now_s: float) -> None:
        """Delay the copies in progress by the traffic of an operation that runs beside them, seconds."""
        self._copies = [copy for copy in self._copies if copy.end_s > now_s]
        for copy in self._copies:
            copy.end_s += traffic_s
        if self._copies:
            self._free_s["memory"] += traffic_s

    def exchange(
        self, instruction: HloInstruction, half: Transfer, is_answered: bool, price: OpPrice, now_s: float
    ) -> None:
        """Note the start of one half of an exchange with other slices; it ends when the sent data has been answered."""
        if half.way == "send" or not is_answered:
            end_s = max(self._free_s.get("slices", 0.0), now_s) + price.time_s
            self._free_s["slices"] = end_s
            self._pending[half.name] = _PendingWork(end_s, price)
        if half.way == "recv" or not is_answered:
            # A wait for a "send" that is answered is a wait for the copy to the host alone.
            self._exchanges[instruction.name] = half.name

    def ended_by(self, instruction: HloInstruction, collective: Collective | None) -> _PendingWork | None:
        """Return the operation that an instruction waits for, or None.

        An instruction that only passes a start on stands for it from then on.
        """
        names = (self._exchanges.get(operand.name, operand.name) for operand in instruction.operands)
        pending = next((self._pending[name] for name in names if name in self._pending), None)
        if collective and collective.stage == "done":
            return pending or (self._pending.get(collective.channel) if collective.channel is not None else None)
        if pending and instruction.opcode.endswith("-done"):
            return pending
        if pending and (
            instruction.opcode.endswith("-update") or instruction.opcode in ("get-tuple-element", "tuple", "bitcast")
        ):
            self._pending[instruction.name] = pending
        return None


def _queue(instruction: HloInstruction, collective: Collective | None) -> str:
    """Return the resource of an operation: the memory, the wires to the host, the links, or the links of one
    direction."""
    if collective is None:
        spaces = [shape.memory_space for shape in instruction.shapes[:2]]
        return ("host", "device")[spaces.index(HOST_SPACE)] if HOST_SPACE in spaces else "memory"
    if collective.kind == "collective-permute" and collective.pairs:
        # Permutations in two directions run at once. The median decides, because the pair that closes a ring has the
        # other sign.
        steps = sorted(destination - source for source, destination in collective.pairs)
        return "links forwards" if steps[len(steps) // 2] > 0 else "links backwards"
    return "links"


def _is_start(instruction: HloInstruction, collective: Collective | None) -> bool:
    return collective.stage == "start" if collective else instruction.opcode.endswith("-start")


def _exchanged(home: Computation) -> frozenset[tuple[str, str]]:
    """Return the halves of exchanges with other slices that start in a computation: name and direction of each."""
    halves = (transfer_of(instruction) for instruction in home.instructions.values())
    return frozenset((half.name, half.way) for half in halves if half)


@dataclasses.dataclass
class Clock:
    """A walk over one module.

    Attributes:
        module: the module.
        pricer: prices its instructions.
        ops: the operations so far, in order of execution.
        unpriced: operations without a price, a text each.
        is_endless: whether a loop of unknown length was met, so that the time is a minimum.
    """

    module: Module
    pricer: OpPricer
    ops: list[OpTime] = dataclasses.field(default_factory=list)
    unpriced: list[str] = dataclasses.field(default_factory=list)
    is_endless: bool = False

    def run(self) -> float:
        """Walk over the program; return its time, seconds."""
        return self._walk(self.module.entry, 1)

    def _walk(self, home: Computation, count: int) -> float:
        """Walk over a computation that runs `count` times; return the time of one execution, seconds."""
        now_s = 0.0
        started, halves = _Started(), _exchanged(home)
        for instruction in home.instructions.values():
            collective = collective_of(instruction)
            # 1. Instructions that run other computations.
            if instruction.opcode == "while":
                now_s += self._loop(instruction, count)
            elif instruction.opcode == "conditional":
                now_s += self._branch(instruction, count)
            # 2. Starts of asynchronous operations: they take no time here, and their queue is busy until they end.
            elif half := transfer_of(instruction):
                other = (half.name, "recv" if half.way == "send" else "send")
                price = transfer_price(half, self.pricer.target)
                started.exchange(instruction, half, other in halves, price, now_s)
            elif _is_start(instruction, collective) and (price := self.pricer.price(instruction, collective)):
                started.begin(instruction, collective, price, now_s)
            # 3. Waits for them: only the exposed rest takes time.
            elif pending := started.ended_by(instruction, collective):
                now_s += self._wait(instruction, pending, now_s, count)
            elif instruction.opcode == "recv-done" and is_between_slices(instruction):
                name = user_name(self.module, instruction)
                self.unpriced.append(f"{name}: an exchange between slices that began elsewhere; taken for hidden")
            # 4. All others take their time here. A call with a collective in it is priced as the collective.
            elif instruction.opcode == "call" and instruction.called and not collective:
                now_s += self._walk(instruction.bodies[0], count)
            elif price := self.pricer.price(instruction, collective):
                self._note(instruction, price, price.time_s, count)
                if price.bytes and not collective:
                    started.share_memory(price.bytes / self.pricer.rates.streaming_bytes_per_s, now_s)
                now_s += price.time_s
        return now_s

    def _wait(self, instruction: HloInstruction, started: _PendingWork, now_s: float, count: int) -> float:
        exposed_s = max(0.0, started.end_s - now_s)
        price = started.price if exposed_s else started.price._replace(remark="")
        self._note(instruction, price, exposed_s, count)
        return exposed_s

    def _loop(self, instruction: HloInstruction, count: int) -> float:
        trips = self.module.trip_count(instruction)
        if trips is None:
            self.unpriced.append(
                f"{user_name(self.module, instruction)}: a loop of which nobody knows how often it runs; counted once"
            )
            self.is_endless = True
            trips = 1
        # `ops` has the time of all executions; the returned time is that of one.
        condition, body = instruction.bodies[:2]
        trip = self.pricer.trip()
        self._note(instruction, trip, trip.time_s, count * trips)
        return trips * (trip.time_s + self._walk(condition, count * trips) + self._walk(body, count * trips))

    def _branch(self, instruction: HloInstruction, count: int) -> float:
        # Each branch gets a clock of its own: the operations of the shorter ones are dropped.
        branches: list[tuple[float, Clock]] = []
        for body in instruction.bodies:
            inner = Clock(self.module, self.pricer)
            branches.append((inner._walk(body, count), inner))
        if not branches:
            return 0.0
        seconds, longest = max(branches, key=lambda branch: branch[0])
        clocks = [inner for _, inner in branches]
        # A loop of unknown length in any branch leaves the interval without an end.
        self.is_endless |= any(inner.is_endless for inner in clocks)
        # The interval does not cover the other branches, so a text says that too.
        self.unpriced += [said for inner in clocks if inner is longest or inner.is_endless for said in inner.unpriced]
        self.ops += _bounded(longest.ops, clocks)
        shortest_s = min(branch[0] for branch in branches)
        if (seconds - shortest_s) * count > REMARKED_S:
            between = f"between {format_seconds(shortest_s)} and {format_seconds(seconds)}"
            self.unpriced.append(f"{user_name(self.module, instruction)}: {between}; the longest branch is counted")
        return seconds

    def _note(self, instruction: HloInstruction, price: OpPrice, seconds: float, count: int) -> None:
        if price.remark:
            self.unpriced.append(f"{user_name(self.module, instruction)}: {price.remark}")
        self.is_endless |= price.is_endless
        layer, is_backward = layer_of(instruction.op_name)
        self.ops.append(
            OpTime(
                name=instruction.name,
                opcode=instruction.opcode,
                kind=price.kind,
                time_s=seconds * count,
                count=count,
                flops=price.flops * count,
                bytes=price.bytes * count,
                least_s=price.least_s * count,
                optional_s=price.optional_s * count,
                further_s=price.further_s * count,
                layer=layer,
                source=self.module.source_of(instruction),
                is_backward=is_backward,
                is_recomputed=is_recomputed(instruction.op_name),
                bound=price.bound,
                priced_by=price.priced_by,
                collective=price.collective,
                dtype=price.dtype,
            )
        )


def _bounded(ops: list[OpTime], branches: list[Clock]) -> list[OpTime]:
    """Return the operations of the longest branch, of which only the minimum time of any branch is certain."""
    total_s = sum(op.time_s for op in ops)
    if not total_s:
        return ops
    own_least_s = sum(op.least_s for op in ops)
    least_s = min(sum(op.least_s for op in inner.ops) for inner in branches)
    certain_s = min(sum(op.time_s - op.optional_s for op in inner.ops) for inner in branches)
    most_s = max(sum(op.time_s + op.further_s for op in inner.ops) for inner in branches)
    # Each operation has a share of the bounds, so that their sums are the bounds of the conditional.
    return [
        dataclasses.replace(
            op,
            least_s=op.least_s * least_s / own_least_s if own_least_s else 0.0,
            optional_s=op.time_s * (1 - certain_s / total_s),
            further_s=op.time_s * (most_s / total_s - 1),
        )
        for op in ops
    ]


def user_name(module: Module, instruction: HloInstruction) -> str:
    """Return the name of an operation: "sort of 'router' (moe.py:33)", "my_kernel (model.py:9)", or "fusion.312"."""
    layer, is_backward = layer_of(instruction.op_name)
    source = module.source_of(instruction)
    if not layer and not source:
        return instruction.name
    name = instruction.op_name.rpartition("/")[2]
    if instruction.call_target == "tpu_custom_call":
        # The compiler names it by `pallas_call(name=...)`, else by the layer or the function around the call.
        code = code_of(instruction.text)
        name = code.name if code and code.name else _NUMBER.sub("", instruction.name)
    elif not _PRIMITIVE.fullmatch(name):
        name = instruction.name
    return "".join(
        (name, f" of {layer!r}" if layer else "", ", backward" * is_backward, f" ({source})" if source else "")
    )
