"""`SourceLine`: the tokens of a line of assembly: words, numbers, strings and signs, each with its column.

Rule: a syntax error is an `AssemblyError` that shows the line, with a mark under the column.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from anytpu.errors import AssemblyError

_TOKEN = re.compile(
    r"""\s*(?:(?P<comment>[;#].*|$)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<number>[-+]?\.?\d(?:[eE][-+]|[\w.])*)
    |(?P<word>\.?[A-Za-z_]\w*(?:\.\w+)*)
    |(?P<sign>[,=|\[\]]))""",
    re.VERBOSE,
)
_HEXADECIMAL = re.compile(r"[-+]?0[xX](?P<digits>.*)")


MAX_MESSAGE = 600
"""Maximum characters of an error's message, and of the part of the line before the mark."""


class Token(NamedTuple):
    """A token of a line.

    Attributes:
        kind: kind of the token; "end" follows the last.
        text: the token as written.
        column: column of its first character, from 1.
        value: value of a number or a string.
    """

    kind: Literal["text", "number", "word", "sign", "end"]
    text: str
    column: int
    value: int | float | str = ""


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

    def tokens(self) -> list[Token]:
        """Return the tokens of the line, without spaces and comments; the last is "end"."""
        tokens: list[Token] = []
        offset, end, text = 0, 0, self.text
        while offset < len(text):
            match = _TOKEN.match(text, offset)
            if match is None:
                start = offset + len(text[offset:]) - len(text[offset:].lstrip())
                raise self.error(start + 1, self._strange(start))
            kind = match.lastgroup
            if kind == "comment":
                break
            tokens.append(self._token(kind or "", match[kind or 0], match.start(kind or 0) + 1))
            offset = end = match.end()
        return [*tokens, Token("end", "", end + 1)]

    def _token(self, kind: str, text: str, column: int) -> Token:
        if kind == "number":
            return Token("number", text, column, self._number(text, column))
        if kind == "text":
            try:
                return Token("text", text, column, json.loads(text))
            except ValueError as error:
                raise self.error(column, f"the text {text} cannot be read: it is written as in JSON.") from error
        return Token("word" if kind == "word" else "sign", text, column)

    def _number(self, text: str, column: int) -> int | float:
        try:
            hexadecimal = _HEXADECIMAL.match(text)
            if hexadecimal is not None:
                return int(text, 16)
            return int(text)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            raise self.error(column, f"{text!r} is not a number. Write 300, 0x12c or 0.5.") from None

    def _strange(self, offset: int) -> str:
        if self.text[offset] == '"':
            return "a text begins here and does not end. It ends with a second quotation mark."
        return f"the character {self.text[offset]!r} means nothing here. A comment begins with ';' or '#'."


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a sentence with the closest known word, or with all known words if none is close.

    Example:
        >>> nearest("matrix_mulitply", ["matrix_multiply", "convolve"]), nearest("zzz", ["scale", "copy"])
        ('Did you mean matrix_multiply?', 'There are: scale, copy.')
    """
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}."
