"""Programs for the time model, made by hand: no numbers go through them, so addresses do not matter."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from anytpu.chip.image.image import Image, Tag
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import (
    Activate,
    DebugTag,
    Halt,
    Instruction,
    MatrixMultiply,
    ReadHostMemory,
    ReadWeights,
    Sync,
    WriteHostMemory,
)
from anytpu.chip.isa.units import Unit

TINY = Design(array=8, clock_hz=1.0, weight_bytes_per_s=2.0, host_bytes_per_s=32.0)
"""A chip on which a tile comes in 32 cycles, parameters in 32, and a unit of the buffer in one."""


def image_of(instructions: Iterable[Instruction], design: Design | None = None, batch: int = 1) -> Image:
    """Return an image of instructions, with a part for each number that a tag has."""
    program = (*instructions, Halt())
    count = max((instruction.tag + 1 for instruction in program if isinstance(instruction, DebugTag)), default=0)
    tags = tuple(Tag(f"part {number}", macs=1000 * (number + 1)) for number in range(count))
    return Image("sample", program, np.zeros(0, np.uint8), batch, design=design or Design(), tags=tags)


def sync(waiting: Unit, *finished: Unit) -> Sync:
    """Return a Sync of one unit for others."""
    return Sync(1 << waiting, sum(1 << unit for unit in finished))


def dense(batch: int, tiles: list[int], units: int = 1, wide: bool = False) -> list[Instruction]:
    """Return a perceptron with so many tiles a layer; each layer waits for the one before."""
    program: list[Instruction] = [ReadHostMemory(0, 0, units)]
    for number, count in enumerate(tiles):
        program += [DebugTag(number), ReadWeights(0, count), ReadWeights(0, 1, kind="parameters")]
        program += [sync(Unit.MATRIX, Unit.READ, Unit.ACTIVATE)]
        program += [MatrixMultiply(0, 0, batch, repeat=count, wide=wide)]
        program += [sync(Unit.ACTIVATE, Unit.MATRIX), Activate("scale", 0, 0, batch, wide_out=wide)]
    return [*program, sync(Unit.WRITE, Unit.ACTIVATE), WriteHostMemory(0, 0, units)]
