"""Texts of the checker's errors: the instruction, the addresses, the conflicting instruction, the Sync to insert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anytpu.chip.checking.history import Conflict
from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import Memory, range_text
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


def conflicts_text(
    image: Image,
    issued: Issued,
    conflicts: Sequence[tuple[Memory, Conflict]],
    others: Mapping[int, Issued],
) -> str:
    """Write why an instruction must not access an address, and the Sync to insert, which resolves all conflicts.

    Args:
        image: the program.
        issued: the instruction.
        conflicts: its conflicts, at least one; the first is written out.
        others: the earlier instructions that it conflicts with, by number.
    """
    memory, first = conflicts[0]
    here = instruction_text(image, issued, capitalized=True)
    place = range_text(memory, first.start, first.stop)
    if first.earlier is None:
        return f"{here} reads {place}, which nothing has written. {_FIRST_WRITERS[memory]}"
    verb, other_verb = _VERBS[first.kind]
    finished = sum({1 << conflict.earlier.unit for _, conflict in conflicts if conflict.earlier is not None})
    unit = issued.instruction.unit
    assert unit is not None
    return (
        f"{here} {verb} {place}, which {instruction_text(image, others[first.earlier.number])} {other_verb}, and "
        f"nothing lets it wait until that is done. Insert before instruction {issued.number}:\n"
        f"    {sync_text(1 << unit, finished)}"
    )


def sync_text(waiting: int, finished: int) -> str:
    """Write the Sync that makes units wait for others, in assembly.

    Example:
        >>> sync_text(4, 9)
        'sync matrix, read|activate'
    """
    names = ["|".join(unit.name.lower() for unit in Unit if mask >> unit & 1) for mask in (waiting, finished)]
    return f"{form_of(Sync(1, 1)).mnemonic} {', '.join(names)}"
