"""`Progress`: deadlock detection: whether every instruction can start, given the waits of the units and full FIFOs.

Idea: time does not matter, only whether an instruction can start. Each unit advances as far as it can, again and again.
An instruction that is left when no unit can advance never starts.

Rule: the Weight Memory serves requests in order. A tile needs a free entry of the weight FIFO; without one, all later
requests wait too. A tile leaves the FIFO for the array's second plane when the previous tile starts to multiply.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from anytpu.chip.isa.accesses import parameters_popped, tiles_popped
from anytpu.chip.isa.instructions import Instruction, ReadWeights
from anytpu.chip.isa.units import Unit


@dataclasses.dataclass(frozen=True)
class _QueuedInstruction:
    number: int
    instruction: Instruction
    waits: tuple[int, ...]


class Progress:
    """The queues of all units, without times.

    Args:
        fifo_tiles: number of entries of the weight FIFO.
    """

    def __init__(self, fifo_tiles: int):
        self._fifo_tiles = fifo_tiles
        self._queues: list[list[_QueuedInstruction]] = [[] for _ in Unit]
        self._done = [0 for _ in Unit]
        self._sent = 0
        self._served, self._of_served = 0, 0  # requests served; items of the next request that have arrived
        self._tiles, self._popped, self._of_product = 0, 0, 0
        self._parameters = 0

    def issue(self, number: int, instruction: Instruction, waits: tuple[int, ...]) -> None:
        """Append an instruction to the queue of its unit.

        Args:
            number: index of the instruction in the program.
            instruction: the instruction.
            waits: for each unit, the number of its instructions that must be done before.
        """
        assert instruction.unit is not None
        self._queues[instruction.unit].append(_QueuedInstruction(number, instruction, waits))

    def stuck(self) -> int | None:
        """Return the index of the first instruction that can never be done, or None."""
        moves: list[Callable[[], bool]] = [self._send, self._serve, self._multiply]
        moves += [lambda: self._go(Unit.READ), lambda: self._go(Unit.ACTIVATE), lambda: self._go(Unit.WRITE)]
        # Advance until a fixed point. No step undoes another, so the order of the units does not matter.
        while any([move() for move in moves]):  # a list, so that `any` does not skip a unit
            pass
        left = [queue[done].number for queue, done in zip(self._queues, self._done, strict=True) if done < len(queue)]
        return min(left, default=None)

    def _may_start(self, waiting: _QueuedInstruction) -> bool:
        return all(done >= count for done, count in zip(self._done, waiting.waits, strict=True))

    def _send(self) -> bool:
        queue, before = self._queues[Unit.WEIGHTS], self._sent
        while self._sent < len(queue) and self._may_start(queue[self._sent]):
            self._sent += 1
            self._acknowledge()
        return self._sent > before

    def _acknowledge(self) -> None:
        # A request is done when it is sent; only a table is done when it has arrived.
        queue = self._queues[Unit.WEIGHTS]
        while (done := self._done[Unit.WEIGHTS]) < self._sent:
            if _request(queue[done]).kind == "table" and done >= self._served:
                break
            self._done[Unit.WEIGHTS] += 1

    def _serve(self) -> bool:
        queue, moved = self._queues[Unit.WEIGHTS], False
        while self._served < self._sent:
            request = _request(queue[self._served])
            count = request.count - self._of_served
            if request.kind == "tile":
                # The FIFO, and one tile more: in the array's second plane.
                count = min(count, self._popped + self._fifo_tiles + 1 - self._tiles)
                if count == 0:
                    break
                self._tiles += count
            elif request.kind == "parameters":
                self._parameters += count
            self._of_served += count
            moved = True
            if self._of_served == request.count:
                self._served, self._of_served = self._served + 1, 0
                self._acknowledge()
        return moved

    def _multiply(self) -> bool:
        queue, moved = self._queues[Unit.MATRIX], False
        while (done := self._done[Unit.MATRIX]) < len(queue):
            waiting = queue[done]
            if self._of_product == 0 and not self._may_start(waiting):
                break
            count = tiles_popped(waiting.instruction) - self._of_product
            ready = min(count, self._tiles - self._popped)
            self._popped, self._of_product = self._popped + ready, self._of_product + ready
            moved = moved or ready > 0
            if ready < count:
                break
            self._done[Unit.MATRIX], self._of_product, moved = done + 1, 0, True
        return moved

    def _go(self, unit: Unit) -> bool:
        queue, before = self._queues[unit], self._done[unit]
        while (done := self._done[unit]) < len(queue) and self._may_start(queue[done]):
            pops = parameters_popped(queue[done].instruction)
            if pops > self._parameters:
                break
            self._parameters -= pops
            self._done[unit] += 1
        return self._done[unit] > before


def _request(waiting: _QueuedInstruction) -> ReadWeights:
    assert isinstance(waiting.instruction, ReadWeights)
    return waiting.instruction
