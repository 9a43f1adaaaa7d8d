"""`decode`: the instructions that move or compute numbers, each with its registers, tiles and parameters.

Idea: registers and FIFO contents do not depend on data, so they are resolved once per image.

Rule: only an image that `chip/checking` accepted is decoded, so nothing is checked here again. Such a program has no
hazards. So executing its instructions one after another gives the results of the parallel units.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import blocks_of, parameters_popped, tiles_popped
from anytpu.chip.isa.instructions import Activate, ArrayInstruction, Instruction, InterruptHost, ReadWeights
from anytpu.chip.isa.issue import Registers, issue
from anytpu.chip.isa.registers import Register


class Step(NamedTuple):
    """An instruction with all that it depends on, except the contents of the memories.

    Attributes:
        number: index of the instruction in the program.
        instruction: the instruction.
        registers: values of the registers when it is issued.
        tiles: for each pass of a product, the block of the Weight Memory where its tile starts.
        parameters: block of the Weight Memory with the parameters of an `Activate` "scale".
    """

    number: int
    instruction: Instruction
    registers: Registers
    tiles: tuple[int, ...] = ()
    parameters: int = -1

    def integer(self, register: Register) -> int:
        """Return the value of a register that holds an integer."""
        return int(self.registers[register])


def _items(requested: collections.deque[range]) -> Iterator[int]:
    """Yield the blocks of a FIFO in order; an instruction may request millions of items."""
    while True:
        yield from requested.popleft()


def decode(image: Image) -> tuple[Step, ...]:
    """Return the steps of an image that was checked, in program order."""
    steps: list[Step] = []
    requested: dict[str, collections.deque[range]] = {"tile": collections.deque(), "parameters": collections.deque()}
    waiting = {kind: _items(ranges) for kind, ranges in requested.items()}
    tiles, parameters = (-1,), -1
    for number, instruction, registers, _ in issue(image.instructions):
        if isinstance(instruction, ReadWeights) and instruction.kind != "table":
            blocks = blocks_of(instruction, image.design)
            stop = instruction.address + instruction.count * blocks
            requested[instruction.kind].append(range(instruction.address, stop, blocks))
        elif isinstance(instruction, ArrayInstruction):
            popped = tuple(itertools.islice(waiting["tile"], tiles_popped(instruction)))
            tiles = (tiles[-1], *popped) if instruction.keep else popped
            steps.append(Step(number, instruction, registers, tiles))
        elif isinstance(instruction, Activate):
            if parameters_popped(instruction):
                parameters = next(waiting["parameters"])
            steps.append(Step(number, instruction, registers, parameters=parameters))
        elif instruction.unit is not None or isinstance(instruction, InterruptHost):
            steps.append(Step(number, instruction, registers))
    return tuple(steps)
