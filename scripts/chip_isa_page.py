"""Print docs/chip_isa.md, made of the definitions: `python scripts/chip_isa_page.py > docs/chip_isa.md`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from anytpu.chip import assembly, checking
from anytpu.chip.assembly.directives import DIRECTIVES, NUMBERS
from anytpu.chip.isa.forms import FORMS, Field, FieldKind, Form
from anytpu.chip.isa.instructions import ArrayInstruction, MatrixMultiply
from anytpu.chip.isa.registers import Register, RegisterKind, power_text
from anytpu.errors import HazardError

_TEMPLATE = Path(__file__).with_suffix(".md")
EXAMPLE = Path(__file__).with_name("chip_isa_example.s").read_text(encoding="utf-8")
"""A dense layer of 3 inputs and 2 outputs with ReLU, for 2 examples, by hand."""

_MARK = re.compile(r"^<!-- (\w+) -->$", re.MULTILINE)


def page() -> str:
    """Return docs/chip_isa.md: chip_isa_page.md with its marks replaced by text generated from the definitions."""
    made = {
        "instructions": _instructions,
        "registers": _registers,
        "directives": _directives,
        "example": lambda: _block(EXAMPLE),
        "refusal": lambda: _block(_refusal()),
    }
    return _MARK.sub(lambda mark: made[mark[1]](), _TEMPLATE.read_text(encoding="utf-8"))


def _block(text: str) -> str:
    return "```text\n" + text.strip("\n") + "\n```"


def _instructions() -> str:
    rows = ["| opcode | mnemonic | bytes | unit | action |", "| --- | --- | --- | --- | --- |"]
    for form in FORMS:
        unit = "" if form.record.unit is None else form.record.unit.name.lower()
        rows.append(f"| 0x{form.opcode:02x} | `{form.mnemonic}` | {form.length_bytes} | {unit} | {form.text} |")
    return "\n".join([*rows, *map(_instruction, FORMS)])


def _instruction(form: Form) -> str:
    lines = [f"\n### {form.mnemonic}\n", *_meaning(form)]
    if form.fields:
        lines += ["", "| byte | bits | field | value | meaning |", "| --- | --- | --- | --- | --- |"]
        lines += [_row(field, bit) for field, bit in form.places]
    return "\n".join(lines)


def _row(field: Field, bit: int) -> str:
    return f"| {_where(bit, field)} | {field.name or 'reserved'} | {_holds(field)} | {field.text} |"


def _where(bit: int, field: Field) -> str:
    first, last = bit // 8, (bit + field.bits - 1) // 8
    if field.bits % 8:
        low, high = bit % 8, bit % 8 + field.bits - 1
        return f"{first} | {low}" if low == high else f"{first} | {low} to {high}"
    return f"{first} | {field.bits}" if first == last else f"{first} to {last} | {field.bits}"


def _holds(field: Field) -> str:
    if field.kind is FieldKind.CHOICE:
        return ", ".join(f"{index} {choice}" for index, choice in enumerate(field.choices))
    if field.kind is FieldKind.FLAG:
        return "0 or 1"
    if field.kind in (FieldKind.REGISTER, FieldKind.VALUE):
        return "a register" if field.kind is FieldKind.REGISTER else "its value"
    return "0" if field.kind is FieldKind.RESERVED else f"{field.minimum:,} to {field.maximum:,}"


def _meaning(form: Form) -> Iterator[str]:
    text = inspect.getdoc(form.record) or ""
    if form.record is MatrixMultiply:
        text += "\n\n" + (inspect.getdoc(ArrayInstruction) or "").partition("\n\n")[2]
    elif issubclass(form.record, ArrayInstruction):
        text += "\n\nPasses and fields are those of matrix_multiply."
    yield from _markdown(text)


def _markdown(text: str) -> Iterator[str]:
    """Convert a docstring to Markdown: the section "Attributes:" becomes a list."""
    is_list = False
    for line in text.splitlines():
        if line == "Attributes:":
            is_list = True
        elif is_list and re.match(r" {4}\w", line):
            names, _, meaning = line.strip().partition(": ")
            yield f"- `{names}`: {meaning}"
        else:
            yield (
                line.strip() if is_list and not line.startswith("        ") else line.replace("        ", "  ", is_list)
            )


def _registers() -> str:
    kinds = {RegisterKind.FLOAT: "float32 above 0", RegisterKind.SIGNED: "signed", RegisterKind.UNSIGNED: "unsigned"}
    rows = ["| number | name | kind | value | meaning |", "| --- | --- | --- | --- | --- |"]
    for register in Register:
        low, high = register.minimum, register.maximum
        bounds = f"at most {power_text(high)}" if register.kind is RegisterKind.FLOAT else f"{low:,} to {high:,}"
        rows.append(f"| {register.value} | `{register.name}` | {kinds[register.kind]} | {bounds} | {register.text} |")
    return "\n".join(rows)


def _directives() -> str:
    rows = ["| directive | operands | meaning |", "| --- | --- | --- |"]
    for name, directive in DIRECTIVES.items():
        operands = ", ".join([*directive.needed, *(f"[{more}]" for more in directive.more)])
        rows.append(f"| `{name}` | {operands} | {directive.text} |")
    numbers = ", ".join(f"`{name}`" for name in NUMBERS)
    return "\n".join([*rows, f"| {numbers} | numbers | Content of the Weight Memory, least significant byte first. |"])


def _refusal() -> str:
    image = assembly.assemble("\n".join(row for row in EXAMPLE.splitlines() if not row.startswith("sync matrix")))
    try:
        checking.check(image)
    except HazardError as error:
        return str(error)
    raise AssertionError("the checker found nothing")


if __name__ == "__main__":
    print(page(), end="")
