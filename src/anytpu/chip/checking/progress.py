"""`first_stuck`: the first work of a program that can never start (a deadlock), from its waits and full FIFOs.

Idea: time does not matter, only whether work can start. Each unit advances as far as it can, again and again. Work that
is left when no unit can advance never starts.

Rule: passes and transfers are counted, and not stored: a small file may ask for hundreds of millions of them. So the
time and memory grow with the instructions only.
"""

from __future__ import annotations

from anytpu.chip.isa.units import Unit
from anytpu.chip.timing.work import UnitWork, WorkQueues


def first_stuck(queues: WorkQueues, fifo_tiles: int) -> UnitWork | None:
    """Return the first work that can never start, or None.

    Args:
        queues: the work of each unit.
        fifo_tiles: number of entries of the weight FIFO.
    """
    counters, state = _Counters(queues, fifo_tiles), None
    while state != (state := counters.advance()):
        pass
    pairs = zip(queues.by_unit, counters.done, strict=True)
    return min((queue[done] for queue, done in pairs if done < len(queue)), key=lambda work: work.number, default=None)


class _Counters:
    def __init__(self, queues: WorkQueues, fifo_tiles: int):
        self._queues, self._fifo_tiles = queues.by_unit, fifo_tiles
        self.done = [0 for _ in self._queues]
        self._sent, self._served, self._of_request = 0, 0, 0  # requests, and transfers of the next one
        self._tiles, self._parameters, self._of_product = 0, 0, 0  # items to be popped, and pops of the next product

    def advance(self) -> tuple[int, ...]:
        """Advance each unit as far as it can; return a state that differs if any did."""
        for unit, queue in enumerate(self._queues):
            while unit != Unit.WEIGHTS and self.done[unit] < len(queue) and self._ends(unit, queue[self.done[unit]]):
                self.done[unit] += 1
        self._read_weights(self._queues[Unit.WEIGHTS])
        return *self.done, self._sent, self._served, self._of_request, self._of_product

    def _may_start(self, work: UnitWork) -> bool:
        return all(self.done[unit] >= count for unit, count in work.waits)

    def _ends(self, unit: int, work: UnitWork) -> bool:
        if not self._may_start(work):
            return False
        if unit == Unit.MATRIX:
            # Each pop makes room for the next tile of the current request, so that request is popped as a whole.
            pops = min(work.pops - self._of_product, self._tiles + self._coming())
            arriving = max(0, pops - self._tiles)
            self._of_request, self._tiles = self._of_request + arriving, self._tiles + arriving - pops
            self._of_product += pops
            if self._of_product < work.pops:
                return False
            self._of_product = 0
        elif unit == Unit.ACTIVATE:
            if work.pops > self._parameters:
                return False
            self._parameters -= work.pops
        return True

    def _coming(self) -> int:
        request = self._queues[Unit.WEIGHTS][self._served] if self._served < self._sent else None
        return request.passes - self._of_request if request is not None and request.kind == "tile" else 0

    def _read_weights(self, queue: list[UnitWork]) -> None:
        while self._sent < len(queue) and self._may_start(queue[self._sent]):
            self._sent += 1
        while self._served < self._sent:
            request = queue[self._served]
            if request.kind == "tile":
                # The FIFO, and one tile more: in the array's second plane.
                count = min(self._coming(), self._fifo_tiles + 1 - self._tiles)
                self._tiles, self._of_request = self._tiles + count, self._of_request + count
                if self._of_request < request.passes:
                    break
            elif request.kind == "parameters":
                self._parameters += request.passes
            self._served, self._of_request = self._served + 1, 0
        # A request is done when it is sent; only a table is done when it has arrived.
        done = self.done[Unit.WEIGHTS]
        while done < self._sent and (queue[done].kind != "table" or done < self._served):
            done += 1
        self.done[Unit.WEIGHTS] = done
