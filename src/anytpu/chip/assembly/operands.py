"""`Operands`: the comma-separated values after a mnemonic or a directive, with or without names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

from anytpu.chip.assembly.line import SourceLine, Token, nearest

Number = int | float


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


class Operands:
    """The operands of a line, by their names."""

    def __init__(self, line: SourceLine, column: int, values: dict[str, OperandValue]):
        self._line, self._column, self._values = line, column, values

    @classmethod
    def read(cls, line: SourceLine, head: Token, tokens: Sequence[Token], names: Sequence[str]) -> Operands:
        """Read the operands of a line.

        Args:
            line: the line.
            head: the mnemonic or directive.
            tokens: the tokens after it.
            names: the operands that it may have, in the order of operands without names.
        """
        values: dict[str, OperandValue] = {}
        named_before, index = False, 0
        while tokens[index].kind != "end":
            if index:
                index = _comma(line, tokens, index)
            first = tokens[index]
            is_named = first.kind == "word" and tokens[index + 1].text == "="
            if is_named:
                name, index, named_before = first.text, index + 2, True
                if name not in names:
                    raise line.error(first.column, _no_such(head.text, name, names))
            elif named_before:
                raise line.error(first.column, "an operand without a name stands after one that has a name.")
            elif len(values) == len(names):
                raise line.error(first.column, _too_many(head.text, names))
            else:
                name = names[len(values)]
            if name in values:
                raise line.error(first.column, f"{name} is given twice.")
            values[name], index = _value(line, tokens, index)
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
        content = self._values[name].content
        if not isinstance(content, int):
            self.refuse(name, f"{name} must be an integer, not {self._values[name].text}.")
        return content

    def number(self, name: str) -> Number:
        """Return a number operand."""
        content = self._values[name].content
        if not isinstance(content, int | float):
            self.refuse(name, f"{name} must be a number, not {self._values[name].text}.")
        return content

    def text(self, name: str, default: str = "") -> str:
        """Return a text operand."""
        if name not in self._values:
            return default
        content = self._values[name].content
        if not isinstance(content, str):
            self.refuse(name, f'{name} must be a text, like "{name}", not {self._values[name].text}.')
        return content

    def numbers(self, name: str) -> list[int]:
        """Return a list operand of integers."""
        content = self._values[name].content
        if not isinstance(content, list) or not all(isinstance(number, int) for number in content):
            self.refuse(name, f"{name} must be a list of integers, like [1, 1, 10].")
        return [int(number) for number in content]


def _comma(line: SourceLine, tokens: Sequence[Token], index: int) -> int:
    if tokens[index].text != ",":
        raise line.error(tokens[index].column, f"a comma must stand before {tokens[index].text}.")
    return index + 1


def _value(line: SourceLine, tokens: Sequence[Token], index: int) -> tuple[OperandValue, int]:
    first = tokens[index]
    if first.kind in ("number", "text"):
        return OperandValue(first.column, first.text, first.value), index + 1
    if first.text == "[":
        return _list(line, tokens, index)
    if first.kind != "word":
        raise line.error(first.column, f"an operand is missing before {_quoted(first)}.")
    words, index = [first.text], index + 1
    while tokens[index].text == "|":
        if tokens[index + 1].kind != "word":
            raise line.error(tokens[index + 1].column, "a word must stand after '|'.")
        words.append(tokens[index + 1].text)
        index += 2
    return OperandValue(first.column, "|".join(words), tuple(words)), index


def _list(line: SourceLine, tokens: Sequence[Token], index: int) -> tuple[OperandValue, int]:
    first, numbers = tokens[index], []
    index += 1
    while tokens[index].text != "]":
        if numbers:
            index = _comma(line, tokens, index)
        if tokens[index].kind != "number":
            raise line.error(tokens[index].column, "a list holds numbers, separated by commas, and ends with ']'.")
        numbers.append(tokens[index].value)
        index += 1
    return OperandValue(first.column, "a list", numbers), index + 1


def _no_such(head: str, name: str, names: Sequence[str]) -> str:
    return f"{head} has no operand {name!r}. {nearest(name, names)}" if names else f"{head} has no operands."


def _too_many(head: str, names: Sequence[str]) -> str:
    if not names:
        return f"{head} has no operands."
    return f"{head} has {len(names)} operand{'s' * (len(names) > 1)}: {', '.join(names)}."


def _quoted(token: Token) -> str:
    return repr(token.text) if token.text else "the end of the line"
