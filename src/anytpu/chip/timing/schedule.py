"""`Schedule`: the start and end of each piece of work of each unit.

Idea: the program fixes every order: units take their work in order, the Weight Memory serves requests in order, and the
FIFO releases tiles in order. So no cycle-by-cycle simulation is needed: each time is the maximum of a few earlier times
plus a duration.

Some times are not known at first: a tile is fetched only when a FIFO entry is free, and a later product may free it. So
the units are advanced in turn, each as far as the known times allow, until all are done.

Rule: times are in cycles. Times of the links are fractional, and a unit sees them rounded up to the next cycle. So the
times of the matrix unit are integers, and their sums are exact.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from anytpu.chip.isa.design import Design
from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.work import HOST, UnitWork, WorkQueues
from anytpu.errors import HazardError


class ArrayPass(NamedTuple):
    """The rows of a product multiplied with one tile, and the waits of the matrix unit before. Times are in cycles.

    Attributes:
        free: time at which the last row of the previous pass went in.
        data: time at which all awaited results of the chip are ready, at least `free`.
        input: time at which all awaited data of the host is ready, at least `free`.
        held: time at which all awaited work is done, at least `free`.
        shift: time at which the shift of its tile begins; 0 if the array already holds the tile.
        start, stop: times at which its first and last rows go in.
        work: the product.
    """

    free: float
    data: float
    input: float
    held: float
    shift: float
    start: float
    stop: float
    work: UnitWork


class WorkInterval(NamedTuple):
    """A piece of work of a unit other than the matrix unit, from `start` to `stop`, in cycles."""

    start: float
    stop: float
    work: UnitWork


class Schedule:
    """The state of all units while they are advanced in turn, and finally their complete schedule.

    Attributes:
        name: name of the program.
        queues: the work of each unit, by index.
        design: the chip.
        drain: cycles from a product's last input row to its last sum.
        sync: cycles from the end of awaited work to the start of the waiting work.
        passes: passes of the matrix unit, in order.
        intervals: work of each other unit, by index; for WEIGHTS the fetches.
        done: for each unit, the times at which its first 1, 2, ... instructions are done, in cycles.
        sent: time at which each `ReadWeights` is sent, in cycles.
        tiles, parameters: time at which each is in its FIFO, in cycles.
    """

    def __init__(self, name: str, queues: WorkQueues, design: Design, latencies: Latencies):
        self.name, self.queues, self.design = name, queues.by_unit, design
        self.drain = 2 * design.array if latencies.drain_cycles is None else latencies.drain_cycles
        self.sync = latencies.sync_cycles
        self.passes: list[ArrayPass] = []
        self.intervals: list[list[WorkInterval]] = [[] for _ in range(HOST + 1)]
        self.done: list[list[float]] = [[] for _ in range(HOST + 1)]
        self.sent: list[float] = []  # time at which each ReadWeights is sent
        self.tiles: list[float] = []  # time at which each is in the FIFO
        self.parameters: list[float] = []
        self._fetched = (0, 0)  # (instruction, number of its transfers)
        self._memory_free = 0.0
        self._shifts: list[float] = []  # time at which each tile begins to leave the FIFO for the array's second plane
        self._popped = 0  # tiles that products have taken from that plane
        self._plane_free = 0.0
        self._pass_of = 0  # number of scheduled passes of the product at the head
        self._popped_parameters = 0

    def run(self) -> None:
        """Advance every unit in turn until all work is done.

        Raises:
            HazardError: some work can never start.
        """
        simple = [functools.partial(self._simple, unit) for unit in (Unit.READ, Unit.WRITE, HOST)]
        moves = (self._send, self._fetch, self._multiply, self._activate, *simple)
        while any([move() for move in moves]):  # a list, so that `any` does not skip a unit
            pass
        pairs = zip(self.queues, self.done, strict=True)
        left = [queue[len(done)] for queue, done in pairs if len(done) < len(queue)]
        if left:
            raise HazardError(self._why_stuck(min(left, key=lambda work: work.number)))

    @property
    def end(self) -> float:
        """The time at which the last unit is done, in cycles."""
        return max((done[-1] for done in self.done if done), default=0.0)

    def _ready(self, work: UnitWork) -> float | None:
        """Return the time at which all work that it waits for is done; None if it is not known yet."""
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
        """Advance a unit without FIFOs; return whether it made progress."""
        queue, intervals, moved = self.queues[unit], self.intervals[unit], False
        while len(intervals) < len(queue):
            work = queue[len(intervals)]
            ready = self._ready(work)
            if ready is None:
                break
            start = max(ready, intervals[-1].stop if intervals else 0.0)
            intervals.append(WorkInterval(start, math.ceil(start + work.cycles), work))
            self._finish(unit, intervals[-1].stop)
            moved = True
        return moved

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
        """Advance the Weight Memory: serve the sent requests until the FIFO is full."""
        queue, moved = self.queues[Unit.WEIGHTS], False
        number, count = self._fetched
        depth = self.design.weight_fifo_tiles
        while number < len(self.sent):
            # 1. A transfer starts when it is requested and the memory is free.
            work, start = queue[number], max(self.sent[number], self._memory_free)
            # 2. A tile also needs a FIFO entry: the tile `depth` before it must have left the FIFO completely.
            if work.kind == "tile":
                place = len(self.tiles) - depth
                if place >= len(self._shifts):
                    break
                start = max(start, self._shifts[place] + self.design.array if place >= 0 else 0.0)
            # 3. The item arrives; a tile may start to shift.
            self._memory_free = start + work.cycles
            seen = math.ceil(self._memory_free)
            self.intervals[Unit.WEIGHTS].append(WorkInterval(start, self._memory_free, work))
            if work.kind != "table":
                (self.tiles if work.kind == "tile" else self.parameters).append(seen)
                self._shift()
            # 4. After the last transfer of a request, the next request follows.
            count, moved = count + 1, True
            if count == work.passes:
                number, count = number + 1, 0
                if work.kind == "table":
                    self._finish(Unit.WEIGHTS, seen)
                    self._acknowledge()
        self._fetched = number, count
        return moved

    def _shift(self) -> None:
        """Schedule the shift of the next tile, if it is in the FIFO and the second plane is free."""
        tile = len(self._shifts)
        if tile < len(self.tiles) and tile <= self._popped:
            self._shifts.append(max(self.tiles[tile], self._plane_free))

    def _acknowledge(self) -> None:
        """Mark sent requests as done, up to the first table; a table is done when it arrives."""
        queue, done = self.queues[Unit.WEIGHTS], self.done[Unit.WEIGHTS]
        while len(done) < len(self.sent) and queue[len(done)].kind != "table":
            self._finish(Unit.WEIGHTS, self.sent[len(done)])

    def _multiply(self) -> bool:
        queue, done, before = self.queues[Unit.MATRIX], self.done[Unit.MATRIX], len(self.passes)
        while len(done) < len(queue) and self._go_through(queue[len(done)]):
            self._finish(Unit.MATRIX, self.passes[-1].stop + self.drain)
            self._pass_of = 0
        return len(self.passes) > before

    def _go_through(self, work: UnitWork) -> bool:
        """Advance the product at the head of the queue; return whether all of its passes are scheduled."""
        while self._pass_of < work.passes:
            # 1. The unit is free, and the awaited work is done; only the first pass of a product waits for a Sync.
            free = self.passes[-1].stop if self.passes else 0.0
            data = input_ = held = free
            if self._pass_of == 0 and work.waits:
                ready = self._ready(work)
                if ready is None:
                    return False
                held = max(free, ready)
                times = [(unit, self.done[unit][count - 1] + self.sync) for unit, count in work.waits]
                data = max([free, *(time for unit, time in times if unit not in (Unit.READ, HOST))])
                input_ = max([free, *(time for unit, time in times if unit == Unit.READ)])
            # 2. The tile is in the array's second plane; without a pop the array keeps its tile.
            shift, loaded = 0.0, 0.0
            if work.pops == work.passes or self._pass_of:  # pops a tile
                if self._popped >= len(self._shifts):
                    return False
                shift = self._shifts[self._popped]
                loaded = shift + self.design.array
            # 3. The pass starts, which frees the second plane for the next tile.
            start = max(held, loaded)
            if loaded:
                self._popped, self._plane_free = self._popped + 1, start
                self._shift()
            self.passes.append(ArrayPass(free, data, input_, held, shift, start, start + work.cycles, work))
            self._pass_of += 1
        return True

    def _activate(self) -> bool:
        queue, intervals, moved = self.queues[Unit.ACTIVATE], self.intervals[Unit.ACTIVATE], False
        while len(intervals) < len(queue):
            work = queue[len(intervals)]
            ready, arrival = self._ready(work), 0.0
            if work.pops:
                if self._popped_parameters >= len(self.parameters):
                    break
                arrival = self.parameters[self._popped_parameters]
            if ready is None:
                break
            self._popped_parameters += work.pops
            start = max(ready, arrival, intervals[-1].stop if intervals else 0.0)
            intervals.append(WorkInterval(start, start + work.cycles, work))
            self._finish(Unit.ACTIVATE, intervals[-1].stop)
            moved = True
        return moved

    def _why_stuck(self, work: UnitWork) -> str:
        depth = self.design.weight_fifo_tiles
        return (
            f"Instruction {work.number} of {self.name!r} ({work.kind}) would wait forever: the work that it waits for "
            f"is not requested, or is queued after work that waits for it. Request all weights, in the order in which "
            f"they are used, and put a Sync only after the work that it waits for; or increase weight_fifo_tiles, "
            f"which is {depth}."
        )
