"""`write_unsynced`: generate the instructions of all jobs, without Syncs, and the parts of the program.

Rule: the bytes of a spilled storage, out and back, are noted in the part that needs the room or the storage.
"""

from __future__ import annotations

import dataclasses

from anytpu.chip.compiler.allocation import BufferAllocation, HostTransfer
from anytpu.chip.compiler.emitter import Emitter
from anytpu.chip.compiler.hoisting import hoist
from anytpu.chip.compiler.jobs import Job
from anytpu.chip.compiler.lowering import Lowering
from anytpu.chip.compiler.writing import write
from anytpu.chip.image.image import Tag
from anytpu.chip.isa.accesses import AccessedInstruction
from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.isa.instructions import DebugTag, Halt

_MINOR = ("copy", "output")


@dataclasses.dataclass(frozen=True)
class UnsyncedProgram:
    """Instructions in an order that is correct for sequential execution.

    Attributes:
        items: the instructions, with their reads and writes.
        tags: the parts of the program.
        ranges: for each job, the indices of its first and its last instruction.
    """

    items: list[AccessedInstruction]
    tags: tuple[Tag, ...]
    ranges: list[tuple[int, int]]


def write_unsynced(lowering: Lowering, allocation: BufferAllocation) -> UnsyncedProgram:
    """Generate the instructions of all jobs."""
    emitter, parts, ranges = Emitter(lowering.design), _ProgramParts(), []
    # 1. Tables are loaded once, at the start.
    for load in lowering.tables.loads:
        emitter.add(load)
    # 2. The jobs: before each, the storages that are moved for it.
    arrived: set[int] = set()
    for job, moves, addresses in zip(lowering.jobs, allocation.moves, allocation.addresses, strict=True):
        if parts.begin(job):
            emitter.add(DebugTag(len(parts.tags) - 1))
        for move in moves:
            units = lowering.storages[move.storage].units
            emitter.move(move, units)
            # The first read of a storage that comes from the host does not count as spilled.
            if not move.inwards or move.storage in arrived or move.storage not in lowering.on_host:
                parts.count(move, units * UNIT_BYTES)
            arrived.add(move.storage)
        first = len(emitter.items)
        emitter.addresses = addresses
        write(job, emitter)
        ranges.append((min(first, len(emitter.items) - 1), len(emitter.items) - 1))
    emitter.add(Halt())
    # 3. Hoist the writes to the host, and translate the indices of the jobs.
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
        """Add a job, and return whether it starts a new part."""
        if self.tags and self.tags[-1].name == job.tag.name:
            if self.tags[-1].kind in _MINOR and job.tag.kind != "output":
                self.tags[-1] = job.tag
            return False
        self.tags.append(job.tag)
        return True

    def count(self, move: HostTransfer, size_bytes: int) -> None:
        """Count the bytes of a spilled storage."""
        key = len(self.tags) - 1, move.inwards
        self._spilled[key] = self._spilled.get(key, 0) + size_bytes

    def noted(self) -> tuple[Tag, ...]:
        """Return the parts, with the spilled bytes in their notes."""
        return tuple(self._noted(index, tag) for index, tag in enumerate(self.tags))

    def _noted(self, number: int, tag: Tag) -> Tag:
        out, back = self._spilled.get((number, False), 0), self._spilled.get((number, True), 0)
        if not out and not back:
            return tag
        note = f"spilled: {out:,} bytes to the host, {back:,} bytes back"
        return dataclasses.replace(tag, note=f"{tag.note}; {note}" if tag.note else note)
