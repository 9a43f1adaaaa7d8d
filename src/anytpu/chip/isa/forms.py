"""The encoding of each instruction: the table that encoder, decoder, assembler and documentation read.

Idea: an instruction is a number, least significant byte first. Its lowest byte is the opcode. The fields are the bits
above it, in order, each with the number of bits in the table.

Rule: every instruction has exactly one form in bytes. Reserved bits are 0. No opcode is 0, so that a range of zeros is
not a program. A number outside of its field's bounds is rejected. A float is finite and above 0.

Source: Jouppi et al. 2017, section 2, give MatrixMultiply 12 bytes: 3 for the Unified Buffer address, 2 for the
accumulator address, 4 for the length. All the rest is ours.
"""

from __future__ import annotations

import dataclasses
import enum
import functools

from anytpu.chip.isa import instructions
from anytpu.chip.isa.instructions import Instruction
from anytpu.chip.isa.units import Unit


class FieldKind(enum.Enum):
    """The interpretation of a field's bits."""

    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    UNITS = "units"
    REGISTER = "register"
    VALUE = "value"
    RESERVED = "reserved"


@dataclasses.dataclass(frozen=True)
class Field:
    """A part of an instruction.

    Attributes:
        name: name of the instruction's attribute; "" for reserved bits.
        bits: number of bits.
        kind: a number, a flag of one bit, an index into `choices`, a mask of units, or the number of a register. A
            `VALUE` is the value of the register before it, by that register's kind. Reserved bits are 0.
        minimum: minimum of a number.
        choices: the values of a choice, by index.
        text: a phrase on its meaning, for the documentation.
    """

    name: str
    bits: int
    kind: FieldKind = FieldKind.NUMBER
    minimum: int = 0
    choices: tuple[str, ...] = ()
    text: str = ""

    @functools.cached_property
    def maximum(self) -> int:
        """Maximum of the number that it may hold."""
        if self.kind is FieldKind.UNITS:
            return (1 << len(Unit)) - 1
        if self.kind is FieldKind.RESERVED:
            return 0
        return len(self.choices) - 1 if self.choices else (1 << self.bits) - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """The form of one instruction.

    Attributes:
        opcode: its first byte.
        mnemonic: its name in assembly.
        record: its class.
        fields: its fields after the opcode, from the lowest bit up.
        text: a sentence on its effect, for listings and the documentation.
    """

    opcode: int
    mnemonic: str
    record: type[Instruction]
    fields: tuple[Field, ...]
    text: str

    @functools.cached_property
    def length_bytes(self) -> int:
        """Length in bytes, opcode included."""
        return 1 + sum(field.bits for field in self.fields) // 8

    @functools.cached_property
    def places(self) -> tuple[tuple[Field, int], ...]:
        """Each field with the index of its lowest bit."""
        places, bit = [], 8
        for field in self.fields:
            places.append((field, bit))
            bit += field.bits
        return tuple(places)

    @functools.cached_property
    def operands(self) -> tuple[Field, ...]:
        """The fields that assembly writes as operands, in the order of the record."""
        named = {f.name: f for f in self.fields if f.kind not in (FieldKind.FLAG, FieldKind.CHOICE, FieldKind.RESERVED)}
        return tuple(named[f.name] for f in dataclasses.fields(self.record) if f.name in named)

    @functools.cached_property
    def suffixes(self) -> tuple[Field, ...]:
        """The fields that assembly writes after the mnemonic, behind a dot."""
        return tuple(f for f in self.fields if f.kind in (FieldKind.FLAG, FieldKind.CHOICE))

    @functools.cached_property
    def defaults(self) -> dict[str, object]:
        """Values of the fields that assembly may omit, by name."""
        every = dataclasses.fields(self.record)
        return {f.name: f.default for f in every if f.default is not dataclasses.MISSING}


def _flag(name: str, text: str) -> Field:
    return Field(name, 1, FieldKind.FLAG, text=text)


def _unit(name: str, text: str) -> Field:
    return Field(name, 24, text=text + ", in units of 32 bytes")


