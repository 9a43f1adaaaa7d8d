"""`issue`: a program walked in order, each instruction with the registers and the part that it is issued with.

Idea: the registers are the only state of the issuing logic, and nothing that the units do changes them. So whoever
reads a program (the checker, the time model, the machine) walks it once, and sees at each instruction all that it
depends on beside the memories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from anytpu.chip.isa.instructions import DebugTag, Instruction, SetConfiguration
from anytpu.chip.isa.registers import Register

Registers = Mapping[int, int | float]
"""The values of all registers, by their numbers: `registers[Register.PITCH]`."""

RESET: Registers = dict.fromkeys(map(int, Register), 0)
"""The registers at the start of a program: all are 0."""


class Issued(NamedTuple):
    """An instruction as it is issued.

    Attributes:
        number: its place in the program, from 0 on.
        instruction: what is issued.
        registers: as they are for it; the same mapping for all instructions between two `SetConfiguration`. Not to be
            written to.
        tag: the part of the program that it belongs to, as `DebugTag` marks them; -1 before the first.
    """

    number: int
    instruction: Instruction
    registers: Registers
    tag: int


def issue(instructions: Iterable[Instruction]) -> Iterator[Issued]:
    """Walk a program in order.

    A `SetConfiguration` comes with the registers as they are after it, a `DebugTag` with its own tag.

    Example:
        >>> from anytpu.chip.isa.instructions import Halt
        >>> program = [DebugTag(0), SetConfiguration(Register.PITCH, 8), Halt()]
        >>> [(one.tag, one.registers[Register.PITCH]) for one in issue(program)]
        [(0, 0), (0, 8), (0, 8)]
    """
    registers, is_seen, tag = dict(RESET), False, -1
    for number, instruction in enumerate(instructions):
        if isinstance(instruction, SetConfiguration):
            if is_seen:
                registers, is_seen = registers.copy(), False
            registers[int(instruction.register)] = instruction.value
        else:
            is_seen = True
            if isinstance(instruction, DebugTag):
                tag = instruction.tag
        yield Issued(number, instruction, registers, tag)
