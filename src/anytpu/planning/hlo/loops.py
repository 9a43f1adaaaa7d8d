"""`trip_count`: the number of iterations of a loop, if the compiled module states it.

Idea: the compiler writes a counted loop as a `while` whose condition compares a counter with a bound. The counter is an
element of the carried tuple, starts at a constant, and the body adds a constant to it. Bound, start and step may each
be elsewhere: behind copies, inside a fusion, in the loop's initial tuple, or in that of an outer loop.

Rule: None unless all three are known. A trip count that depends on values is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from anytpu.errors import PlanError
from anytpu.planning.hlo.instruction import Computation, Instruction
from anytpu.planning.quoting import quoted

_CONSTANT = re.compile(r"constant\((-?\d{1,20})\)")
_INDEX = re.compile(r"\bindex=(\d{1,9})\b")
_DIRECTION = re.compile(r"direction=([A-Z]+)")
_SAME = {"copy", "bitcast", "convert", "copy-done", "reshape", "optimization-barrier", "broadcast"}
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}


class CalledFrom(NamedTuple):
    """An instruction and its context: for the body of a loop or a fusion, the calling instruction and its context."""

    computation: Computation
    instruction: Instruction
    caller: CalledFrom | None = None


def trip_count(computations: Mapping[str, Computation], loop: CalledFrom) -> int | None:
    """Return the trip count of a loop, or None if the text does not state it.

    Args:
        computations: the computations of the module, by name.
        loop: the `while`, in its context.
    """
    condition = computations[loop.instruction.called[0]]
    compared = _compared(computations, CalledFrom(condition, condition.instructions[condition.root], loop))
    if compared is None:
        return None
    counter, bound, direction = compared
    index = _carried_index(computations, counter)
    limit = _constant(computations, bound)
    if index is None or limit is None:
        return None
    start = _constant(computations, _initial(loop, index))
    step = _step(computations, loop, index)
    if start is None or not step:
        return None
    return _count(start, limit, step, direction)


def _count(start: int, limit: int, step: int, direction: str) -> int | None:
    distance = {"LT": limit - start, "LE": limit - start + 1, "GT": limit - start, "GE": limit - start - 1}.get(
        direction
    )
    if direction == "NE" and (limit - start) % step == 0:
        distance = limit - start
    if distance is None or (step > 0) != (direction in ("LT", "LE") or (direction == "NE" and distance > 0)):
        return None
    return max(0, -(-distance // step))


def _compared(computations: Mapping[str, Computation], place: CalledFrom) -> tuple[CalledFrom, CalledFrom, str] | None:
    """Return counter, bound and direction of a condition's root, with the counter on the left."""
    place = _resolve(computations, place)
    if place.instruction.opcode != "compare":
        return None
    left, right = (_resolve(computations, _operand(place, number)) for number in (0, 1))
    match = _DIRECTION.search(place.instruction.text)
    direction = match[1] if match else ""
    if _carried_index(computations, left) is not None and _step(computations, *_loop_of(computations, left)):
        return left, right, direction
    return right, left, _MIRRORED.get(direction, "")


def _loop_of(computations: Mapping[str, Computation], counter: CalledFrom) -> tuple[CalledFrom, int]:
    assert counter.caller is not None
    index = _carried_index(computations, counter)
    assert index is not None
    return counter.caller, index


def _operand(place: CalledFrom, number: int) -> CalledFrom:
    if number >= len(place.instruction.operands):
        raise PlanError(
            f"the instruction {quoted(place.instruction.name)} in the compiler's text has no operand {number}, which "
            "another one reads"
        )
    name = place.instruction.operands[number]
    return place._replace(instruction=place.computation.instructions[name])


def _resolve(computations: Mapping[str, Computation], place: CalledFrom) -> CalledFrom:
    """Follow copies, fusions and their parameters to the origin of a value; elements of a loop's tuple are kept."""
    while True:
        instruction = place.instruction
        if instruction.opcode in _SAME and len(instruction.operands) == 1:
            place = _operand(place, 0)
        elif instruction.opcode in ("fusion", "call") and instruction.called and len(instruction.shapes) == 1:
            inner = computations[instruction.called[0]]
            place = CalledFrom(inner, inner.instructions[inner.root], place)
        elif (
            instruction.opcode == "parameter" and place.caller and place.caller.instruction.opcode in ("fusion", "call")
        ):
            place = _operand(place.caller, instruction.parameter_number or 0)
        elif instruction.opcode == "get-tuple-element" and _operand(place, 0).instruction.opcode == "tuple":
            place = _operand(_operand(place, 0), int(_found(_INDEX, instruction.text)))
        else:
            return place


def _carried_index(computations: Mapping[str, Computation], place: CalledFrom) -> int | None:
    """Return the index of a value in the carried tuple, or None if it is not an element of it."""
    place = _resolve(computations, place)
    instruction = place.instruction
    if not place.caller or place.caller.instruction.opcode != "while" or instruction.opcode != "get-tuple-element":
        return None
    is_parameter = _operand(place, 0).instruction.opcode == "parameter"
    return int(_found(_INDEX, instruction.text)) if is_parameter else None


def _constant(computations: Mapping[str, Computation], place: CalledFrom | None) -> int | None:
    """Return the integer that a value always is, or None."""
    if place is None:
        return None
    place = _resolve(computations, place)
    match = _CONSTANT.search(place.instruction.text) if place.instruction.opcode == "constant" else None
    if match:
        return int(match[1])
    index = _carried_index(computations, place)
    if index is None:
        return None
    assert place.caller is not None
    return (
        _constant(computations, _initial(place.caller, index)) if _is_kept(computations, place.caller, index) else None
    )


def _initial(loop: CalledFrom, index: int) -> CalledFrom | None:
    """Return the element of a loop's tuple at an index before the first iteration."""
    start = _operand(loop, 0)
    return _operand(start, index) if start.instruction.opcode == "tuple" else None


def _after(computations: Mapping[str, Computation], loop: CalledFrom, index: int) -> CalledFrom | None:
    """Return the element of a loop's tuple at an index after an iteration."""
    body = computations[loop.instruction.called[1]]
    root = CalledFrom(body, body.instructions[body.root], loop)
    return _resolve(computations, _operand(root, index)) if root.instruction.opcode == "tuple" else None


def _is_kept(computations: Mapping[str, Computation], loop: CalledFrom, index: int) -> bool:
    after = _after(computations, loop, index)
    return after is not None and _carried_index(computations, after) == index


def _step(computations: Mapping[str, Computation], loop: CalledFrom, index: int) -> int | None:
    """Return the increment of a counter in an iteration, or None if it is not a constant."""
    after = _after(computations, loop, index)
    if after is None or after.instruction.opcode not in ("add", "subtract"):
        return None
    left, right = _operand(after, 0), _operand(after, 1)
    sign = 1 if after.instruction.opcode == "add" else -1
    if sign > 0 and _carried_index(computations, right) == index:
        left, right = right, left
    amount = _constant(computations, right)
    return sign * amount if amount is not None and _carried_index(computations, left) == index else None


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else "0"