_ROWS = Field("rows", 32, minimum=1, text="number of rows")
_WIDE = _flag("wide", "the source is 16-bit")
_COPY = (
    Field("host_address", 40, text="byte of the host's buffer"),
    _unit("address", "Unified Buffer address"),
    _unit("units", "size"),
)
_PRODUCT = (
    _flag("accumulate", "the first pass adds to the sums"),
    _flag("keep", "the first pass uses the tile in the array"),
    _flag("unsigned", "source bytes are 0 to 255"),
    _WIDE,
    Field("", 4, FieldKind.RESERVED),
    Field("repeat", 8, minimum=1, text="number of passes"),
    _unit("address", "start of the source plane"),
    Field("accumulator", 16, text="index of the first accumulator row"),
    _ROWS,
)

FORMS = (
    Form(0x01, "nop", instructions.Nop, (), "Nothing."),
    Form(0x02, "halt", instructions.Halt, (), "Wait for all units, then end the program."),
    Form(
        0x03,
        "debug_tag",
        instructions.DebugTag,
        (Field("tag", 24, text="an index into the parts of the program"),),
        "Mark the following instructions as a part of the program.",
    ),
    Form(
        0x04,
        "interrupt_host",
        instructions.InterruptHost,
        (Field("number", 16, text="index of the host's step"),),
        "Wait for all units, let the host do a step, continue.",
    ),
    Form(
        0x05,
        "set_configuration",
        instructions.SetConfiguration,
        (
            Field("register", 8, FieldKind.REGISTER, text="number of the register"),
            Field("value", 32, FieldKind.VALUE, text="read as the register's kind"),
        ),
        "Set a register for later instructions.",
    ),
    Form(
        0x06,
        "sync",
        instructions.Sync,
        (
            Field("waiting", 8, FieldKind.UNITS, minimum=1, text="mask of the units that wait"),
            Field("finished", 8, FieldKind.UNITS, minimum=1, text="mask of the units that they wait for"),
        ),
        "Make units wait for other units.",
    ),
    Form(0x10, "read_host_memory", instructions.ReadHostMemory, _COPY, "Copy the host's buffer to the Unified Buffer."),
    Form(
        0x11, "write_host_memory", instructions.WriteHostMemory, _COPY, "Copy the Unified Buffer to the host's buffer."
    ),
    Form(
        0x12,
        "read_weights",
        instructions.ReadWeights,
        (
            Field("kind", 2, FieldKind.CHOICE, choices=("tile", "parameters", "table"), text="kind of item"),
            _flag("wide", "tables of 65,536 entries of 16 bits"),
            Field("", 5, FieldKind.RESERVED),
            Field("address", 24, text="Weight Memory address, in blocks of 2 KiB"),
            Field("count", 24, minimum=1, text="number of items"),
            Field("slot", 8, text="index of the first table to fill"),
        ),
        "Request weights, parameters or tables.",
    ),
    Form(
        0x13,
        "matrix_multiply",
        instructions.MatrixMultiply,
        _PRODUCT,
        "Multiply rows by tiles, a plane of rows in each pass.",
    ),
    Form(
        0x14, "convolve", instructions.Convolve, _PRODUCT, "Multiply windows by tiles, one or more taps in each pass."
    ),
    Form(
        0x15,
        "activate",
        instructions.Activate,
        (
            Field(
                "operation",
                3,
                FieldKind.CHOICE,
                choices=("scale", "copy", "add", "subtract", "multiply", "max", "average"),
                text="operation of step 1",
            ),
            _flag("keep", "use the parameters of the last Activate"),
            _flag("table", "look up the result in a table"),
            _flag("counted", "an average divides by the number of positions inside"),
            _WIDE,
            _flag("wide_out", "the result is 16-bit"),
            Field("source", 24, text="accumulator row, or unit of the Unified Buffer"),
            _unit("target", "start of the result"),
            _ROWS,
            _unit("second", "start of the second operand"),
        ),
        "Compute a plane of results from sums, planes or windows.",
    ),
)
"""All instructions, by their opcodes."""

BY_OPCODE = {form.opcode: form for form in FORMS}
BY_MNEMONIC = {form.mnemonic: form for form in FORMS}
BY_RECORD = {form.record: form for form in FORMS}


def form_of(instruction: Instruction) -> Form:
    """Return the form of an instruction.

    Example:
        >>> form_of(instructions.Halt()).mnemonic, form_of(instructions.MatrixMultiply(0, 0, 1)).length_bytes
        ('halt', 12)
    """
    return BY_RECORD[type(instruction)]
