"""`VectorClocks`: happens-before between instructions, from the order of the queues and from `Sync`.

Idea: a unit executes its instructions in order, so a count describes its progress: its first n instructions are done.
Each unit carries such a count for every unit: the instructions that are surely done when its next instruction starts
(a vector clock). A `Sync` raises the counts of the waiting units; a wait for all units raises all counts.
"""

from __future__ import annotations

from typing import NamedTuple

from anytpu.chip.isa.units import Unit


class QueuePosition(NamedTuple):
    """An instruction that touched a memory.

    Attributes:
        unit: index of the unit; -1 for the host, which only acts while all units are idle.
        count: index of the instruction among its unit's, from 1; 0 for the host.
        number: index of the instruction in the program, from 0; -1 for the host.
    """

    unit: int
    count: int
    number: int


class VectorClocks:
    """For each unit, the instructions of every unit that are surely done when its next instruction starts."""

    def __init__(self) -> None:
        nothing: tuple[int, ...] = tuple(0 for _ in Unit)
        self._issued: list[int] = [0 for _ in Unit]
        self._known: list[tuple[int, ...]] = [nothing for _ in Unit]
        self._last: list[tuple[int, ...]] = [nothing for _ in Unit]

    def issue(self, unit: Unit, number: int) -> QueuePosition:
        """Append an instruction to a unit's queue."""
        self._issued[unit] += 1
        self._last[unit] = self._known[unit]
        return QueuePosition(int(unit), self._issued[unit], number)

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

    def waits_of(self, unit: Unit) -> tuple[int, ...]:
        """Return how many instructions of each unit are done when the last instruction issued to `unit` starts."""
        return self._last[unit]

    def is_done(self, earlier: QueuePosition, later: QueuePosition) -> bool:
        """Return whether `earlier` is surely done when `later`, the last instruction issued to its unit, starts."""
        if earlier.unit < 0 or earlier.unit == later.unit:
            return True
        return self._last[later.unit][earlier.unit] >= earlier.count
