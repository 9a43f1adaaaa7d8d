"""`write_unsynced`: all jobs as instructions, still without Syncs, with the parts of the program that they belong to.

Rule: a storage that was moved out and comes back is counted in the note of the part that it is moved for.
"""

from __future__ import annotations

import dataclasses

from anytpu.chip.compiler.allocation import BufferAllocation, HostTransfer
from anytpu.chip.compiler.dependences import AccessedInstruction
from anytpu.chip.compiler.emitter import Emitter
from anytpu.chip.compiler.hoisting import hoist
from anytpu.chip.compiler.jobs import Job
from anytpu.chip.compiler.lowering import Lowering
from anytpu.chip.compiler.writing import write
from anytpu.chip.design import UNIT_BYTES
from anytpu.chip.image import Tag
from anytpu.chip.isa.instructions import DebugTag, Halt

_MINOR = ("copy", "output")


@dataclasses.dataclass(frozen=True)
class UnsyncedProgram:
    """Instructions in the order in which they are right when done one after another.

    Attributes:
        items: them, with what they read and write.
        tags: the parts.
        ranges: for each job the numbers of its first and its last instruction.
    """

    items: list[AccessedInstruction]
    tags: tuple[Tag, ...]
    ranges: list[tuple[int, int]]


def write_unsynced(lowering: Lowering, allocation: BufferAllocation) -> UnsyncedProgram:
    """Write the instructions of all jobs."""
    emitter, parts, ranges = Emitter(lowering.design), _ProgramParts(), []
    for load in lowering.tables.loads:
        emitter.add(load)
    arrived: set[int] = set()
    for job, moves, addresses in zip(lowering.jobs, allocation.moves, allocation.addresses, strict=True):
        if parts.begin(job):
            emitter.add(DebugTag(len(parts.tags) - 1))
        for move in moves:
            units = lowering.storages[move.storage].units
            emitter.move(move, units)
            if not move.inwards or move.storage in arrived or move.storage not in lowering.on_host:
                parts.count(move, units * UNIT_BYTES)
            arrived.add(move.storage)
        first = len(emitter.items)
        emitter.addresses = addresses
        write(job, emitter)
        ranges.append((min(first, len(emitter.items) - 1), len(emitter.items) - 1))
    emitter.add(Halt())
    order = hoist(emitter.items)
    places = dict(zip(order, range(len(order)), strict=True))
    items = [emitter.items[number] for number in order]
    return UnsyncedProgram(items, parts.noted(), [(places[first], places[last]) for first, last in ranges])


class _ProgramParts:
    """The parts of a program so far."""

    def __init__(self):
        self.tags: list[Tag] = []
        self._spilled: dict[tuple[int, bool], int] = {}

    def begin(self, job: Job) -> bool:
        """Take the job of a part, and return whether the part is a new one."""
        if self.tags and self.tags[-1].name == job.tag.name:
            if self.tags[-1].kind in _MINOR and job.tag.kind != "output":
                self.tags[-1] = job.tag
            return False
        self.tags.append(job.tag)
        return True

    def count(self, move: HostTransfer, size_bytes: int) -> None:
        """Count what is moved because there is no room."""
        key = len(self.tags) - 1, move.inwards
        self._spilled[key] = self._spilled.get(key, 0) + size_bytes

    def noted(self) -> tuple[Tag, ...]:
        """Return the parts, with what was moved in their notes."""
        return tuple(self._noted(number, tag) for number, tag in enumerate(self.tags))

    def _noted(self, number: int, tag: Tag) -> Tag:
        out, back = self._spilled.get((number, False), 0), self._spilled.get((number, True), 0)
        if not out and not back:
            return tag
        note = f"spilled: {out:,} bytes to the host, {back:,} bytes back"
        return dataclasses.replace(tag, note=f"{tag.note}; {note}" if tag.note else note)
