"""`Module`: an optimized HLO module. `parse` reads one from the compiler's text.

Idea: a user of a module walks over `module.entry`, in order of execution. For each instruction it asks the module for
its trip count and its line in the user's program. The compiler writes a counted loop as a `while` whose condition
compares a counter with a bound. The counter is an element of the carried tuple, starts at a constant, and the body adds
a constant to it. Bound, start and step may each be elsewhere: behind copies, inside a fusion, in the loop's initial
tuple, or in that of an outer loop.

Rule: numbers are those of one device and one execution. A trip count is None unless bound, start and step are known; a
count that depends on values is not guessed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from anytpu.errors import PlanError
from anytpu.planning.hlo.instruction import Computation, HloInstruction
from anytpu.planning.hlo.origin import Frames
from anytpu.planning.records.quoting import quoted

_STEPPED_INTO = ("while", "call", "conditional", "async-start")
_DONATED = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}")
_CONSTANT = re.compile(r"constant\(([^)]*)\)")
_NUMBER = re.compile(r"-?\d{1,20}")
_LEFT_OUT = "{...}"
_DIRECTION = re.compile(r"direction=([A-Z]+)")
_SAME = {"copy", "copy-start", "copy-done", "bitcast", "convert", "reshape", "optimization-barrier", "broadcast"}
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """A compiled program.

    Attributes:
        header: the first line of the text, with the layouts of the arguments and the aliases.
        computations: computations by name; each is read when it is first used.
        entry_name: name of the computation that runs first.
        frames: the stack frames.
    """

    header: str = dataclasses.field(repr=False)
    computations: Mapping[str, Computation] = dataclasses.field(repr=False)
    entry_name: str
    frames: Frames = dataclasses.field(repr=False)

    @property
    def entry(self) -> Computation:
        """The computation that runs first."""
        return self.computations[self.entry_name]

    @property
    def donated(self) -> dict[int, int]:
        """The argument whose memory each flattened result takes over, both by index."""
        start = self.header.find("input_output_alias={")
        if start < 0:
            return {}
        end = self.header.find("entry_computation_layout", start)
        written = self.header[start : end if end > 0 else len(self.header)].split(" }")[0]
        return {int(index or 0): int(parameter) for index, parameter in _DONATED.findall(written)}

    def source_of(self, instruction: HloInstruction) -> str:
        """Return the innermost source line of the user's own for an instruction, "model.py:12", or "".

        Lines of Python's library, of installed packages and of anytpu are not the user's. Neither is the line that
        called for the plan.
        """
        return self.frames.source(instruction.frame) if instruction.frame is not None else ""

    def trip_count(self, loop: HloInstruction) -> int | None:
        """Return the trip count of a `while`, or None if the text does not state it."""
        place = self._places.get(loop.name)
        return _trip_count(place) if place else None

    def literal(self, instruction: HloInstruction) -> str | None:
        """Return the text of the constant that a value always is, "{1, 0}", or None if it is not one, or not stated."""
        place = self._places.get(instruction.name)
        literal = _literal(place) if place else None
        return None if literal == _LEFT_OUT else literal

    @functools.cached_property
    def _places(self) -> dict[str, _CalledFrom]:
        """Every instruction that is executed by itself, by name, in its context."""
        places: dict[str, _CalledFrom] = {}
        waiting: list[tuple[Computation, _CalledFrom | None]] = [(self.entry, None)]
        while waiting:
            computation, caller = waiting.pop()
            for instruction in computation.instructions.values():
                if instruction.name in places:
                    continue
                places[instruction.name] = place = _CalledFrom(instruction, caller)
                if instruction.opcode in _STEPPED_INTO:
                    waiting += [(body, place) for body in instruction.bodies]
        return places


class _CalledFrom(NamedTuple):
    """An instruction and its context: for the body of a loop or a fusion, the calling instruction and its context."""

    instruction: HloInstruction
    caller: _CalledFrom | None = None


def _trip_count(loop: _CalledFrom) -> int | None:
    # 1. The condition compares an element of the carried tuple with a constant.
    compared = _compared(_CalledFrom(loop.instruction.bodies[0].root, loop))
    if compared is None:
        return None
    counter, bound, direction = compared
    index, limit = _carried_index(counter), _constant(bound)
    if index is None or limit is None:
        return None
    # 2. The element starts at a constant, and each iteration adds a constant to it.
    start, step = _constant(_initial(loop, index)), _step(loop, index)
    return None if start is None or not step else _count(start, limit, step, direction)


def _count(start: int, limit: int, step: int, direction: str) -> int | None:
    distance = {"LT": limit - start, "LE": limit - start + 1, "GT": limit - start, "GE": limit - start - 1}.get(
        direction
    )
    if direction == "NE" and (limit - start) % step == 0:
        distance = limit - start
    # A counter that moves away from its bound is not guessed.
    if distance is None or (step > 0) != (direction in ("LT", "LE") or (direction == "NE" and distance > 0)):
        return None
    return max(0, -(-distance // step))


def _compared(place: _CalledFrom) -> tuple[_CalledFrom, _CalledFrom, str] | None:
    """Return counter, bound and direction of a condition's root, with the counter on the left."""
    place = _resolve(place)
    if place.instruction.opcode != "compare":
        return None
    left, right = (_resolve(_operand(place, number)) for number in (0, 1))
    match = _DIRECTION.search(place.instruction.text)
    direction = match[1] if match else ""
    index = _carried_index(left)
    if index is not None and left.caller is not None and _step(left.caller, index):
        return left, right, direction
    return right, left, _MIRRORED.get(direction, "")


