"""`walk`: when each unit starts and ends each piece of its work.

Idea: who serves whom in which order is fixed by the program: units take their work in order, the Weight Memory serves
requests in order, the FIFO hands out tiles in order. So there is nothing to simulate cycle by cycle: each time is the
greatest of a few earlier times plus a duration. What is not known yet (a tile is only fetched when a place in the FIFO
is free, which a later product may free) is left until it is; units are asked in turn until all are through.

Rule: times are cycles. Those of the links are fractions; what a unit sees of them is the next whole cycle. So the
times of the matrix unit are whole numbers, and sums of them are exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from anytpu.chip.design import Design
from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.work import HOST, Queues, Work
from anytpu.errors import HazardError


class Pass(NamedTuple):
    """Rows going through the array with one tile, and what the matrix unit did since the pass before.

    Attributes:
        free: when the pass before had gone in.
        data, input, held: until when results of the chip, data of the host, and either of them or anything else that
            the instruction waits for were not there.
        shift: when its tile began to be shifted in; 0 when it was in the array.
        start, stop: from when to when its rows went in.
        work: of which it is a part.
    """

    free: float
    data: float
    input: float
    held: float
    shift: float
    start: float
    stop: float
    work: Work


class Stretch(NamedTuple):
    """A piece of work of another unit than the matrix unit, from `start` to `stop`."""

    start: float
    stop: float
    work: Work


class Walk:
    """The state of all units while they are asked in turn, and at the end what each did.

    Attributes:
        passes: of the matrix unit.
        stretches: of the other units, by their numbers; those of WEIGHTS are the fetches.
        done: for each unit, when its first 1, 2, ... instructions were done.
    """

    def __init__(self, name: str, queues: Queues, design: Design, latencies: Latencies):
        self.name, self.queues, self.design = name, queues.by_unit, design
        self.drain = 2 * design.array if latencies.drain_cycles is None else latencies.drain_cycles
        self.sync = latencies.sync_cycles
        self.passes: list[Pass] = []
        self.stretches: list[list[Stretch]] = [[] for _ in range(HOST + 1)]
        self.done: list[list[float]] = [[] for _ in range(HOST + 1)]
        self.sent: list[float] = []  # when each ReadWeights was sent
        self.tiles: list[float] = []  # when each was in the FIFO
        self.parameters: list[float] = []
        self._fetched = (0, 0)  # (instruction, how many of its things)
        self._memory_free = 0.0
        self._shifts: list[float] = []  # when each tile began to leave the FIFO for the array's second plane
        self._popped = 0  # tiles that products have taken from that plane
        self._plane_free = 0.0
        self._pass_of = 0  # of the product at the head, how many of its passes are through
        self._popped_parameters = 0

    def run(self) -> None:
        """Ask every unit in turn until all work is done.

        Raises:
            HazardError: some of it can never start.
        """
        moves = (self._send, self._fetch, self._multiply, self._activate, self._read, self._write, self._serve)
        while any([move() for move in moves]):  # a list, for each must have its turn
            pass
        for unit, queue in enumerate(self.queues):
            if len(self.done[unit]) < len(queue):
                raise HazardError(self._why_stuck(unit))

    @property
    def end(self) -> float:
        """When the last unit was done."""
        return max((done[-1] for done in self.done if done), default=0.0)

    def _ready(self, work: Work) -> float | None:
        """Return when all that a piece of work waits for is done; None if that is not known yet."""
        ready = 0.0
        for unit, count in work.waits:
            if len(self.done[unit]) < count:
                return None
            ready = max(ready, self.done[unit][count - 1] + self.sync)
        return ready

    def _finish(self, unit: int, time: float) -> None:
        done = self.done[unit]
        done.append(max(time, done[-1]) if done else time)

    def _simple(self, unit: int) -> bool:
        """Move a unit that only waits for others and for itself."""
        queue, stretches, moved = self.queues[unit], self.stretches[unit], False
        while len(stretches) < len(queue):
            work = queue[len(stretches)]
            ready = self._ready(work)
            if ready is None:
                break
            start = max(ready, stretches[-1].stop if stretches else 0.0)
            stretches.append(Stretch(start, math.ceil(start + work.cycles), work))
            self._finish(unit, stretches[-1].stop)
            moved = True
        return moved

    def _read(self) -> bool:
        return self._simple(Unit.READ)

    def _write(self) -> bool:
        return self._simple(Unit.WRITE)

    def _serve(self) -> bool:
        return self._simple(HOST)

    def _send(self) -> bool:
        queue, moved = self.queues[Unit.WEIGHTS], False
        while len(self.sent) < len(queue):
            ready = self._ready(queue[len(self.sent)])
            if ready is None:
                break
            self.sent.append(max(ready, self.sent[-1] if self.sent else 0.0))
            moved = True
        self._acknowledge()
        return moved

    def _fetch(self) -> bool:
        """Let the Weight Memory serve what was sent for, as far as the FIFO has places."""
        queue, moved = self.queues[Unit.WEIGHTS], False
        number, count = self._fetched
        depth = self.design.weight_fifo_tiles
        while number < len(self.sent):
            work, start = queue[number], max(self.sent[number], self._memory_free)
            if work.kind == "tile":
                place = len(self.tiles) - depth
                if place >= len(self._shifts):
                    break
                start = max(start, self._shifts[place] + self.design.array if place >= 0 else 0.0)
            self._memory_free = start + work.cycles
            seen = math.ceil(self._memory_free)
            self.stretches[Unit.WEIGHTS].append(Stretch(start, self._memory_free, work))
            if work.kind != "table":
                (self.tiles if work.kind == "tile" else self.parameters).append(seen)
                self._shift()
            count, moved = count + 1, True
            if count == work.passes:
                number, count = number + 1, 0
                if work.kind == "table":
                    self._finish(Unit.WEIGHTS, seen)
                    self._acknowledge()
        self._fetched = number, count
        return moved

    def _shift(self) -> None:
        """Shift the next tile in, if it has come and the second plane is free."""
        tile = len(self._shifts)
        if tile < len(self.tiles) and tile <= self._popped:
            self._shifts.append(max(self.tiles[tile], self._plane_free))

    def _acknowledge(self) -> None:
        """Call done what was sent for; a table is when it has arrived."""
        queue, done = self.queues[Unit.WEIGHTS], self.done[Unit.WEIGHTS]
        while len(done) < len(self.sent) and queue[len(done)].kind != "table":
            self._finish(Unit.WEIGHTS, self.sent[len(done)])

    def _multiply(self) -> bool:
        queue, done, before = self.queues[Unit.MATRIX], self.done[Unit.MATRIX], len(self.passes)
        while len(done) < len(queue) and self._go_through(queue[len(done)]):
            self._finish(Unit.MATRIX, self.passes[-1].stop + self.drain)
            self._pass_of = 0
        return len(self.passes) > before

    def _go_through(self, work: Work) -> bool:
        """Move the product at the head of the queue; say whether all of its passes are through."""
        while self._pass_of < work.passes:
            free = self.passes[-1].stop if self.passes else 0.0
            data = input_ = held = free
            if self._pass_of == 0 and work.waits:
                ready = self._ready(work)
                if ready is None:
                    return False
                held = max(free, ready)
                data, input_ = self._reasons(work, free)
            shift, loaded = 0.0, 0.0
            if work.pops == work.passes or self._pass_of:  # pops a tile
                if self._popped >= len(self._shifts):
                    return False
                shift = self._shifts[self._popped]
                loaded = shift + self.design.array
            start = max(held, loaded)
            if loaded:
                self._popped, self._plane_free = self._popped + 1, start
                self._shift()
            self.passes.append(Pass(free, data, input_, held, shift, start, start + work.cycles, work))
            self._pass_of += 1
        return True

    def _reasons(self, work: Work, free: float) -> tuple[float, float]:
        """Return until when results, and until when data of the host, were not there; both at least `free`."""
        data = input_ = free
        for unit, count in work.waits:
            time = self.done[unit][count - 1] + self.sync
            if unit == Unit.READ:
                input_ = max(input_, time)
            elif unit != HOST:
                data = max(data, time)
        return data, input_

    def _activate(self) -> bool:
        queue, stretches, moved = self.queues[Unit.ACTIVATE], self.stretches[Unit.ACTIVATE], False
        while len(stretches) < len(queue):
            work = queue[len(stretches)]
            ready, arrival = self._ready(work), 0.0
            if work.pops:
                if self._popped_parameters >= len(self.parameters):
                    break
                arrival = self.parameters[self._popped_parameters]
            if ready is None:
                break
            self._popped_parameters += work.pops
            start = max(ready, arrival, stretches[-1].stop if stretches else 0.0)
            stretches.append(Stretch(start, start + work.cycles, work))
            self._finish(Unit.ACTIVATE, stretches[-1].stop)
            moved = True
        return moved

    def _why_stuck(self, unit: int) -> str:
        work, places = self.queues[unit][len(self.done[unit])], self.design.weight_fifo_tiles
        return (
            f"Instruction {work.number} of {self.name!r} ({work.kind}) would wait for ever: what it waits for is not "
            f"sent for, or stands in a queue behind what waits for it. Send for all weights, in the order in which "
            f"they are used, and put a Sync only behind what it waits for; or turn up weight_fifo_tiles, which is "
            f"{places}."
        )
