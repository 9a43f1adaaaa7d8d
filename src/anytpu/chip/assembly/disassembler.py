"""`disassemble`: an image as a text that people read and that the assembler turns into the same image.

Rule: text after a ';' is a comment, for the reader only: an instruction's byte offset, the data it moves, its layer. A
text that leaves out a part of the image says so in a `.left_out` line, which the assembler refuses.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from anytpu.chip.assembly.instruction_text import write_instruction
from anytpu.chip.assembly.remarks import remark_on, tag_text
from anytpu.chip.image.image import Binding, Image, Tag
from anytpu.chip.image.serialization import RecordEncoder
from anytpu.chip.isa.design import BLOCK_BYTES, TPU_V1, Design
from anytpu.chip.isa.forms import form_of
from anytpu.chip.isa.instructions import DebugTag
from anytpu.chip.isa.issue import issue
from anytpu.report.wording import one_line, plural

_COMMENT_COLUMN = 66
_LINE_BYTES = 64  # of data, so that blocks begin with a line


def disassemble(image: Image, weights: bool = False) -> str:
    """Return an image as text.

    Args:
        image: the program.
        weights: whether to include the bytes of the Weight Memory and the host's steps, so that `assemble` gives the
            same image again. Without them the text is for reading: it names the parts left out. The assembler refuses
            it only if there are such parts.

    Example:
        >>> from anytpu.chip.assembly import assemble
        >>> print(disassemble(assemble("sync matrix, read", "short")), end="")
        ; short: 1 instruction, 3 bytes, for batches of 1
        .name "short"
        .batch 1
        .host_bytes 0
        <BLANKLINE>
        sync matrix, read                                                 ; 0 matrix waits for read
    """
    parts = [_head(image), _whole(image) if weights else _left_out(image), _instructions(image)]
    return "".join(f"{line}\n" for part in parts for line in part)


def _head(image: Image) -> Iterator[str]:
    count = len(image.instructions)
    size = sum(form_of(instruction).length_bytes for instruction in image.instructions)
    yield f"; {one_line(image.name)}: {plural(count, 'instruction')}, {size:,} bytes, for batches of {image.batch}"
    yield f".name {json.dumps(image.name)}"
    yield f".batch {image.batch}"
    yield f".host_bytes {image.host_bytes}"
    fields = [field.name for field in dataclasses.fields(Design)]
    knobs = [(name, getattr(image.design, name)) for name in fields]
    turned = [f"{name}={value}" for name, value in knobs if value != getattr(TPU_V1, name)]
    if turned:
        yield f".design {', '.join(turned)}"
    yield from (f".input {_binding(binding)}" for binding in image.inputs)
    yield from (f".output {_binding(binding)}" for binding in image.outputs)
    yield from (f".tag {_tag(tag)}" for tag in image.tags)
    for resident in image.residents:
        numbers = ", ".join(f"{name}={getattr(resident, name)}" for name in ("address", "units", "first", "last"))
        yield f".resident {json.dumps(resident.tensor)}, {numbers}"


def _binding(binding: Binding) -> str:
    quantization = binding.quantization
    return (
        f"{json.dumps(binding.tensor)}, shape={list(map(int, binding.shape))}, host_address={binding.host_address}, "
        f"scale={float(quantization.scale)!r}, zero_point={quantization.zero_point}, bits={quantization.bits}, "
        f"lanes={list(map(int, binding.lanes))}"
    )


def _tag(tag: Tag) -> str:
    known = {name: getattr(tag, name) for name in ("layer", "kind", "macs", "note") if getattr(tag, name)}
    named = [f"{name}={json.dumps(value, default=np.generic.item)}" for name, value in known.items()]
    return ", ".join([json.dumps(tag.name), *named])


def _left_out(image: Image) -> Iterator[str]:
    missing = []
    if len(image.weights):
        missing.append(f"{len(image.weights):,} bytes of weights")
    if image.services:
        missing.append("what the host does")
    if missing:
        yield f".left_out {json.dumps(' and '.join(missing))}"


def _whole(image: Image) -> Iterator[str]:
    yield from _weights(image.weights)
    if image.services:
        records = RecordEncoder()
        for service in image.services:
            yield f".service {_described(records.value(service))}"
        yield f".steps {_described(records.steps)}"
        for array in records.arrays:
            plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
            yield f'.array "{array.dtype.name}", {list(array.shape)}, "{base64.b64encode(plain).decode()}"'


def _described(described: Any) -> str:
    return json.dumps(json.dumps(described))


def _weights(weights: np.ndarray) -> Iterator[str]:
    content = np.ascontiguousarray(weights, np.uint8).tobytes()
    zeros = 0
    for offset in range(0, len(content), _LINE_BYTES):
        part = content[offset : offset + _LINE_BYTES]
        if not any(part):
            zeros += len(part)
            continue
        if zeros:
            yield f".zero {zeros}"
            zeros = 0
        block, inside = divmod(offset, BLOCK_BYTES)
        yield f'.base64 "{base64.b64encode(part).decode()}"' + ("" if inside else f"  ; block {block}")
    if zeros:
        yield f".zero {zeros}"


def _instructions(image: Image) -> Iterator[str]:
    offset = 0
    for issued in issue(image.instructions):
        instruction = issued.instruction
        part = tag_text(image, instruction.tag) if isinstance(instruction, DebugTag) else ""
        if part:
            yield f"\n; {part}"
        elif not offset:
            yield ""
        remark = one_line(f"; {offset} {remark_on(image, issued)}")
        yield f"{write_instruction(instruction):{_COMMENT_COLUMN - 1}} {remark}"
        offset += form_of(instruction).length_bytes
