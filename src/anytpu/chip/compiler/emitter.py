"""`Emitter`: jobs become instructions, in an order that is correct for sequential execution.

Idea: a register is set only when its value changes, and a tile that is already in the array is kept. A read from the
host's memory is issued in parts, each just before its first use, so that a Sync waits for that part only.

Rule: nothing here knows about time; `ordering.py` inserts the waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anytpu.chip.compiler.allocation import HostTransfer
from anytpu.chip.compiler.jobs import RegisterValues
from anytpu.chip.isa.accesses import AccessedInstruction, Accesses, Memory, accesses
from anytpu.chip.isa.design import UNIT_BYTES, Design
from anytpu.chip.isa.instructions import (
    Instruction,
    ReadHostMemory,
    ReadWeights,
    SetConfiguration,
    WriteHostMemory,
)
from anytpu.chip.isa.issue import RESET
from anytpu.chip.isa.registers import Register

_PARTS, _PART_UNITS = 32, 2048
"""Maximum number of parts of a transfer over the host's link, and minimum units of a part (64 KiB)."""


class Emitter:
    """A program that is being written.

    Attributes:
        design: the chip.
        items: the instructions so far.
        addresses: unit where each storage starts, for the storages of the current job.
    """

    def __init__(self, design: Design):
        self.design = design
        self.items: list[AccessedInstruction] = []
        self.addresses: Mapping[int, int] = {}
        self._registers: dict[int, int | float] = dict(RESET)
        # The checker requires these registers to be set explicitly, even to their initial value 0.
        self._open = {int(Register.LOW), int(Register.HIGH), int(Register.PLANE_STRIDE)}
        self._pending: list[tuple[int, int, AccessedInstruction]] = []
        self._accumulator = 0
        self._tile: int | None = None
        self._parameters: int | None = None

    def set(self, settings: RegisterValues) -> None:
        """Set the registers that do not hold these values yet."""
        for register, value in settings.items():
            if self._registers[register] != value or register in self._open:
                self._registers[register] = value
                self._open.discard(int(register))
                self.items.append(AccessedInstruction(SetConfiguration(int(register), value), Accesses()))

    def add(self, instruction: Instruction) -> None:
        """Write an instruction, after the reads from the host's memory that it needs."""
        item = AccessedInstruction(instruction, accesses(instruction, self._registers, self.design))
        if self._pending:
            touched = [s for s in (*item.accesses.reads, *item.accesses.writes) if s.memory is Memory.BUFFER]
            self._flush(
                [
                    pending
                    for pending in self._pending
                    if any(s.start < pending[1] and pending[0] < s.stop for s in touched)
                ]
            )
        self.items.append(item)

    def flush(self) -> None:
        """Write all pending reads from the host's memory."""
        self._flush(list(self._pending))

    def _flush(self, wanted: list[tuple[int, int, AccessedInstruction]]) -> None:
        for pending in wanted:
            self._pending.remove(pending)
            self.items.append(pending[2])

    def move(self, move: HostTransfer, units: int) -> None:
        """Write a storage of `units` units to the host, or read it in parts, each when it is first needed."""
        if not move.inwards:
            return self.add(WriteHostMemory(move.host_address, move.address, units))
        for first, count in parts_of(units):
            address = move.address + first
            read = ReadHostMemory(move.host_address + first * UNIT_BYTES, address, count)
            item = AccessedInstruction(read, accesses(read, self._registers, self.design))
            self._pending.append((address, address + count, item))
        return None

    def sums(self, rows: int) -> int:
        """Return the first of `rows` accumulator rows, given out in a ring: the least recently used."""
        if self._accumulator + rows > self.design.accumulator_rows:
            self._accumulator = 0
        first = self._accumulator
        self._accumulator += rows
        return first

    def fetch_tiles(self, address: int, count: int) -> bool:
        """Request tiles, and return whether the first is in the array already."""
        keep = self._tile == address
        if count > keep:
            self.add(ReadWeights(address + keep * self.design.tile_blocks, count - keep))
        self._tile = address + (count - 1) * self.design.tile_blocks
        return keep

    def fetch_parameters(self, address: int) -> bool:
        """Request a block of parameters, and return whether the last Activate with parameters used the same block."""
        keep = self._parameters == address
        if not keep:
            self.add(ReadWeights(address, 1, "parameters"))
        self._parameters = address
        return keep


def parts_of(units: int) -> Iterator[tuple[int, int]]:
    """Cut a transfer into parts: the first unit and the number of units of each."""
    part = max(_PART_UNITS, -(-units // _PARTS))
    for first in range(0, units, part):
        yield first, min(part, units - first)
