"""`Operands`: the comma-separated values after a mnemonic or a directive, with or without names.

Idea: operands are written as the arguments of a Python call, so Python's parser reads them. Nothing is executed.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from anytpu.chip.assembly.line import TEXTS, Head, SourceLine, nearest, without_texts

Number = int | float

_MAX_SYNTAX = 2**18
"""Maximum characters of a line's operands outside of texts: Python's parser takes some hundred bytes for each."""
_NUMBERS = 2**12  # of a line of data that are parsed at a time
_MAX_BITS = 14_000
"""Integers of more bits have more digits than Python prints."""
_SIGNS = {ast.UAdd: 1, ast.USub: -1}
_EXPECTED = (
    "the operands cannot be read. They are numbers (300, 0x12c, 0.5), names (read|activate), texts in quotation marks "
    "or lists in brackets, separated by commas; those with a name come last. A comment begins with ';' or '#'."
)


@dataclasses.dataclass(frozen=True)
class OperandValue:
    """The value of one operand.

    Attributes:
        column: column where the value starts.
        text: the value as written, or "a list".
        content: a number, a text, words (`read|activate` are two), or a list of numbers.
    """

    column: int
    text: str
    content: Number | str | tuple[str, ...] | list[Number]


class _Reader:
    """The operands of a line as the syntax tree of a call."""

    def __init__(self, line: SourceLine, column: int, text: str):
        self.line, self.column, self.text = line, column, text
        # Each text has two quotation marks. So many of them are refused before they are matched.
        length = text.count('"')
        if length <= _MAX_SYNTAX:
            length = len(TEXTS.sub('""', text))
        if length > _MAX_SYNTAX:
            raise line.error(
                column,
                f"a line has at most {_MAX_SYNTAX:,} characters outside of texts, and this one {length:,}. Write data "
                "as .int8 or .base64.",
            )
        # Texts are written as in JSON, and read below: Python's escapes are others.
        masked = without_texts(text)
        try:
            is_plain = masked.isascii() and "(" not in masked
            with warnings.catch_warnings(action="error"):  # Python warns of "1if".
                call = ast.parse(f"f({masked})", mode="eval").body if is_plain else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            call = None
        # A text with brackets of its own may be another expression than one call, as in f(1)(2).
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or text.endswith(","):
            raise line.error(column, _EXPECTED)
        self.call = call

    def column_of(self, node: ast.expr | ast.keyword) -> int:
        return self.column + node.col_offset - 2

    def value(self, node: ast.expr) -> OperandValue:
        column, text = self.column_of(node), self.text[node.col_offset - 2 : (node.end_col_offset or 0) - 2]
        if isinstance(node, ast.List):
            return OperandValue(column, "a list", [self._listed(item) for item in node.elts])
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return OperandValue(column, text, json.loads(text))
            except ValueError as error:
                raise self.line.error(column, f"the text {text} cannot be read: it is written as in JSON.") from error
        number = self._number(node)
        content = _words(node) if number is None else number
        if content is None:
            raise self.line.error(column, _EXPECTED)
        return OperandValue(column, text, content)

    def _listed(self, node: ast.expr) -> Number:
        number = self._number(node)
        if number is None:
            raise self.line.error(self.column_of(node), "a list holds numbers, separated by commas, and ends with ']'.")
        return number

    def _number(self, node: ast.expr) -> Number | None:
        number = _number(node)
        if isinstance(number, int) and number.bit_length() > _MAX_BITS:
            raise self.line.error(self.column_of(node), f"an integer has at most {_MAX_BITS:,} bits.")
        return number


def _number(node: ast.expr) -> Number | None:
    sign = 1
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        sign, node = _SIGNS[type(node.op)], node.operand
    if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
        return None
    return sign * node.value  # type: ignore


def _words(node: ast.expr) -> tuple[str, ...] | None:
    words: list[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and isinstance(node.right, ast.Name):
        words.append(node.right.id)
        node = node.left
    return (node.id, *reversed(words)) if isinstance(node, ast.Name) else None


def read_numbers(line: SourceLine, head: Head, column: int, text: str) -> Iterator[list[OperandValue]]:
    """Yield the operands of a line that takes any count of numbers, some at a time.

    Raises:
        AssemblyError: an operand is not a number.
    """
    if text.endswith(","):
        raise line.error(column, _EXPECTED)
    start = 0
    for number, comma in enumerate(re.finditer(",", text), 1):
        if number % _NUMBERS == 0:
            yield _read_numbers(line, head, column + start, text[start : comma.start()])
            start = comma.end()
    yield _read_numbers(line, head, column + start, text[start:])


def _read_numbers(line: SourceLine, head: Head, column: int, text: str) -> list[OperandValue]:
    reader = _Reader(line, column, text)
    values = [reader.value(node) for node in reader.call.args]
    other = next((value.column for value in values if not isinstance(value.content, int | float)), None)
    if reader.call.keywords or other is not None:
        raise line.error(other or column, f"{head.text} takes numbers, separated by commas.")
    return values


class Operands:
    """The operands of a line, by their names."""

    def __init__(self, line: SourceLine, column: int, values: dict[str, OperandValue]):
        self._line, self._column, self._values = line, column, values

    @classmethod
    def read(cls, line: SourceLine, head: Head, column: int, text: str, names: Sequence[str]) -> Operands:
        """Read the operands of a line.

        Args:
            line: the line.
            head: the mnemonic or directive.
            column: column of the first operand.
            text: the operands.
            names: the operands that it may have, in the order of operands without names.
        """
        reader, values = _Reader(line, column, text), dict[str, OperandValue]()
        if len(reader.call.args) > len(names):
            raise line.error(reader.column_of(reader.call.args[len(names)]), _too_many(head.text, names))
        for name, node in zip(names, reader.call.args, strict=False):
            values[name] = reader.value(node)
        for keyword in reader.call.keywords:
            name = keyword.arg or "**"
            if name not in names:
                raise line.error(reader.column_of(keyword), _no_such(head.text, name, names))
            if name in values:
                raise line.error(reader.column_of(keyword), f"{name} is given twice.")
            values[name] = reader.value(keyword.value)
        return cls(line, head.column, values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def refuse(self, name: str, message: str) -> NoReturn:
        """Raise an error that shows the operand."""
        raise self._line.error(self._values[name].column, message)

    def require(self, head: str, names: Sequence[str]) -> None:
        """Raise an error when an operand is missing."""
        missing = [name for name in names if name not in self._values]
        if missing:
            raise self._line.error(self._column, f"{head} needs {' and '.join(missing)}.")

    def value(self, name: str) -> OperandValue:
        """Return an operand's value."""
        return self._values[name]

    def whole(self, name: str, default: int = 0) -> int:
        """Return an integer operand."""
        if name not in self._values:
            return default
        return self._of(int, name, "an integer")

    def number(self, name: str) -> Number:
        """Return a number operand."""
        return self._of((int, float), name, "a number")

    def text(self, name: str, default: str = "") -> str:
        """Return a text operand."""
        if name not in self._values:
            return default
        return self._of(str, name, f'a text, like "{name}"')

    def _of(self, kinds: type | tuple[type, ...], name: str, expected: str) -> Any:
        content = self._values[name].content
        if not isinstance(content, kinds):
            self.refuse(name, f"{name} must be {expected}, not {self._values[name].text}.")
        return content

    def numbers(self, name: str) -> list[int]:
        """Return a list operand of integers."""
        content = self._values[name].content
        if not isinstance(content, list) or not all(isinstance(number, int) for number in content):
            self.refuse(name, f"{name} must be a list of integers, like [1, 1, 10].")
        return [int(number) for number in content]


def _no_such(head: str, name: str, names: Sequence[str]) -> str:
    return f"{head} has no operand {name!r}. {nearest(name, names)}" if names else f"{head} has no operands."


def _too_many(head: str, names: Sequence[str]) -> str:
    if not names:
        return f"{head} has no operands."
    return f"{head} has {len(names)} operand{'s' * (len(names) > 1)}: {', '.join(names)}."
