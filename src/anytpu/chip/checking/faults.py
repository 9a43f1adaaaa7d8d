"""What a check says: which instruction, which addresses, which other instruction, and what to type."""

from __future__ import annotations

from anytpu.chip.checking.history import Conflict
from anytpu.chip.image import Image
from anytpu.chip.isa.accesses import Memory, place_text
from anytpu.chip.isa.forms import form_of
from anytpu.chip.isa.instructions import Sync
from anytpu.chip.isa.issue import Issued
from anytpu.chip.isa.units import Unit

_FIRST_WRITERS = {
    Memory.HOST: "Only the program's inputs are there from the start: write_host_memory, or a step of the host, comes "
    "first.",
    Memory.BUFFER: "Fill them first, with read_host_memory or activate.",
    Memory.ACCUMULATORS: "The first product of a sum is one without .accumulate.",
    Memory.TABLES: "Fill it first: read_weights.table.",
}


def instruction_text(image: Image, issued: Issued) -> str:
    """Write which instruction it is: its number, its name, and of which part of the program, where that is known."""
    name = f" of {image.tags[issued.tag].name!r}" if 0 <= issued.tag < len(image.tags) else ""
    return f"instruction {issued.number} ({form_of(issued.instruction).mnemonic}{name})"


def sync_text(waiting: int, finished: int) -> str:
    """Write the Sync that lets one unit wait for another, as it stands in assembly."""
    return f"{form_of(Sync(1, 1)).mnemonic} {Unit(waiting).name.lower()}, {Unit(finished).name.lower()}"


def conflict_text(image: Image, issued: Issued, earlier: Issued | None, memory: Memory, conflict: Conflict) -> str:
    """Write why an instruction must not touch a stretch, and what to insert."""
    here = instruction_text(image, issued)
    here = here[0].upper() + here[1:]
    place = place_text(memory, conflict.start, conflict.stop)
    if earlier is None:
        return f"{here} reads {place}, which nothing has written. {_FIRST_WRITERS[memory]}"
    verb, other_verb = {
        "read after write": ("reads", "writes"),
        "write after read": ("writes", "reads"),
        "write after write": ("writes", "writes too"),
    }[conflict.kind]
    unit, other = issued.instruction.unit, earlier.instruction.unit
    assert unit is not None and other is not None
    return (
        f"{here} {verb} {place}, which {instruction_text(image, earlier)} {other_verb}, and nothing lets it wait until "
        f"that is done. Insert before instruction {issued.number}:\n    {sync_text(unit, other)}"
    )
