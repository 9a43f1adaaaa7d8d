"""`Clock`: walks over a program in order of execution and notes when what starts and ends.

Idea: a device does one thing after another, but for copies and collectives that it starts and waits for later. What
of these is not over when it is waited for is exposed, and takes time; the rest is hidden behind what was done
meanwhile. Copies share the memory, collectives the links, so that each of the two kinds queues up.

Rule: the body of a loop is walked once and counted as often as it runs; of a conditional, the longest branch.
"""

from __future__ import annotations

import dataclasses

from anytpu.planning.hlo import Computation, Instruction, Module, layer_of
from anytpu.planning.records import OpTime
from anytpu.planning.timing.pricing import OpPrice, Pricer, collective_in

_COPY_STARTS = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")


@dataclasses.dataclass
class _Pending:
    """Something that was started: when it will be over, what it is, and what it costs from start to end."""

    end_s: float
    price: OpPrice


@dataclasses.dataclass
class Clock:
    """A walk over one module.

    Attributes:
        module: what is walked over.
        pricer: who prices its instructions.
        ops: what was found, in order.
        unpriced: what nobody could price, in words.
    """

    module: Module
    pricer: Pricer
    ops: list[OpTime] = dataclasses.field(default_factory=list)
    unpriced: list[str] = dataclasses.field(default_factory=list)

    def run(self) -> float:
        """Walk over the program; return its time."""
        return self._walk(self.module.entry, 1)

    def _walk(self, home: Computation, count: int) -> float:
        """Walk over a computation that runs `count` times; return the time of once."""
        now_s = 0.0
        pending: dict[str, _Pending] = {}
        free_s = {"copy": 0.0, "collective": 0.0}
        for one in home.instructions.values():
            if self._is_start(one):
                self._start(home, one, now_s, pending, free_s)
            elif (started := self._waited_for(one, pending)) is not None:
                now_s += self._wait(one, started, now_s, count)
            elif one.opcode == "while":
                now_s += self._loop(one, count)
            elif one.opcode == "conditional":
                now_s += self._branch(one, count)
            elif one.opcode == "call" and one.called and collective_in(self.module, one) is None:
                now_s += self._walk(self.module.computations[one.called[0]], count)
            elif (price := self.pricer.price(home, one)) is not None:
                self._note(one, price, price.time_s, count)
                now_s += price.time_s
        return now_s

    def _is_start(self, one: Instruction) -> bool:
        if one.opcode.endswith("-start"):
            return True
        return one.opcode == "fusion" and one.name.startswith("async-collective-start")

    def _start(
        self, home: Computation, one: Instruction, now_s: float, pending: dict[str, _Pending], free_s: dict[str, float]
    ) -> None:
        if one.opcode in _COPY_STARTS or collective_in(self.module, one) is None:
            seconds, size = self.pricer.copy_s(home, one)
            price = OpPrice(seconds, "copy", "memory", "bandwidth", bytes=size)
        else:
            price = self.pricer.price(home, one)
            assert price is not None
        queue = "collective" if price.kind == "collective" else "copy"
        free_s[queue] = max(free_s[queue], now_s) + price.time_s
        pending[one.name] = _Pending(free_s[queue], price)

    def _waited_for(self, one: Instruction, pending: dict[str, _Pending]) -> _Pending | None:
        """Return what an instruction waits for, or None; what only carries a start on is kept under its own name."""
        started = next((pending[name] for name in one.operands if name in pending), None)
        if started is None:
            return None
        if one.opcode.endswith("-done") or one.name.startswith("async-collective-done"):
            return started
        if one.opcode.endswith("-update") or one.opcode in ("get-tuple-element", "tuple", "bitcast"):
            pending[one.name] = started
        return None

    def _wait(self, one: Instruction, started: _Pending, now_s: float, count: int) -> float:
        exposed_s = max(0.0, started.end_s - now_s)
        kind = "collective" if started.price.kind == "collective" else "copy"
        self._note(one, started.price._replace(kind=kind), exposed_s, count)
        return exposed_s

    def _loop(self, one: Instruction, count: int) -> float:
        trips = self.module.trip_count(one)
        if trips is None:
            self.unpriced.append(f"{one.name}: a loop of which nobody knows how often it runs; counted once")
            trips = 1
        condition, body = (self.module.computations[name] for name in one.called[:2])
        return trips * (self._walk(condition, count * trips) + self._walk(body, count * trips))

    def _branch(self, one: Instruction, count: int) -> float:
        longest: tuple[float, list[OpTime], list[str]] = (0.0, [], [])
        for name in one.called:
            inner = Clock(self.module, self.pricer)
            seconds = inner._walk(self.module.computations[name], count)
            if seconds >= longest[0]:
                longest = (seconds, inner.ops, inner.unpriced)
        self.ops += longest[1]
        self.unpriced += longest[2]
        return longest[0]

    def _note(self, one: Instruction, price: OpPrice, seconds: float, count: int) -> None:
        if price.remark:
            self.unpriced.append(f"{one.name}: {price.remark}")
        layer, is_backward = layer_of(one.op_name)
        source = self.module.source_of(one)
        self.ops.append(
            OpTime(
                name=one.name,
                opcode=one.opcode,
                kind=price.kind,
                time_s=seconds * count,
                count=count,
                flops=price.flops * count,
                bytes=price.bytes * count,
                layer=layer,
                source=str(source) if source else "",
                is_backward=is_backward,
                bound=price.bound,
                priced_by=price.priced_by,
            )
        )
