"""`result_aliases`: the results of an instruction that alias its operands, or parts of them.

Idea: a bitcast, an element of a tuple, a loop or an update in place make no new array. The compiler says so by the
opcode, by `output_to_operand_aliasing`, and, after buffer assignment, by `aliasing_operands`. The last one counts the
flattened operands first and the flattened results after them.

Rule: results that are not named here are new arrays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from anytpu.errors import PlanError
from anytpu.planning.hlo.instruction import Instruction
from anytpu.planning.quoting import quoted

_SAME = ("bitcast", "while", "tuple", "optimization-barrier", "add-dependency", "dynamic-update-slice", "domain")
INDEX = re.compile(r"\bindex=(\d{1,9})\b")
"""The index of a get-tuple-element."""

_OPERAND_ALIASING = re.compile(r"output_to_operand_aliasing=\{((?:\{[\d, ]*\}: \(\d+, \{[\d, ]*\}\),? ?)*)\}")
_PAIR = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}\)")
_LISTS = re.compile(r'"aliasing_operands":\{"lists":\[((?:\{"indices":\[[^\]]*\]\},?)*)\]\}')
_INDICES = re.compile(r"\[((?:\"\d{1,9}\",?)*)\]")
_DONATED = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}")
_LAYOUT = re.compile(r"\{[^}]*\}|\[[^\]]*\]|/\*.*?\*/")


def result_aliases(instruction: Instruction, operands: Sequence[Instruction]) -> dict[int, int]:
    """Return the index of the flattened operand that each aliasing flattened result uses, by the result's index.

    Args:
        instruction: the instruction.
        operands: its operands.
    """
    operand_count = sum(len(operand.shapes) for operand in operands)
    if instruction.opcode == "get-tuple-element":
        start, width = element_span(operands[0].text, int(_found(INDEX, instruction.text)))
        return {place: start + place for place in range(width)}
    if instruction.opcode in _SAME:
        return {place: place for place in range(min(len(instruction.shapes), operand_count))}
    if instruction.opcode.endswith("-start"):
        return _of_start(instruction, operand_count)
    if instruction.opcode.endswith("-done"):
        return _of_done(instruction, operands[0])
    return {**_of_lists(instruction, operand_count), **_of_pairs(instruction, operands)}


def donated_results(header: str) -> dict[int, int]:
    """Return the parameter whose memory each flattened result of the module takes over, by the result's index."""
    start = header.find("input_output_alias={")
    if start < 0:
        return {}
    end = header.find("entry_computation_layout", start)
    written = header[start : end if end > 0 else len(header)].split(" }")[0]
    return {int(index or 0): int(parameter) for index, parameter in _DONATED.findall(written)}


def element_span(tuple_text: str, index: int) -> tuple[int, int]:
    """Return the start and the number of the flattened arrays of a tuple's element.

    Example:
        >>> element_span("((f32[2]{0}, f32[3]{0}), u32[]) copy-start(%x)", 1)
        (2, 1)
    """
    head = tuple_text[: tuple_text.find(") ") + 1]
    if not head.startswith("((") and ", (" not in head:
        return index, 1
    starts, depth, leaves = [0], 0, 0
    for piece in re.findall(r"[(),]|[^(),]+", _LAYOUT.sub("", head)):
        depth += (piece == "(") - (piece == ")")
        leaves += piece.strip() not in ("(", ")", ",", "")
        if piece == "," and depth == 1:
            starts.append(leaves)
    starts.append(leaves)
    return starts[index], starts[index + 1] - starts[index]


def _of_start(instruction: Instruction, operand_count: int) -> dict[int, int]:
    if instruction.opcode == "copy-start":
        return {1: 0}  # The tuple is (copy, original, counter); for other opcodes (originals, results, counters).
    return {place: place for place in range(operand_count)} if len(instruction.shapes) > operand_count else {}


def _of_done(instruction: Instruction, start: Instruction) -> dict[int, int]:
    if instruction.opcode == "copy-done":
        return {0: 0}
    count = len(instruction.shapes)
    # Results come after the operands, which may have the same shape.
    fits = [first for first in range(len(start.shapes)) if start.shapes[first : first + count] == instruction.shapes]
    return {place: fits[-1] + place for place in range(count)} if fits else {}


def _of_lists(instruction: Instruction, operand_count: int) -> dict[int, int]:
    match = _LISTS.search(instruction.text)
    if not match:
        return {}
    aliases = dict[int, int]()
    lists = _INDICES.findall(match[1])
    if len(lists) != match[1].count('"indices":'):
        raise PlanError(
            f"the aliasing_operands {quoted(match[1])} of {quoted(instruction.name)} in the compiler's text cannot be "
            "read"
        )
    for written in lists:
        numbers = [int(number.strip('"')) for number in written.split(",") if number]
        operands = [number for number in numbers if number < operand_count]
        aliases |= {number - operand_count: operands[0] for number in numbers if number >= operand_count and operands}
    return aliases


def _of_pairs(instruction: Instruction, operands: Sequence[Instruction]) -> dict[int, int]:
    match = _OPERAND_ALIASING.search(instruction.text)
    if not match:
        return {}
    aliases = {}
    for result, operand, inside in _PAIR.findall(match[1]):
        before = sum(len(earlier.shapes) for earlier in operands[: int(operand)])
        aliases[int(result or 0)] = before + int(inside or 0)
    return aliases


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else "0"
