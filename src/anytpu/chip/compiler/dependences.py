"""`DependenceTracker`: the accesses to each stretch of a memory, as a program is walked in order."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from anytpu.chip.isa.accesses import Accesses, Memory
from anytpu.chip.isa.instructions import Instruction


class AccessedInstruction(NamedTuple):
    """An instruction, and its reads and writes."""

    instruction: Instruction
    accesses: Accesses


class DependenceTracker:
    """The accesses to a memory: for each stretch, the last write, and each unit's last read since."""

    def __init__(self):
        self._starts: list[int] = [-1]
        self._writers: list[int] = [-1]
        self._readers: list[dict[int, int]] = [{}]

    def _cut(self, at: int) -> int:
        number = bisect.bisect_right(self._starts, at) - 1
        if self._starts[number] == at:
            return number
        self._starts.insert(number + 1, at)
        self._writers.insert(number + 1, self._writers[number])
        self._readers.insert(number + 1, self._readers[number].copy())
        return number + 1

    def read(self, start: int, stop: int, unit: int, number: int) -> set[int]:
        """Mark a stretch as read, and return the instructions that wrote it last; -1 for none."""
        first, last = self._cut(start), self._cut(stop)
        for readers in self._readers[first:last]:
            readers[unit] = number
        return set(self._writers[first:last])

    def write(self, start: int, stop: int, number: int) -> set[int]:
        """Mark a stretch as written, and return its last writes and the reads since; -1 for no write."""
        first, last = self._cut(start), self._cut(stop)
        touched = set(self._writers[first:last])
        for readers in self._readers[first:last]:
            touched.update(readers.values())
        self._starts[first:last] = [start]
        self._writers[first:last] = [number]
        self._readers[first:last] = [{}]
        return touched


def dependence_trackers() -> dict[Memory, DependenceTracker]:
    """Return a trace of each memory that is written."""
    return {memory: DependenceTracker() for memory in Memory if memory is not Memory.WEIGHTS}


def dependences_of(trackers: dict[Memory, DependenceTracker], number: int, unit: int, accesses: Accesses) -> set[int]:
    """Mark the accesses of instruction `number` of a unit, and return the instructions that it must come after."""
    touched: set[int] = set()
    for stretch in accesses.reads:
        if stretch.memory in trackers and stretch.stop > stretch.start:
            touched |= trackers[stretch.memory].read(stretch.start, stretch.stop, unit, number)
    for stretch in accesses.writes:
        if stretch.stop > stretch.start:
            touched |= trackers[stretch.memory].write(stretch.start, stretch.stop, number)
    return touched - {-1, number}
