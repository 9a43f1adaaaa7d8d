"""`insert_syncs`: inserts the `Sync`s that a program needs, found from the addresses that its instructions access.

Idea: units work in parallel, and only `Sync` orders them. An instruction must wait for an instruction of another unit
that wrote the data it reads or overwrites, or read the data it overwrites. A Sync makes one unit wait for all
instructions issued to another so far, so its position matters. It goes right after the previous instruction of the
waiting unit or the instruction waited for, whichever is later. There it causes no unnecessary wait. So the sums of one
part are activated while the next are multiplied.

Rule: there is no second wait for an instruction that is known to be done. It may be known from an earlier Sync, or
because a unit that was waited for had waited for it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from anytpu.chip.isa.accesses import AccessedInstruction, Accesses
from anytpu.chip.isa.hazards import AccessHistory
from anytpu.chip.isa.instructions import Instruction, InterruptHost, Sync
from anytpu.chip.isa.units import Unit

Clock = tuple[int, ...]
"""For each unit, an index in the program: all the unit's instructions before it are done."""

_START: Clock = (0,) * len(Unit)


class _SyncInserter:
    """Inserts Syncs while instructions are issued in order.

    Attributes:
        units: the unit of each instruction; None for instructions of the issuing logic.
        known: for each unit, a vector clock of the instructions that are done before its next one starts.
        issued: for each unit, the indices of its instructions so far.
        began: for each unit, the clock with which each of its instructions started.
        syncs: maps an index to the waits inserted before that instruction: unit, and the units that it waits for.
    """

    def __init__(self, items: Sequence[AccessedInstruction]):
        self.units = [item.instruction.unit for item in items]
        self.history = AccessHistory()
        self.known: list[Clock] = [_START] * len(Unit)
        self.issued: list[list[int]] = [[] for _ in Unit]
        self.began: list[list[Clock]] = [[] for _ in Unit]
        self.syncs: dict[int, dict[Unit, set[Unit]]] = {}

    def last_touch(self, number: int, unit: Unit, accesses: Accesses) -> dict[Unit, int]:
        """Return for each other unit its last instruction that instruction `number` depends on."""
        last: dict[Unit, int] = {}
        for earlier in sorted(self.history.dependences(number, unit, accesses)):
            other = self.units[earlier]
            if other is not None and other is not unit:
                last[other] = earlier
        return last

    def wait(self, unit: Unit, needs: dict[Unit, int]) -> None:
        """Insert the Syncs that an instruction of `unit` needs."""
        # The earliest position: after the unit's previous instruction, and after the instruction waited for.
        previous = self.issued[unit][-1] if self.issued[unit] else -1
        places = {other: max(needed, previous) + 1 for other, needed in needs.items()}
        taken: list[int] = []
        for other in sorted(places, key=lambda key: -places[key]):
            if self.known[unit][other] > needs[other]:
                continue  # already implied by an earlier wait
            # Share a Sync between several units if that adds no wait.
            shared = [place for place in taken if not self._issued_between(other, places[other], place)]
            taken.append(shared[0] if shared else places[other])
            self._insert(taken[-1], unit, other)

    def _issued_between(self, unit: Unit, first: int, stop: int) -> bool:
        issued = self.issued[unit]
        return bisect.bisect_left(issued, first) != bisect.bisect_left(issued, stop)

    def _insert(self, place: int, unit: Unit, other: Unit) -> None:
        self.syncs.setdefault(place, {}).setdefault(unit, set()).add(other)
        self._learn(unit, other, place)

    def _learn(self, unit: Unit, other: Unit, place: int) -> None:
        # What the other unit had waited for is done too (happens-before is transitive).
        count = bisect.bisect_left(self.issued[other], place)
        clock = [max(pair) for pair in zip(self.known[unit], self.began[other][count - 1], strict=True)]
        clock[other] = max(clock[other], place)
        self.known[unit] = tuple(clock)

    def issue(self, number: int, unit: Unit) -> None:
        self.issued[unit].append(number)
        self.began[unit].append(self.known[unit])


def insert_syncs(items: Sequence[AccessedInstruction]) -> tuple[tuple[Instruction, ...], list[int]]:
    """Return the program with its Syncs, and the new index of each instruction.

    Args:
        items: instructions in an order that is correct for sequential execution.
    """
    # 1. Walk the instructions in order, and find the waits that each needs.
    inserter = _SyncInserter(items)
    for index, (instruction, accesses) in enumerate(items):
        unit = instruction.unit
        if isinstance(instruction, InterruptHost):
            # An interrupt waits for all units, so everything before it is done.
            inserter.known = [(index,) * len(Unit)] * len(Unit)
        elif unit is not None:
            inserter.wait(unit, inserter.last_touch(index, unit, accesses))
            inserter.issue(index, unit)
    # 2. Write the program with the Syncs in place.
    program: list[Instruction] = []
    numbers = []
    for index, item in enumerate(items):
        program.extend(_syncs(inserter.syncs.get(index, {})))
        numbers.append(len(program))
        program.append(item.instruction)
    return tuple(program), numbers


def _syncs(waits: dict[Unit, set[Unit]]) -> list[Sync]:
    """Return the Syncs at one position: units that wait for the same units share a Sync."""
    waiting: dict[int, int] = {}
    for unit, others in waits.items():
        finished = sum(1 << other for other in others)
        waiting[finished] = waiting.get(finished, 0) | 1 << unit
    return [Sync(units, finished) for finished, units in waiting.items()]
