"""`assemble`: parse an assembly text into an image, line by line. docs/chip_isa.md defines the language.

Idea: each line has one instruction: `matrix_multiply.accumulate address=64, accumulator=0, rows=200, repeat=4`. Flags
and choices are suffixes; the rest are operands, in order or by name. A directive, a line that begins with a dot, sets
the other fields of the image. ';' and '#' begin a comment.
"""

from __future__ import annotations

import re

from anytpu.chip.assembly.directives import read_directive
from anytpu.chip.assembly.image_builder import ImageBuilder, read_base64
from anytpu.chip.assembly.instruction_line import read_instruction
from anytpu.chip.assembly.line import SourceLine
from anytpu.chip.image.image import Image

# Nearly all lines of a large network are data in base64; parsing them would take minutes.
_PLAIN_BYTES = re.compile(r'\.base64 "([A-Za-z0-9+/=]*)"(?: *;.*)?')


def assemble(text: str, name: str = "assembled") -> Image:
    """Return the image that a text describes. Its instructions are not checked; `anytpu.chip.checking.check` does that.

    Args:
        text: the assembly text.
        name: name of the program, unless the text sets it (`.name`).

    Raises:
        AssemblyError: a line has a syntax error; the message names line and column, and shows the line.

    Example:
        >>> assemble("sync matrix, read|activate  ; a comment").instructions
        (Sync(waiting=4, finished=9),)
    """
    builder = ImageBuilder(len(text), name)
    for number, content in enumerate(text.splitlines(), 1):
        line = SourceLine(number, content)
        plain = _PLAIN_BYTES.fullmatch(content)
        if plain is not None:
            builder.weights += read_base64(line, plain.start(1), plain.group(1))
            continue
        parts = line.split()
        if parts is None:
            continue
        head = parts[0]
        if head.text.startswith("."):
            read_directive(builder, line, *parts)
        else:
            builder.instructions.append(read_instruction(line, *parts))
    return builder.image()
