"""The bounds of the registers, and the error for a layer that exceeds them.

Rule: the bounds are those of the instructions' own table; this file only finds the layer that exceeds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.chip.image.image import Tag
from anytpu.chip.isa.encoding import fault_of
from anytpu.chip.isa.instructions import DebugTag, Instruction, SetConfiguration
from anytpu.errors import CapacityError


def check_registers(program: Sequence[Instruction], tags: Sequence[Tag]) -> None:
    """Reject a layer whose geometry exceeds a register.

    Raises:
        CapacityError: a layer's geometry exceeds a register; the layer and the register are named.
    """
    layer = ""
    for instruction in program:
        if isinstance(instruction, DebugTag):
            tag = tags[instruction.tag]
            layer = tag.layer or tag.name
        elif isinstance(instruction, SetConfiguration) and (fault := fault_of(instruction)):
            raise CapacityError(f"layer {layer!r} is too large for the chip: {fault} Use smaller inputs or windows.")
