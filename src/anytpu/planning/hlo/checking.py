"""`fault_of`: whether an instruction fits those before it.

Idea: whoever walks over a module follows names, and takes the first operand of a slice or the body of a loop without
asking whether it has one. What HLO guarantees is checked here, once for each instruction, as its computation is read.

Rule: operands and called computations stand before whoever uses them, so that no walk runs in circles. An opcode that
is not known is only asked for that.
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
"""The opcodes that give an array or more, and how many operands that are arrays each takes at least."""
_MIN_OPERANDS = {**_MIN_ARRAYS, "get-tuple-element": 1, "while": 1, "conditional": 1}
_MIN_CALLED = {"while": 2, "fusion": 1, "call": 1, "conditional": 1, "async-start": 1}


def fault_of(one: Instruction, before: Mapping[str, Instruction]) -> str | None:
    """Return what is wrong with an instruction, as a sentence about "it", or None.

    Args:
        one: the instruction.
        before: those that stand before it in its computation.
    """
    if one.name in before:
        return f"there is an instruction {quoted(one.name)} before it"
    for name in one.operands:
        if name not in before:
            return f"its operand {quoted(name)} is not defined before it is used"
    if one.opcode in _MIN_OPERANDS or one.opcode in _MIN_CALLED or one.opcode.endswith(("-done", "-update")):
        return _wrong_count(one, before) or _wrong_index(one, before)
    if one.opcode == "parameter" and one.parameter_number is None:
        return "a parameter has its number in parentheses"
    return None


def _wrong_count(one: Instruction, before: Mapping[str, Instruction]) -> str | None:
    needed = _MIN_OPERANDS.get(one.opcode, 0 if one.opcode in _MIN_CALLED else 1)
    if len(one.operands) < needed:
        return f"{quoted(one.opcode)} takes {needed} operands at least, and it has {len(one.operands)}"
    if len(one.called) < _MIN_CALLED.get(one.opcode, 0):
        return f"{quoted(one.opcode)} calls {_MIN_CALLED[one.opcode]} computations, and it names {len(one.called)}"
    arrays = _MIN_ARRAYS.get(one.opcode, 0)
    if (arrays or one.opcode == "fusion") and not one.shapes:
        return f"{quoted(one.opcode)} gives an array, and it gives none"
    for name in one.operands[:arrays]:
        if not before[name].shapes:
            return f"its operand {quoted(name)} is not an array"
    return None


def _wrong_index(one: Instruction, before: Mapping[str, Instruction]) -> str | None:
    if one.opcode != "get-tuple-element":
        return None
    index, given = INDEX.search(one.text), before[one.operands[0]]
    return None if index and _has_element(given, int(index[1])) else f"{quoted(given.name)} has no element of its index"


def _has_element(given: Instruction, index: int) -> bool:
    try:
        start, width = element_span(given.text, index)
    except IndexError:
        return False
    return start + width <= len(given.shapes)
