"""`hoist`: moves each write to the host's memory right after the instruction that makes its data.

Idea: a job that writes a tensor out comes after the job that makes it. But a part of the tensor is complete when the
Activate of its last rows is done. The link to the host is slow, so each write moves right behind that Activate.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.chip.isa.accesses import AccessedInstruction
from anytpu.chip.isa.hazards import AccessHistory
from anytpu.chip.isa.instructions import WriteHostMemory


def hoist(items: Sequence[AccessedInstruction]) -> list[int]:
    """Return the indices of instructions in a new order: each write right behind the last that it depends on."""
    # 1. For each write to the host, the last instruction that it depends on.
    known, behind = AccessHistory(), dict[int, list[int]]()
    for index, (instruction, accesses) in enumerate(items):
        if instruction.unit is None:
            continue
        touched = known.dependences(index, instruction.unit, accesses)
        if isinstance(instruction, WriteHostMemory) and touched:
            behind.setdefault(max(touched), []).append(index)
    # 2. Place each write right after that instruction; a write may depend on an earlier write.
    moved = {number for numbers in behind.values() for number in numbers}
    order: list[int] = []

    def put(number: int) -> None:
        order.append(number)
        for write in behind.get(number, ()):
            put(write)

    for index in range(len(items)):
        if index not in moved:
            put(index)
    return order
