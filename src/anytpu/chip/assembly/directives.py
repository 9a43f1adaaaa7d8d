"""Directives: the lines that begin with a dot, which set the fields of an image other than its instructions.

Rule: the table of directives is the definition; the assembler and the documentation page read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from anytpu.chip.assembly.image_builder import ImageBuilder, read_base64, read_json
from anytpu.chip.assembly.line import Head, SourceLine, nearest
from anytpu.chip.assembly.operands import Operands, OperandValue, read_numbers
from anytpu.chip.graph.nodes import Quantization, fault_in_quantization
from anytpu.chip.image.image import MAX_BATCH, MAX_HOST_BYTES, Binding, Resident, Tag, fault_in_binding
from anytpu.chip.isa.design import BLOCK_BYTES, TPU_V1, Design
from anytpu.errors import SettingError
from anytpu.files.memory import check_memory, check_ratio
from anytpu.files.npy import named_dtype

_ZEROS_BYTES = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class Directive:
    """A kind of directive.

    Attributes:
        needed: names of the required operands, in order; they may be written without names.
        more: names of the optional operands, after these.
        text: its meaning, for the documentation.
        take: adds a directive of this kind to the image.
    """

    needed: tuple[str, ...]
    more: tuple[str, ...]
    text: str
    take: Callable[[ImageBuilder, SourceLine, Operands], None]


def read_directive(builder: ImageBuilder, line: SourceLine, head: Head, column: int, text: str) -> None:
    """Parse a directive, from the result of `SourceLine.split`, and add it to an image.

    Raises:
        AssemblyError: the line is not a valid directive.
    """
    if head.text in NUMBERS:
        dtype = np.dtype(NUMBERS[head.text])
        for values in read_numbers(line, head, column, text):
            builder.weights += np.array([_number(line, value, dtype) for value in values], dtype).tobytes()
        return
    directive = DIRECTIVES.get(head.text)
    if directive is None:
        known = [*DIRECTIVES, *NUMBERS]
        raise line.error(head.column, f"there is no directive {head.text!r}. {nearest(head.text, known)}")
    operands = Operands.read(line, head, column, text, (*directive.needed, *directive.more))
    operands.require(head.text, directive.needed)
    directive.take(builder, line, operands)


def _name(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    builder.name = operands.text("text")


def _batch(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    builder.batch = _whole(operands, "examples", 1, MAX_BATCH)


def _host_bytes(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    builder.host_bytes = _whole(operands, "bytes", 0, MAX_HOST_BYTES)
    try:
        check_ratio(builder.text_bytes, builder.host_bytes)
    except ValueError as error:
        operands.refuse("bytes", f"a host's buffer of {builder.host_bytes:,} bytes is too large: {error}.")


def _design(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    for name in _KNOBS:
        if name in operands:
            value: Any = operands.number(name)
            try:
                dataclasses.replace(TPU_V1, **{name: value})
            except SettingError as error:
                operands.refuse(name, str(error))
            builder.design[name] = value


def _input(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    builder.inputs.append((_binding(operands), "lanes" in operands))


def _output(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    builder.outputs.append((_binding(operands), "lanes" in operands))


def _binding(operands: Operands) -> Binding:
    tensor, shape = operands.text("tensor"), tuple(operands.numbers("shape"))
    address, scale = operands.whole("host_address"), operands.number("scale")
    zero_point, bits = operands.whole("zero_point"), operands.whole("bits", 8)
    lanes = tuple(operands.numbers("lanes")) if "lanes" in operands else shape[-1:]
    fault = fault_in_quantization(scale, zero_point, bits) or fault_in_binding(tensor, shape, address, lanes)
    if fault is not None:
        operands.refuse(*fault)
    height, width, channels = shape
    quantization = Quantization(float(scale), zero_point, bits)
    return Binding(tensor, (height, width, channels), quantization, address, lanes)


def _tag(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    text = {name: operands.text(name) for name in ("name", "layer", "kind", "note")}
    builder.tags.append(Tag(**text, macs=_natural(operands, "macs")))


def _resident(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    numbers = {name: _natural(operands, name) for name in ("address", "units", "first", "last")}
    builder.residents.append(Resident(operands.text("tensor"), **numbers))


def _block(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    start = _natural(operands, "number") * BLOCK_BYTES
    if start < len(builder.weights):
        there = -(-len(builder.weights) // BLOCK_BYTES)
        operands.refuse("number", f"block {operands.whole('number')} is filled; the next that is free is {there}.")
    _fill(builder, operands, "number", start - len(builder.weights))


def _zero(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    _fill(builder, operands, "bytes", _natural(operands, "bytes"))


def _fill(builder: ImageBuilder, operands: Operands, name: str, size: int) -> None:
    """Append `size` bytes of 0 to the Weight Memory."""
    maximum = builder.design.get("weight_memory_bytes", TPU_V1.weight_memory_bytes)
    if len(builder.weights) + size > maximum:
        operands.refuse(
            name,
            f"the Weight Memory has {maximum:,} bytes, and this would fill {len(builder.weights) + size:,}. A larger "
            "one is asked for before: .design weight_memory_bytes=...",
        )
    builder.zeros_bytes += size
    try:
        check_memory(size)
        check_ratio(len(builder.weights) + size - builder.zeros_bytes, builder.zeros_bytes)
    except ValueError as error:
        operands.refuse(name, f"there is no room for {size:,} bytes of 0: {error}.")
    for start in range(0, size, _ZEROS_BYTES):  # in pieces, so that they are in memory only once
        builder.weights += bytes(min(_ZEROS_BYTES, size - start))


def _base64(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    builder.weights += read_base64(line, operands.value("text").column, operands.text("text"))


def _service(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    builder.services.append((line, read_json(line, operands.value("description").column, operands.text("description"))))


def _steps(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    builder.steps = line, read_json(line, operands.value("description").column, operands.text("description"))


def _array(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    content = read_base64(line, operands.value("content").column, operands.text("content"))
    try:
        dtype = named_dtype(operands.text("dtype"))
        if dtype.kind not in "biuf":
            raise TypeError(f"{dtype} is no kind of numbers")
        array = np.frombuffer(content, dtype.newbyteorder("<"))
        builder.arrays.append(array.reshape(operands.numbers("shape")))
    except (TypeError, ValueError) as error:
        operands.refuse("dtype", f"the array cannot be read: {error}.")


def _left_out(builder: ImageBuilder, line: SourceLine, operands: Operands) -> None:
    operands.refuse(
        "what",
        f"this text leaves out {operands.text('what')}, so it is no whole program. Write it with weights: "
        "anytpu chip disasm --weights, or disassemble(weights=True).",
    )


_KNOBS = tuple(field.name for field in dataclasses.fields(Design))
_BINDING = ("tensor", "shape", "host_address", "scale"), ("zero_point", "bits", "lanes")
_TABLE = [
    (".name", ("text",), (), "Name of the program.", _name),
    (".batch", ("examples",), (), "Number of examples in a batch.", _batch),
    (".host_bytes", ("bytes",), (), "Size of the host's buffer.", _host_bytes),
    (".design", (), _KNOBS, "Changed sizes and rates of the chip; the rest is as on the first TPU.", _design),
    (".input", *_BINDING, "Address of an input in the host's buffer; `lanes` counts the lanes of each plane.", _input),
    (".output", *_BINDING, "Address of an output in the host's buffer.", _output),
    (".tag", ("name",), ("layer", "kind", "macs", "note"), "A part of the program, numbered from 0.", _tag),
    (
        ".resident",
        ("tensor", "address", "units", "first", "last"),
        (),
        "A tensor in the Unified Buffer from instruction `first` to `last`; for pictures.",
        _resident,
    ),
    (".block", ("number",), (), "The Weight Memory block where the following content starts.", _block),
    (".zero", ("bytes",), (), "A run of zero bytes in the Weight Memory.", _zero),
    (".base64", ("text",), (), "Bytes of the Weight Memory.", _base64),
    (".service", ("description",), (), "The host's step at an interrupt, in JSON; numbered from 0.", _service),
    (".steps", ("description",), (), "The operations of the services, in JSON.", _steps),
    (".array", ("dtype", "shape", "content"), (), "An array that the services or steps name, in base64.", _array),
    (".left_out", ("what",), (), "Content that this text omits; such a text cannot be assembled.", _left_out),
]
DIRECTIVES = {name: Directive(needed, more, text, take) for name, needed, more, text, take in _TABLE}
"""All directives, by name, except those of `NUMBERS`."""

NUMBERS = {".int8": "<i1", ".uint8": "<u1", ".int16": "<i2", ".int32": "<i4", ".float32": "<f4"}
"""Directives of data for the Weight Memory, numbers separated by commas: the dtype of each."""


def _number(line: SourceLine, written: OperandValue, dtype: np.dtype) -> int | float:
    value = written.content
    assert isinstance(value, int | float)
    if dtype.kind == "f":
        if abs(value) > float(np.finfo(dtype).max):
            raise line.error(written.column, f"{written.text} is no float32 number.")
        return value
    minimum, maximum = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if not isinstance(value, int) or not minimum <= value <= maximum:
        raise line.error(written.column, f"a number of {dtype.name} is an integer from {minimum} to {maximum}.")
    return value


def _natural(operands: Operands, name: str) -> int:
    return _whole(operands, name, 0, 2**63 - 1)


def _whole(operands: Operands, name: str, minimum: int, maximum: int) -> int:
    value = operands.whole(name)
    if not minimum <= value <= maximum:
        operands.refuse(name, f"{name} must be a number from {minimum} to {maximum}, not {value}.")
    return value
