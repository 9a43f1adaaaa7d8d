"""Hazards: which earlier instructions an access depends on (`AccessHistory`), and which are done (`VectorClocks`).

Idea: a memory is split into ranges at the bounds of the accesses, each with its last write and the reads since. A write
merges the ranges that it covers. So a program of tens of thousands of instructions needs a few hundred ranges. The
compiler inserts its Syncs by this record, and the checker finds missing ones by it.

Rule: an instruction depends on the last write of an address that it reads. It depends on the last write and on each
unit's last read since of an address that it writes. The Weight Memory is read-only, so it has no hazards.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Literal, NamedTuple

from anytpu.chip.isa.accesses import Accesses, AddressRange, Memory
from anytpu.chip.isa.units import Unit

HOST = -1
"""Number of a write by the host, which only acts while all units are idle."""


class Dependence(NamedTuple):
    """A dependence of an access to an address range on an earlier one.

    Attributes:
        kind: "unwritten": nothing wrote the addresses that are read. Otherwise the access and the earlier access.
        place: the addresses.
        earlier: index of the earlier instruction, or `HOST`; -1 for "unwritten".
    """

    kind: Literal["unwritten", "read after write", "write after read", "write after write"]
    place: AddressRange
    earlier: int = -1


class _Ranges:
    """The address ranges of one memory: start, last writer (None: unwritten), and last reader of each unit since."""

    def __init__(self) -> None:
        self.starts: list[int] = [0]
        self.writers: list[int | None] = [None]
        self.readers: list[dict[int, int]] = [{}]

    def cut(self, address: int) -> int:
        """Return the index of the range that starts at an address, after splitting the range around it."""
        index = bisect.bisect_right(self.starts, address) - 1
        if self.starts[index] == address:
            return index
        self.starts.insert(index + 1, address)
        self.writers.insert(index + 1, self.writers[index])
        self.readers.insert(index + 1, self.readers[index].copy())
        return index + 1

    def merge(self, first: int, last: int, writer: int) -> None:
        """Make one range, just written, of ranges `first` to `last`, excluded."""
        if last == first + 1:
            self.writers[first], self.readers[first] = writer, {}
            return
        self.starts[first:last] = [self.starts[first]]
        self.writers[first:last] = [writer]
        self.readers[first:last] = [{}]


class AccessHistory:
    """The accesses of the instructions so far, to each address of each memory.

    Attributes:
        walked: ranges that the accesses so far have covered in all.
    """

    def __init__(self) -> None:
        self.walked = 0
        self._ranges = {memory: _Ranges() for memory in Memory if memory is not Memory.WEIGHTS}

    def touch(self, number: int, unit: int, accesses: Accesses) -> list[Dependence]:
        """Record the accesses of instruction `number` of a unit, and return what they depend on, in order."""
        # Reads come first, so that an in-place read does not see its own write.
        found: list[Dependence] = []
        for place in accesses.reads:
            found += self._read(place, number, unit)
        for place in accesses.writes:
            found += self._write(place, number)
        return [dependence for dependence in found if dependence.earlier != number]

    def dependences(self, number: int, unit: int, accesses: Accesses) -> set[int]:
        """Record the accesses of instruction `number` of a unit, and return the instructions that it depends on."""
        return {one.earlier for one in self.touch(number, unit, accesses) if one.earlier >= 0}

    def host_writes(self, place: AddressRange) -> None:
        """Record that the host writes a range while all units are idle."""
        self._write(place, HOST)

    def first_unwritten(self, place: AddressRange) -> int | None:
        """Return the first unwritten address of a range, or None."""
        ranges = self._ranges[place.memory]
        for index in range(ranges.cut(place.start), ranges.cut(place.stop)):
            if ranges.writers[index] is None:
                return ranges.starts[index]
        return None

    def _read(self, place: AddressRange, number: int, unit: int) -> Sequence[Dependence]:
        if place.memory is Memory.WEIGHTS or place.start >= place.stop:
            return ()
        ranges, found = self._ranges[place.memory], []
        first, last = ranges.cut(place.start), ranges.cut(place.stop)
        self.walked += last - first
        for index in range(first, last):
            writer, own = ranges.writers[index], _place(place, ranges, index)
            found.append(
                Dependence("unwritten", own) if writer is None else Dependence("read after write", own, writer)
            )
            ranges.readers[index][unit] = number
        return found

    def _write(self, place: AddressRange, number: int) -> Sequence[Dependence]:
        if place.start >= place.stop:
            return ()
        ranges, found = self._ranges[place.memory], []
        first, last = ranges.cut(place.start), ranges.cut(place.stop)
        self.walked += last - first
        for index in range(first, last):
            writer, own = ranges.writers[index], _place(place, ranges, index)
            found += [Dependence("write after read", own, reader) for reader in ranges.readers[index].values()]
            if writer is not None:
                found.append(Dependence("write after write", own, writer))
        ranges.merge(first, last, number)
        return found


def _place(place: AddressRange, ranges: _Ranges, index: int) -> AddressRange:
    """Return range `index` of a memory; both its bounds are cuts, made before."""
    return AddressRange(place.memory, ranges.starts[index], ranges.starts[index + 1])


class VectorClocks:
    """Happens-before: for each unit, the instructions of every unit that are surely done when its next one starts.

    A unit executes its instructions in order, so a count describes its progress: its first n instructions are done. A
    `Sync` raises the counts of the waiting units; a wait for all units raises all counts.
    """

    def __init__(self) -> None:
        nothing: tuple[int, ...] = tuple(0 for _ in Unit)
        self._issued: list[int] = [0 for _ in Unit]
        self._known: list[tuple[int, ...]] = [nothing for _ in Unit]
        self._last: list[tuple[int, ...]] = [nothing for _ in Unit]
        self._queued: dict[int, tuple[int, int]] = {}

    def issue(self, unit: Unit, number: int) -> None:
        """Append instruction `number` to a unit's queue."""
        self._issued[unit] += 1
        self._last[unit] = self._known[unit]
        self._queued[number] = int(unit), self._issued[unit]

    def sync(self, waiting: int, finished: int) -> None:
        """Make the units of mask `waiting` wait for those of mask `finished`."""
        known = [0] * len(Unit)
        for unit in Unit:
            if finished >> unit & 1:
                known = list(map(max, known, self._last[unit]))
                known[unit] = max(known[unit], self._issued[unit])
        for unit in Unit:
            if waiting >> unit & 1:
                self._known[unit] = tuple(map(max, known, self._known[unit]))

    def wait_for_all(self) -> None:
        """Let all units finish before anything that is issued later."""
        self._known = [tuple(self._issued) for _ in Unit]

    def is_done(self, earlier: int, unit: Unit) -> bool:
        """Return whether instruction `earlier` is surely done when the last instruction issued to `unit` starts."""
        if earlier == HOST:
            return True
        other, count = self._queued[earlier]
        return other == unit or self._last[unit][other] >= count
