"""What the registers hold, and a layer that would need more.

Rule: the bounds are those of the instructions' own table; here is only said which layer goes beyond them.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.chip.image import Tag
from anytpu.chip.isa.encoding import fault_of
from anytpu.chip.isa.instructions import DebugTag, Instruction, SetConfiguration
from anytpu.errors import CapacityError


def check_registers(program: Sequence[Instruction], tags: Sequence[Tag]) -> None:
    """Refuse a layer whose geometry is more than a register holds.

    Raises:
        CapacityError: some layer's is; the layer and the register are named.
    """
    layer = ""
    for instruction in program:
        if isinstance(instruction, DebugTag):
            tag = tags[instruction.tag]
            layer = tag.layer or tag.name
        elif isinstance(instruction, SetConfiguration) and (fault := fault_of(instruction)):
            raise CapacityError(f"layer {layer!r} is too large for the chip: {fault} Use smaller inputs or windows.")
