"""`DependenceTracker`: the dependences of instructions, from the accesses to each address range of a memory."""

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
    """The accesses to a memory: for each address range, the last write, and each unit's last read since."""

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
        """Record a read, and return the last writes of the range (read after write); -1 for no write."""
        first, last = self._cut(start), self._cut(stop)
        for readers in self._readers[first:last]:
            readers[unit] = number
        return set(self._writers[first:last])

    def write(self, start: int, stop: int, number: int) -> set[int]:
        """Record a write; return the last writes and the reads since (write after write or read); -1 for no write."""
        first, last = self._cut(start), self._cut(stop)
        touched = set(self._writers[first:last])
        for readers in self._readers[first:last]:
            touched.update(readers.values())
        self._starts[first:last] = [start]
        self._writers[first:last] = [number]
        self._readers[first:last] = [{}]
        return touched


def dependence_trackers() -> dict[Memory, DependenceTracker]:
    """Return a tracker for each memory that is written; the Weight Memory is read-only."""
    return {memory: DependenceTracker() for memory in Memory if memory is not Memory.WEIGHTS}


def dependences_of(trackers: dict[Memory, DependenceTracker], number: int, unit: int, accesses: Accesses) -> set[int]:
    """Record the accesses of instruction `number` of a unit, and return the instructions that it depends on."""
    touched: set[int] = set()
    for address_range in accesses.reads:
        if address_range.memory in trackers and address_range.stop > address_range.start:
            touched |= trackers[address_range.memory].read(address_range.start, address_range.stop, unit, number)
    for address_range in accesses.writes:
        if address_range.stop > address_range.start:
            touched |= trackers[address_range.memory].write(address_range.start, address_range.stop, number)
    return touched - {-1, number}
