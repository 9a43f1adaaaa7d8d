"""`issue`: a program walked in order, each instruction with the registers and the part that it is issued with.

Idea: the registers are the only state of the issuing logic, and no unit changes them. So the checker, the time model
and the machine walk a program once. They see at each instruction everything that it depends on except the memories.
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
        number: index of the instruction in the program, from 0.
        instruction: the instruction.
        registers: values of the registers, read-only; the same mapping for all instructions between two
            `SetConfiguration`.
        tag: index of the part of the program that it belongs to, as in `DebugTag`; -1 before the first `DebugTag`.
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
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, SetConfiguration):
            if is_seen:
                registers, is_seen = registers.copy(), False
            registers[int(instruction.register)] = instruction.value
        else:
            is_seen = True
            if isinstance(instruction, DebugTag):
                tag = instruction.tag
        yield Issued(index, instruction, registers, tag)
