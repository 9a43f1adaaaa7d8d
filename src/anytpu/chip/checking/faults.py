"""Texts of the checker's errors: the instruction, the addresses, the conflicting instruction, the Sync to insert."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.chip.assembly.instruction_text import write_instruction
from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import Memory, range_text
from anytpu.chip.isa.forms import form_of
from anytpu.chip.isa.hazards import Dependence
from anytpu.chip.isa.instructions import Sync
from anytpu.chip.isa.issue import Issued

_FIRST_WRITERS = {
    Memory.HOST: "Only the program's inputs are there from the start: write_host_memory, or a step of the host, comes "
    "first.",
    Memory.BUFFER: "Fill them first, with read_host_memory or activate.",
    Memory.ACCUMULATORS: "The first product of a sum is one without .accumulate.",
    Memory.TABLES: "Fill it first: read_weights.table.",
}
_VERBS = {
    "read after write": ("reads", "writes"),
    "write after read": ("writes", "reads"),
    "write after write": ("writes", "writes too"),
}


def instruction_text(image: Image, issued: Issued, *, capitalized: bool = False) -> str:
    """Write an instruction's number, its mnemonic and, where known, the part of the program it belongs to.

    Args:
        image: the program.
        issued: the instruction.
        capitalized: True at the start of a sentence.
    """
    name = f" of {image.tags[issued.tag].name!r}" if 0 <= issued.tag < len(image.tags) else ""
    word = "Instruction" if capitalized else "instruction"
    return f"{word} {issued.number} ({form_of(issued.instruction).mnemonic}{name})"


def hazards_text(image: Image, issued: Issued, hazards: Sequence[Dependence], earlier: Sequence[Issued]) -> str:
    """Write why an instruction must not access an address, and the Sync to insert, which resolves all hazards.

    Args:
        image: the program.
        issued: the instruction.
        hazards: its dependences on what may not be done yet, at least one; the first is written out.
        earlier: the instructions issued so far, by number.
    """
    first = hazards[0]
    here = instruction_text(image, issued, capitalized=True)
    place = range_text(*first.place)
    if first.kind == "unwritten":
        return f"{here} reads {place}, which nothing has written. {_FIRST_WRITERS[first.place.memory]}"
    verb, other_verb = _VERBS[first.kind]
    units = {earlier[hazard.earlier].instruction.unit for hazard in hazards if hazard.kind != "unwritten"}
    unit = issued.instruction.unit
    assert unit is not None
    return (
        f"{here} {verb} {place}, which {instruction_text(image, earlier[first.earlier])} {other_verb}, and "
        f"nothing lets it wait until that is done. Insert before instruction {issued.number}:\n"
        f"    {write_instruction(Sync(1 << unit, sum(1 << other for other in units if other is not None)))}"
    )
