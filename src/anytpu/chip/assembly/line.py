"""`SourceLine`: a line of assembly: its first word, the operands behind it, and its errors.

Rule: a syntax error is an `AssemblyError` that shows the line, with a mark under the column.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable

from anytpu.errors import AssemblyError

_TEXT = r'"(?:[^"\\]++|\\.)*+"'  # "++", so that the match of a long line takes no memory
_LINE = re.compile(rf'\s*(?P<head>\.?[A-Za-z_]\w*(?:\.\w+)*)?(?P<operands>(?:[^";#]++|{_TEXT})*+)(?:[;#].*)?')
TEXTS = re.compile(_TEXT)
"""A text in quotation marks."""

MAX_MESSAGE = 600
"""Maximum characters of an error's message, and of the part of the line before the mark."""


@dataclasses.dataclass(frozen=True)
class SourceLine:
    """A line of a source text.

    Attributes:
        number: number of the line, from 1.
        text: the line, without its end-of-line characters.
    """

    number: int
    text: str

    def error(self, column: int, message: str) -> AssemblyError:
        """Return an error that names the line and the column, and shows them."""
        text = self.text.replace("\t", " ").rstrip()
        # A line of data, or a word that the message quotes, may be very long: show only the part around the mark.
        start = 0 if column <= MAX_MESSAGE else column - 120
        stop = max(column + 40, 120)
        shown = f"{'...' if start else ''}{text[start:stop]}{'' if len(text) <= stop else ' ...'}"
        mark = " " * (column - 1 - start + (3 if start else 0)) + "^"
        message = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}..."
        return AssemblyError(f"Line {self.number}, column {column}: {message}\n    {shown}\n    {mark}")

    def split(self) -> tuple[Head, int, str] | None:
        """Return the first word, the column of the operands and their text; None for a line without an instruction.

        Raises:
            AssemblyError: the line begins with something else, or a text does not end.
        """
        match = _LINE.match(self.text)
        assert match is not None  # each part of the pattern may be empty
        if match.end() < len(self.text):
            raise self.error(
                match.end() + 1, "a text begins here and does not end. It ends with a second quotation mark."
            )
        operands = match["operands"]
        if match["head"] is None:
            if not operands.strip():
                return None
            column = len(self.text) - len(self.text.lstrip()) + 1
            raise self.error(column, "a line begins with an instruction, or with a directive, like .batch.")
        column = match.start("operands") + len(operands) - len(operands.lstrip()) + 1
        return Head(match["head"], match.start("head") + 1), column, operands.strip()


@dataclasses.dataclass(frozen=True)
class Head:
    """The first word of a line, and its column, from 1."""

    text: str
    column: int


def without_texts(operands: str) -> str:
    """Return operands of the same length, with each text in quotation marks replaced by underscores.

    Example:
        >>> without_texts('"a\\\\"b", 3')
        '"____", 3'
    """
    return TEXTS.sub(lambda match: f'"{"_" * (len(match[0]) - 2)}"', operands)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a sentence with the closest known word, or with all known words if none is close.

    Example:
        >>> nearest("matrix_mulitply", ["matrix_multiply", "convolve"]), nearest("zzz", ["scale", "copy"])
        ('Did you mean matrix_multiply?', 'There are: scale, copy.')
    """
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}."
