"""Remarks in a listing: the effect of each instruction in a few words, as comments that the assembler ignores."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import AddressRange, Memory, accesses, parameters_popped, tiles_popped
from anytpu.chip.isa.instructions import InterruptHost, ReadWeights, SetConfiguration, Sync
from anytpu.chip.isa.issue import Issued
from anytpu.chip.isa.registers import Register
from anytpu.chip.isa.units import Unit
from anytpu.report.wording import one_line

_NAMES = {
    Memory.HOST: "host byte",
    Memory.BUFFER: "unit",
    Memory.ACCUMULATORS: "accumulator",
    Memory.WEIGHTS: "block",
    Memory.TABLES: "table",
}
_NO_GEOMETRY = "a register of its geometry is 0"


def remark_on(image: Image, issued: Issued) -> str:
    """Return an instruction's effect in a few words; "" where its name says it."""
    instruction = issued.instruction
    if isinstance(instruction, SetConfiguration):
        return Register(instruction.register).text
    if isinstance(instruction, Sync):
        verb = "wait" if instruction.waiting & (instruction.waiting - 1) else "waits"
        return f"{_units(instruction.waiting)} {verb} for {_units(instruction.finished)}"
    if isinstance(instruction, InterruptHost):
        services = image.services[instruction.number : instruction.number + 1]
        return "".join(f"{service.step.kind} on the host: {service.step.why}" for service in services)
    return "" if instruction.unit is None else _moved(image, issued)


def tag_text(image: Image, tag: int) -> str:
    """Return the name, kind and note of a part of a program; "" without any."""
    if not 0 <= tag < len(image.tags):
        return ""
    part = image.tags[tag]
    return " ".join(one_line(text) for text in (part.name, part.kind and f"({part.kind})", part.note) if text)


def _units(mask: int) -> str:
    return " and ".join(unit.name.lower() for unit in Unit if mask >> unit & 1)


def _moved(image: Image, issued: Issued) -> str:
    instruction = issued.instruction
    try:
        touched = accesses(instruction, issued.registers, image.design)
    except ZeroDivisionError:
        return _NO_GEOMETRY
    if any(addresses.start >= addresses.stop for addresses in (*touched.reads, *touched.writes)):
        return _NO_GEOMETRY
    sources = [_ranges_text(touched.reads)] if touched.reads else []
    tiles, parameters = tiles_popped(instruction), parameters_popped(instruction)
    if tiles:
        sources.append("1 tile" if tiles == 1 else f"{tiles} tiles")
    if parameters:
        sources.append("parameters")
    target = _ranges_text(touched.writes)
    if isinstance(instruction, ReadWeights) and not touched.writes:
        target = "weight FIFO" if instruction.kind == "tile" else "parameter FIFO"
    return f"{', '.join(sources)} -> {target}"


def _ranges_text(ranges: Sequence[AddressRange]) -> str:
    shown = ", ".join(map(_range_text, ranges[:2]))
    return shown if len(ranges) <= 2 else f"{shown} and {len(ranges) - 2} more"


def _range_text(addresses: AddressRange) -> str:
    name = _NAMES[addresses.memory]
    return (
        f"{name} {addresses.start}"
        if addresses.stop == addresses.start + 1
        else f"{name}s {addresses.start} to {addresses.stop - 1}"
    )
