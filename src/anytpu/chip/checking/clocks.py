"""`Clocks`: what has surely happened before what, from the order of the queues and from `Sync`.

Idea: a unit does its instructions in order, so "unit u has done its first n instructions" is all that there is to know
about u. Each unit carries one such number for every unit: what is surely done when its next instruction starts (a
vector clock). A `Sync` raises the numbers of those that wait; a wait for all units raises all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from anytpu.chip.isa.units import Unit


class Visit(NamedTuple):
    """An instruction that touched a memory.

    Attributes:
        unit: who did it; -1 for the host, which only acts while all units stand still.
        count: it was the unit's first, second, ... instruction.
        number: its place in the program; -1 before the first.
    """

    unit: int
    count: int
    number: int


class Clocks:
    """What is surely done when the next instruction of each unit starts."""

    def __init__(self) -> None:
        nothing: tuple[int, ...] = tuple(0 for _ in Unit)
        self._issued: list[int] = [0 for _ in Unit]
        self._known: list[tuple[int, ...]] = [nothing for _ in Unit]
        self._last: list[tuple[int, ...]] = [nothing for _ in Unit]

    def issue(self, unit: Unit, number: int) -> Visit:
        """Take an instruction into a unit's queue."""
        self._issued[unit] += 1
        self._last[unit] = self._known[unit]
        return Visit(int(unit), self._issued[unit], number)

    def sync(self, waiting: int, finished: int) -> None:
        """Let the units of one mask wait for those of another."""
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
        """Return how many instructions of each unit are done when the last that was issued to a unit starts."""
        return self._last[unit]

    def is_done(self, earlier: Visit, later: Visit) -> bool:
        """Tell whether one instruction is surely done when another, the last that was issued to its unit, starts."""
        if earlier.unit < 0 or earlier.unit == later.unit:
            return True
        return self._last[later.unit][earlier.unit] >= earlier.count
