"""`fault_of`: check that an instruction fits those before it.

Idea: a walk over a module follows names. It takes the first operand of a slice or the body of a loop without checking
that it exists. HLO's guarantees are checked here, once for each instruction, when its computation is read.

Rule: operands and called computations are defined before their users, so no walk loops forever. For an unknown opcode
only that is checked.
"""

from __future__ import annotations

from collections.abc import Mapping

from anytpu.planning.hlo.aliases import INDEX, element_span
from anytpu.planning.hlo.instruction import Instruction
from anytpu.planning.quoting import quoted

_ONE_ARRAY = (
    *("bitcast", "copy", "copy-done", "convert", "reshape", "transpose", "broadcast", "negate"),
    *("slice", "dynamic-slice", "gather", "reverse", "pad", "reduce", "reduce-window", "select-and-scatter"),
)
_TWO_ARRAYS = ("dot", "convolution", "compare", "add", "subtract", "multiply", "dynamic-update-slice")
_MIN_ARRAYS = {**dict.fromkeys(_ONE_ARRAY, 1), **dict.fromkeys(_TWO_ARRAYS, 2), "scatter": 3}
"""The opcodes that return at least one array, each with its minimum number of array operands."""
_MIN_OPERANDS = {**_MIN_ARRAYS, "get-tuple-element": 1, "while": 1, "conditional": 1}
_MIN_CALLED = {"while": 2, "fusion": 1, "call": 1, "conditional": 1, "async-start": 1}


def fault_of(instruction: Instruction, before: Mapping[str, Instruction]) -> str | None:
    """Return the fault of an instruction, as a sentence about "it", or None.

    Args:
        instruction: the instruction.
        before: the instructions before it in its computation, by name.
    """
    if instruction.name in before:
        return f"there is an instruction {quoted(instruction.name)} before it"
    for name in instruction.operands:
        if name not in before:
            return f"its operand {quoted(name)} is not defined before it is used"
    if (
        instruction.opcode in _MIN_OPERANDS
        or instruction.opcode in _MIN_CALLED
        or instruction.opcode.endswith(("-done", "-update"))
    ):
        return _wrong_count(instruction, before) or _wrong_index(instruction, before)
    if instruction.opcode == "parameter" and instruction.parameter_number is None:
        return "a parameter has its number in parentheses"
    return None


def _wrong_count(instruction: Instruction, before: Mapping[str, Instruction]) -> str | None:
    needed = _MIN_OPERANDS.get(instruction.opcode, 0 if instruction.opcode in _MIN_CALLED else 1)
    if len(instruction.operands) < needed:
        return f"{quoted(instruction.opcode)} takes {needed} operands at least, and it has {len(instruction.operands)}"
    if len(instruction.called) < _MIN_CALLED.get(instruction.opcode, 0):
        calls = _MIN_CALLED[instruction.opcode]
        return f"{quoted(instruction.opcode)} calls {calls} computations, and it names {len(instruction.called)}"
    arrays = _MIN_ARRAYS.get(instruction.opcode, 0)
    if (arrays or instruction.opcode == "fusion") and not instruction.shapes:
        return f"{quoted(instruction.opcode)} gives an array, and it gives none"
    for name in instruction.operands[:arrays]:
        if not before[name].shapes:
            return f"its operand {quoted(name)} is not an array"
    return None


def _wrong_index(instruction: Instruction, before: Mapping[str, Instruction]) -> str | None:
    if instruction.opcode != "get-tuple-element":
        return None
    index, operand = INDEX.search(instruction.text), before[instruction.operands[0]]
    has_element = index and _has_element(operand, int(index[1]))
    return None if has_element else f"{quoted(operand.name)} has no element of its index"


def _has_element(operand: Instruction, index: int) -> bool:
    try:
        start, width = element_span(operand.text, index)
    except IndexError:
        return False
    return start + width <= len(operand.shapes)