def _operand(place: _CalledFrom, number: int) -> _CalledFrom:
    if number >= len(place.instruction.operands):
        raise PlanError(
            f"the instruction {quoted(place.instruction.name)} in the compiler's text has no operand {number}, which "
            "another one reads"
        )
    return place._replace(instruction=place.instruction.operands[number])


def _resolve(place: _CalledFrom) -> _CalledFrom:
    """Follow copies, fusions and their parameters to the origin of a value; elements of a loop's tuple are kept."""
    while True:
        instruction, caller = place
        if instruction.opcode in _SAME and len(instruction.operands) == 1:
            place = _operand(place, 0)
        elif instruction.opcode in ("fusion", "call") and instruction.called and len(instruction.shapes) == 1:
            place = _CalledFrom(instruction.bodies[0].root, place)
        elif instruction.opcode == "parameter" and caller and caller.instruction.opcode in ("fusion", "call"):
            place = _operand(caller, instruction.parameter_number or 0)
        elif instruction.opcode == "get-tuple-element" and instruction.operands[0].opcode == "tuple":
            place = _operand(_operand(place, 0), instruction.tuple_index or 0)
        else:
            return place


def _carried_index(place: _CalledFrom) -> int | None:
    """Return the index of a value in the carried tuple, or None if it is not an element of it."""
    instruction, caller = _resolve(place)
    if not caller or caller.instruction.opcode != "while" or instruction.opcode != "get-tuple-element":
        return None
    return instruction.tuple_index if instruction.operands[0].opcode == "parameter" else None


def _constant(place: _CalledFrom | None) -> int | None:
    """Return the integer that a value always is, or None."""
    literal = _literal(place)
    return int(literal) if literal and _NUMBER.fullmatch(literal) else None


def _literal(place: _CalledFrom | None) -> str | None:
    """Return the text of the constant that a value always is, or None."""
    if place is None:
        return None
    place = _resolve(place)
    match = _CONSTANT.search(place.instruction.text) if place.instruction.opcode == "constant" else None
    if match:
        return match[1]
    index, loop = _carried_index(place), place.caller
    # An element may be a copy of another one of the iteration before. All of them must begin with the same constant.
    sources: list[int] = []
    while index is not None and loop is not None and index not in sources:
        sources.append(index)
        after = _after(loop, index)
        index = _carried_index(after) if after is not None else None
    literals = {_literal(_initial(loop, source)) for source in sources if loop is not None}
    return literals.pop() if index is not None and len(literals) == 1 else None


def _initial(loop: _CalledFrom, index: int) -> _CalledFrom | None:
    """Return the element of a loop's tuple at an index before the first iteration."""
    start = _operand(loop, 0)
    return _operand(start, index) if start.instruction.opcode == "tuple" else None


def _after(loop: _CalledFrom, index: int) -> _CalledFrom | None:
    """Return the element of a loop's tuple at an index after an iteration."""
    root = _CalledFrom(loop.instruction.bodies[1].root, loop)
    return _resolve(_operand(root, index)) if root.instruction.opcode == "tuple" else None


def _step(loop: _CalledFrom, index: int) -> int | None:
    """Return the increment of a counter in an iteration, or None if it is not a constant."""
    after = _after(loop, index)
    if after is None or after.instruction.opcode not in ("add", "subtract"):
        return None
    left, right = _operand(after, 0), _operand(after, 1)
    sign = 1 if after.instruction.opcode == "add" else -1
    if sign > 0 and _carried_index(right) == index:
        left, right = right, left
    amount = _constant(right)
    return sign * amount if amount is not None and _carried_index(left) == index else None
