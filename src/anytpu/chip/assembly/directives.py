"""The lines that begin with a dot: what an image has beside its instructions.

Rule: this table is the definition; the assembler and the page of documentation read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anytpu.chip.assembly.draft import Draft, read_base64, read_json
from anytpu.chip.assembly.line import Line, Token, nearest
from anytpu.chip.assembly.operands import Operands
from anytpu.chip.design import BLOCK_BYTES, TPU_V1, Design
from anytpu.chip.image import MOST_BATCH, MOST_HOST_BYTES, Binding, Resident, Tag, fault_in_binding
from anytpu.chip.quantized.nodes import Quantization, fault_in_quantization
from anytpu.errors import SettingError
from anytpu.files.memory import check_memory, check_ratio

_ZEROS_BYTES = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class Directive:
    """A kind of line that begins with a dot.

    Attributes:
        needed: the operands that it must have, in order; they may stand without names.
        more: those that it may have after them.
        text: what it says, for the documentation.
        take: puts it into the draft.
    """

    needed: tuple[str, ...]
    more: tuple[str, ...]
    text: str
    take: Callable[[Draft, Line, Operands], None]


def read_directive(draft: Draft, line: Line, tokens: Sequence[Token]) -> None:
    """Put what a line says into a draft.

    Raises:
        AssemblyError: it cannot be read.
    """
    head = tokens[0]
    if head.text in NUMBERS:
        draft.weights += _numbers(line, head, tokens[1:])
        return
    directive = DIRECTIVES.get(head.text)
    if directive is None:
        known = [*DIRECTIVES, *NUMBERS]
        raise line.error(head.column, f"there is no directive {head.text!r}. {nearest(head.text, known)}")
    operands = Operands.read(line, head, tokens[1:], (*directive.needed, *directive.more))
    operands.require(head.text, directive.needed)
    directive.take(draft, line, operands)


def _name(draft: Draft, line: Line, operands: Operands) -> None:
    draft.name = operands.text("text")


def _batch(draft: Draft, line: Line, operands: Operands) -> None:
    draft.batch = _whole(operands, "examples", 1, MOST_BATCH)


def _host_bytes(draft: Draft, line: Line, operands: Operands) -> None:
    draft.host_bytes = _whole(operands, "bytes", 0, MOST_HOST_BYTES)


def _design(draft: Draft, line: Line, operands: Operands) -> None:
    for name in _KNOBS:
        if name in operands:
            value: Any = operands.number(name)
            try:
                dataclasses.replace(TPU_V1, **{name: value})
            except SettingError as error:
                operands.refuse(name, str(error))
            draft.design[name] = value


def _input(draft: Draft, line: Line, operands: Operands) -> None:
    draft.inputs.append((_binding(operands), "lanes" in operands))


def _output(draft: Draft, line: Line, operands: Operands) -> None:
    draft.outputs.append((_binding(operands), "lanes" in operands))


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


def _tag(draft: Draft, line: Line, operands: Operands) -> None:
    text = {name: operands.text(name) for name in ("name", "layer", "kind", "note")}
    draft.tags.append(Tag(**text, macs=_natural(operands, "macs")))


def _resident(draft: Draft, line: Line, operands: Operands) -> None:
    numbers = {name: _natural(operands, name) for name in ("address", "units", "first", "last")}
    draft.residents.append(Resident(operands.text("tensor"), **numbers))


def _block(draft: Draft, line: Line, operands: Operands) -> None:
    place = _natural(operands, "number") * BLOCK_BYTES
    if place < len(draft.weights):
        there = -(-len(draft.weights) // BLOCK_BYTES)
        operands.refuse("number", f"block {operands.whole('number')} is filled; the next that is free is {there}.")
    _fill(draft, operands, "number", place - len(draft.weights))


def _zero(draft: Draft, line: Line, operands: Operands) -> None:
    _fill(draft, operands, "bytes", _natural(operands, "bytes"))


def _fill(draft: Draft, operands: Operands, name: str, size: int) -> None:
    """Add so many bytes of 0 to the Weight Memory."""
    most = draft.design.get("weight_memory_bytes", TPU_V1.weight_memory_bytes)
    if len(draft.weights) + size > most:
        operands.refuse(
            name,
            f"the Weight Memory has {most:,} bytes, and this would fill {len(draft.weights) + size:,}. A larger one is "
            "asked for before: .design weight_memory_bytes=...",
        )
    draft.zeros_bytes += size
    try:
        check_memory(size)
        check_ratio(len(draft.weights) + size - draft.zeros_bytes, draft.zeros_bytes)
    except ValueError as error:
        operands.refuse(name, f"there is no room for {size:,} bytes of 0: {error}.")
    for start in range(0, size, _ZEROS_BYTES):  # so that they are held once
        draft.weights += bytes(min(_ZEROS_BYTES, size - start))


def _base64(draft: Draft, line: Line, operands: Operands) -> None:
    draft.weights += read_base64(line, operands.value("text").column, operands.text("text"))


def _service(draft: Draft, line: Line, operands: Operands) -> None:
    draft.services.append((line, read_json(line, operands.value("description").column, operands.text("description"))))


def _steps(draft: Draft, line: Line, operands: Operands) -> None:
    draft.steps = line, read_json(line, operands.value("description").column, operands.text("description"))


def _array(draft: Draft, line: Line, operands: Operands) -> None:
    content = read_base64(line, operands.value("content").column, operands.text("content"))
    try:
        dtype = np.dtype(operands.text("dtype"))
        if dtype.kind not in "biuf":
            raise TypeError(f"{dtype} is no kind of numbers")
        array = np.frombuffer(content, dtype.newbyteorder("<"))
        draft.arrays.append(array.reshape(operands.numbers("shape")))
    except (TypeError, ValueError) as error:
        operands.refuse("dtype", f"the array cannot be read: {error}.")


def _left_out(draft: Draft, line: Line, operands: Operands) -> None:
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
"""All directives but those of numbers."""

NUMBERS = {".int8": "<i1", ".uint8": "<u1", ".int16": "<i2", ".int32": "<i4", ".float32": "<f4"}
"""Directives of numbers, separated by commas, that follow in the Weight Memory; and how each is laid down."""


def _numbers(line: Line, head: Token, tokens: Sequence[Token]) -> bytes:
    dtype, values = np.dtype(NUMBERS[head.text]), []
    for place, token in enumerate(tokens):
        if place % 2 == 0:
            if token.kind != "number":
                raise line.error(token.column, f"{head.text} takes numbers, separated by commas.")
            values.append(_number(line, token, dtype))
        elif token.kind == "end":
            break
        elif token.text != ",":
            raise line.error(token.column, f"a comma must stand before {token.text}.")
    return np.array(values, dtype).tobytes()


def _number(line: Line, token: Token, dtype: np.dtype) -> int | float:
    value = token.value
    assert not isinstance(value, str)
    if dtype.kind == "f":
        if abs(value) > float(np.finfo(dtype).max):
            raise line.error(token.column, f"{token.text} is no float32 number.")
        return value
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if not isinstance(value, int) or not least <= value <= most:
        raise line.error(token.column, f"a number of {dtype.name} is a whole one from {least} to {most}.")
    return value


def _natural(operands: Operands, name: str) -> int:
    return _whole(operands, name, 0, 2**63 - 1)


def _whole(operands: Operands, name: str, least: int, most: int) -> int:
    value = operands.whole(name)
    if not least <= value <= most:
        operands.refuse(name, f"{name} must be a number from {least} to {most}, not {value}.")
    return value
