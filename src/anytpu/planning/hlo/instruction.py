"""`HloInstruction`, `Computation`: the parts of a module, and the memory that results share with operands.

Idea: an instruction has its operands and the computations that it calls, so a walk needs no other table. A bitcast, an
element of a tuple, a loop or an update in place make no new array. The compiler says so by the opcode, by
`output_to_operand_aliasing`, and, after buffer assignment, by `aliasing_operands`. The last one counts the flattened
operands first and the flattened results after them.

Rule: shapes are those of one device. Properties without a field stay in the instruction's text. All code that knows the
compiler's notation is in this folder.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from anytpu.errors import PlanError
from anytpu.planning.hlo.shapes import Shape
from anytpu.planning.records.quoting import quoted

_PARAMETER = re.compile(r"parameter\((\d{1,9})\)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_INDEX = re.compile(r"\bindex=(\d{1,9})\b")
_SAME = ("bitcast", "while", "tuple", "optimization-barrier", "add-dependency", "dynamic-update-slice", "domain")
_OPERAND_ALIASING = re.compile(r"output_to_operand_aliasing=\{((?:\{[\d, ]*\}: \(\d+, \{[\d, ]*\}\),? ?)*)\}")
_PAIR = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}\)")
_LISTS = re.compile(r'"aliasing_operands":\{"lists":\[((?:\{"indices":\[[^\]]*\]\},?)*)\]\}')
_INDICES = re.compile(r"\[((?:\"\d{1,9}\",?)*)\]")
_LAYOUT = re.compile(r"\{[^}]*\}|\[[^\]]*\]|/\*.*?\*/")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HloInstruction:
    """One instruction.

    Attributes:
        name: "fusion.12", without the percent sign.
        opcode: "fusion", "all-reduce", "while", ...
        shapes: its results: one shape, or those of the flattened tuple.
        operands: its operands, instructions of the same computation.
        called: names of called computations, in the order of the text. Examples: the body of a fusion, (condition,
            body) of a while, the branches of a conditional.
        computations: the computations of the module, by name.
        cycles: the compiler's estimate for one execution on one device, cycles, or None.
        op_name: the user's path, "jit(step)/jvp(conv1)/conv_general_dilated", or "".
        frame: number of its stack frame, or None: `module.source_of(instruction)` gives the line.
        text: the whole line after the name, for everything else: `kind=`, `window=`, `replica_groups=`, backend_config.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[HloInstruction, ...] = dataclasses.field(repr=False)
    called: tuple[str, ...]
    computations: Mapping[str, Computation] = dataclasses.field(repr=False)
    cycles: int | None
    op_name: str
    frame: int | None
    text: str = dataclasses.field(repr=False)

    @property
    def bodies(self) -> tuple[Computation, ...]:
        """The called computations; each is read from the text when it is first used."""
        return tuple(self.computations[name] for name in self.called)

    @property
    def parameter_number(self) -> int | None:
        """The number of a parameter of the computation; None for any other instruction, or without a number."""
        match = _PARAMETER.search(self.text) if self.opcode == "parameter" else None
        return int(match[1]) if match else None

    @property
    def tuple_index(self) -> int | None:
        """The index of a get-tuple-element; None for any other instruction, or without an index."""
        match = _INDEX.search(self.text) if self.opcode == "get-tuple-element" else None
        return int(match[1]) if match else None

    @property
    def call_target(self) -> str:
        """Target of a custom call: "TopK"; "" for any other instruction."""
        match = _TARGET.search(self.text) if self.opcode == "custom-call" else None
        return match[1] if match else ""


@dataclasses.dataclass(frozen=True, eq=False)
class Computation:
    """A computation: instructions by name, in order of execution, and the one that gives its result."""

    name: str
    instructions: dict[str, HloInstruction] = dataclasses.field(repr=False)
    root: HloInstruction


def result_aliases(instruction: HloInstruction) -> dict[int, int]:
    """Return the index of the flattened operand that each aliasing flattened result uses, by the result's index.

    Results that are not named here are new arrays.
    """
    operand_count = sum(len(operand.shapes) for operand in instruction.operands)
    if instruction.opcode == "get-tuple-element":
        start, width = element_span(instruction.operands[0].text, instruction.tuple_index or 0)
        return {place: start + place for place in range(width)}
    if instruction.opcode in _SAME:
        return {place: place for place in range(min(len(instruction.shapes), operand_count))}
    if instruction.opcode.endswith("-start"):
        return _of_start(instruction, operand_count)
    if instruction.opcode.endswith("-done"):
        return _of_done(instruction, instruction.operands[0])
    return {**_of_lists(instruction, operand_count), **_of_pairs(instruction)}


def element_span(tuple_text: str, index: int) -> tuple[int, int]:
    """Return the start and the number of the flattened arrays of a tuple's element.

    Example:
        >>> element_span("((f32[2]{0}, f32[3]{0}), u32[]) copy-start(%x)", 1)
        (2, 1)
    """
    head = tuple_text[: tuple_text.find(") ") + 1]
    # Without nested tuples each element is one array.
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


def _of_start(instruction: HloInstruction, operand_count: int) -> dict[int, int]:
    if instruction.opcode == "copy-start":
        return {1: 0}  # The tuple is (copy, original, counter); for other opcodes (originals, results, counters).
    return {place: place for place in range(operand_count)} if len(instruction.shapes) > operand_count else {}


def _of_done(instruction: HloInstruction, start: HloInstruction) -> dict[int, int]:
    if instruction.opcode == "copy-done":
        return {0: 0}
    count = len(instruction.shapes)
    # Results come after the operands, which may have the same shape.
    fits = [first for first in range(len(start.shapes)) if start.shapes[first : first + count] == instruction.shapes]
    return {place: fits[-1] + place for place in range(count)} if fits else {}


def _of_lists(instruction: HloInstruction, operand_count: int) -> dict[int, int]:
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


def _of_pairs(instruction: HloInstruction) -> dict[int, int]:
    match = _OPERAND_ALIASING.search(instruction.text)
    if not match:
        return {}
    aliases = {}
    for result, operand, inside in _PAIR.findall(match[1]):
        before = sum(len(earlier.shapes) for earlier in instruction.operands[: int(operand)])
        aliases[int(result or 0)] = before + int(inside or 0)
    return aliases
