"""`assemble`: a text to an image, a line at a time. docs/chip_isa.md has the whole language.

Idea: one instruction a line: `matrix_multiply.accumulate address=64, accumulator=0, rows=200, repeat=4`. Flags and
choices are suffixes, the rest are operands, in order or by name. A line that begins with a dot says what an image has
beside its instructions. ';' and '#' begin a comment.
"""

from __future__ import annotations

import re

from anytpu.chip.assembly.directives import read_directive
from anytpu.chip.assembly.image_builder import ImageBuilder, read_base64
from anytpu.chip.assembly.instruction_line import read_instruction
from anytpu.chip.assembly.line import SourceLine
from anytpu.chip.image import Image

# Nearly all lines of a whole network are such; taking them apart word by word would take minutes.
_PLAIN_BYTES = re.compile(r'\.base64 "([A-Za-z0-9+/=]*)"(?: *;.*)?')


def assemble(text: str, name: str = "assembled") -> Image:
    """Return the image that a text describes. It is not checked: `anytpu.chip.checking.check` does that.

    Args:
        text: in assembly.
        name: of the program, where the text does not say (`.name`).

    Raises:
        AssemblyError: a line cannot be read; line and column are named, and the line is shown.

    Example:
        >>> assemble("sync matrix, read|activate  ; a comment").instructions
        (Sync(waiting=4, finished=9),)
    """
    builder = ImageBuilder(name)
    for number, content in enumerate(text.splitlines(), 1):
        line = SourceLine(number, content)
        plain = _PLAIN_BYTES.fullmatch(content)
        if plain is not None:
            builder.weights += read_base64(line, plain.start(1), plain.group(1))
            continue
        tokens = line.tokens()
        head = tokens[0]
        if head.kind == "end":
            continue
        if head.kind != "word":
            raise line.error(head.column, "a line begins with an instruction, or with a directive, like .batch.")
        if head.text.startswith("."):
            read_directive(builder, line, tokens)
        else:
            builder.instructions.append(read_instruction(line, tokens))
    return builder.image()
