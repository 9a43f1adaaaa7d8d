"""The units of the chip, one cycle after another: slow and obvious. A witness for `anytpu.chip.timing.time`."""

from __future__ import annotations

import collections
import dataclasses

from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import (
    Activate,
    ArrayInstruction,
    Instruction,
    InterruptHost,
    ReadHostMemory,
    ReadWeights,
    Sync,
    WriteHostMemory,
)
from anytpu.chip.isa.units import Unit

NEVER = 10**9


@dataclasses.dataclass
class Step:
    """An instruction in a queue, and how many instructions of each unit it waits for."""

    instruction: Instruction
    waits: dict[int, int]
    passes_left: int = 1


class Literal:
    """All state of the chip at the start of a cycle. The host is unit 5. Rates must give whole cycles."""

    def __init__(self, image: Image, design: Design, drain: int, sync: int):
        self.design, self.drain, self.sync, self.now = design, drain, sync, 0
        self.queues: list[collections.deque[Step]] = [collections.deque() for _ in range(6)]
        self.done_at: list[list[int]] = [[] for _ in range(6)]  # when each was done; NEVER while a table is on its way
        self.busy_until = [0] * 6
        self.memory: collections.deque[tuple[ReadWeights, int, int]] = collections.deque()  # what was sent for
        self.fetching: tuple[ReadWeights, int, int, int] | None = None  # what, its place, its number, until when
        self.places = 0  # of the FIFO, that are taken or fetched into
        self.fifo = self.parameters = 0
        self.shifting_until = -1
        self.is_second_plane_loaded = False
        self.causes = collections.Counter[str]()
        self._issue(image)
        self.issued = [len(queue) for queue in self.queues]

    def _issue(self, image: Image) -> None:
        pending: list[dict[int, int]] = [{} for _ in range(6)]

        def issued(unit: int) -> int:
            return len(self.queues[unit])

        for instruction in image.instructions:
            if isinstance(instruction, Sync):
                for waiting in range(5):
                    if instruction.waiting & 1 << waiting:
                        pending[waiting].update({u: issued(u) for u in range(5) if instruction.finished & 1 << u})
            elif isinstance(instruction, InterruptHost):
                self.queues[5].append(Step(instruction, {unit: issued(unit) for unit in range(5)}))
                for unit in range(5):
                    pending[unit][5] = issued(5)
            elif instruction.unit is not None:
                passes = instruction.repeat if isinstance(instruction, ArrayInstruction) else 1
                self.queues[instruction.unit].append(Step(instruction, pending[instruction.unit], passes))
                pending[instruction.unit] = {}

    def run(self, most_cycles: int) -> int | None:
        """Return the cycles of the run; None if it has not ended after `most_cycles`."""
        while self.now < most_cycles:
            while self._move():
                pass
            ends = [time for times in self.done_at for time in times]
            if [len(times) for times in self.done_at] == self.issued and self.now >= max(ends, default=0):
                return self.now
            self.causes[self._cause()] += 1
            self.now += 1
        return None

    def _is_held(self, step: Step) -> bool:
        for unit, count in step.waits.items():
            times = self.done_at[unit][:count]
            if len(times) < count or any(time + self.sync > self.now for time in times):
                return True
        return False

    def _move(self) -> bool:
        """Let whatever can happen in this cycle happen; say whether anything did."""
        moved = self._memory_moves() or self._shift_moves() or self._matrix_moves()
        for unit in (Unit.READ, Unit.WEIGHTS, Unit.ACTIVATE, Unit.WRITE, 5):
            moved = self._starts(unit) or moved
        return moved

    def _starts(self, unit: int) -> bool:
        queue = self.queues[unit]
        if not queue or self.busy_until[unit] > self.now or self._is_held(queue[0]):
            return False
        one, clock = queue[0].instruction, self.design.clock_hz
        cycles = 0.0
        if isinstance(one, ReadHostMemory | WriteHostMemory):
            cycles = one.units * 32 / self.design.host_bytes_per_s * clock
        elif isinstance(one, ReadWeights):
            self.memory.extend((one, len(self.done_at[unit]), number) for number in range(one.count))
        elif isinstance(one, Activate):
            if one.operation == "scale" and not one.keep:
                if not self.parameters:
                    return False
                self.parameters -= 1
            cycles = one.rows
        queue.popleft()
        assert cycles == int(cycles)
        self.busy_until[unit] = self.now + int(cycles)
        is_table = isinstance(one, ReadWeights) and one.kind == "table"
        self.done_at[unit].append(NEVER if is_table else self.busy_until[unit])
        return True

    def _memory_moves(self) -> bool:
        if self.fetching and self.fetching[3] <= self.now:
            one, place, number, _ = self.fetching
            if one.kind == "tile":
                self.fifo += 1
            elif one.kind == "parameters":
                self.parameters += 1
            elif number == one.count - 1:
                self.done_at[Unit.WEIGHTS][place] = self.now
            self.fetching = None
            return True
        if self.fetching is None and self.memory:
            one, place, number = self.memory[0]
            if one.kind == "tile" and self.places == self.design.weight_fifo_tiles:
                return False
            self.places += one.kind == "tile"
            sizes = {"tile": self.design.tile_bytes, "parameters": 8 * self.design.array, "table": 256}
            cycles = sizes[one.kind] / self.design.weight_bytes_per_s * self.design.clock_hz
            assert cycles == int(cycles)
            self.memory.popleft()
            self.fetching = one, place, number, self.now + int(cycles)
            return True
        return False

    def _shift_moves(self) -> bool:
        if self.shifting_until == self.now:
            self.shifting_until, self.is_second_plane_loaded = -1, True
            self.fifo, self.places = self.fifo - 1, self.places - 1
            return True
        if self.fifo and self.shifting_until < 0 and not self.is_second_plane_loaded:
            self.shifting_until = self.now + self.design.array
            return True
        return False

    def _needs_tile(self, step: Step) -> bool:
        one = step.instruction
        assert isinstance(one, ArrayInstruction)
        return not (one.keep and step.passes_left == one.repeat)

    def _matrix_moves(self) -> bool:
        queue = self.queues[Unit.MATRIX]
        if not queue or self.busy_until[Unit.MATRIX] > self.now or self._is_held(queue[0]):
            return False
        step = queue[0]
        one = step.instruction
        assert isinstance(one, ArrayInstruction)
        if self._needs_tile(step):
            if not self.is_second_plane_loaded:
                return False
            self.is_second_plane_loaded = False
        self.busy_until[Unit.MATRIX] = self.now + one.rows * (2 if one.wide else 1)
        step.passes_left -= 1
        if not step.passes_left:
            queue.popleft()
            self.done_at[Unit.MATRIX].append(self.busy_until[Unit.MATRIX] + self.drain)
        return True

    def _cause(self) -> str:
        queue = self.queues[Unit.MATRIX]
        if self.busy_until[Unit.MATRIX] > self.now:
            return "active"
        if not queue or self._is_held(queue[0]) or not self._needs_tile(queue[0]):
            return "other"
        return "shift" if self.shifting_until > self.now else "stall"
