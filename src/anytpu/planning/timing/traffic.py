"""`traffic_of`: the bytes that an instruction moves to and from the main memory, padding included.

Idea: what goes in and comes out is what crosses the memory's wires, once each. A fusion that takes a slice of an
operand reads the slice; one that updates a slice of its operand in place writes the slice.

Rule: an array that the compiler placed in memory on the chip (VMEM, CMEM) crosses nothing.
"""

from __future__ import annotations

import re

from anytpu.planning.hlo import Computation, Instruction, Module, Shape

_INDEX = re.compile(r"parameter\((\d+)\)")
_SLICES = ("dynamic-slice", "slice", "gather")
_VIEWS = ("bitcast", "get-tuple-element")
# Results of these are new names for what is there already.
FREE = frozenset(
    {
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
        "opt-barrier", "optimization-barrier", "add-dependency", "iota-fold", "get-dimension-size",
    }
)  # fmt: skip


def traffic_of(module: Module, home: Computation, one: Instruction) -> float:
    """Return the bytes that one execution reads from and writes to the memory.

    Args:
        module: where the instruction's fused computation is looked up.
        home: the computation that it stands in.
        one: the instruction.
    """
    if one.opcode in FREE:
        return 0.0
    operands = [home.instructions[name] for name in one.operands if name in home.instructions]
    if one.opcode == "fusion" and one.called:
        return _of_fusion(module.computations[one.called[0]], one, operands)
    if one.opcode in _SLICES:
        return 2.0 * _hbm_bytes(one.shapes)
    if one.opcode == "dynamic-update-slice":
        return 2.0 * _hbm_bytes(operands[1].shapes[:1]) if len(operands) > 1 else 0.0
    return float(_hbm_bytes(one.shapes) + sum(_hbm_bytes(operand.shapes) for operand in operands))


def _of_fusion(body: Computation, one: Instruction, operands: list[Instruction]) -> float:
    readers: dict[str, list[Instruction]] = {}
    for inner in body.instructions.values():
        for name in inner.operands:
            readers.setdefault(name, []).append(inner)
    read = 0.0
    for inner in body.instructions.values():
        if inner.opcode == "parameter":
            number = int(match[1]) if (match := _INDEX.search(inner.text)) else 0
            if number < len(operands):
                read += _read(operands[number], inner, readers)
    return read + _written(body, one)


def _read(operand: Instruction, parameter: Instruction, readers: dict[str, list[Instruction]]) -> float:
    """Return what a fusion reads of one operand."""
    whole = float(_hbm_bytes(operand.shapes))
    if not whole:
        return 0.0
    users = _users(parameter.name, readers)
    if not users or not all(_is_partial(user, viewed) for user, viewed in users):
        return whole
    slices = sum(user.shapes[0].padded_bytes for user, _ in users if user.opcode in _SLICES)
    return min(whole, float(slices))


def _users(name: str, readers: dict[str, list[Instruction]]) -> list[tuple[Instruction, str]]:
    """Return who uses a value, seen through bitcasts, each with the name under which it does."""
    users: list[tuple[Instruction, str]] = []
    for user in readers.get(name, ()):
        users += _users(user.name, readers) if user.opcode in _VIEWS else [(user, name)]
    return users


def _is_partial(user: Instruction, name: str) -> bool:
    return user.opcode in (*_SLICES, "dynamic-update-slice") and user.operands[0] == name


def _written(body: Computation, one: Instruction) -> float:
    root = body.instructions[body.root]
    results = [body.instructions[name] for name in root.operands] if root.opcode == "tuple" else [root]
    if len(results) != len(one.shapes):
        return float(_hbm_bytes(one.shapes))
    return float(sum(_hbm_written(body, result, shape) for result, shape in zip(results, one.shapes, strict=True)))


def _hbm_written(body: Computation, result: Instruction, shape: Shape) -> int:
    if shape.memory_space:
        return 0
    while result.opcode in _VIEWS and result.operands[0] in body.instructions:
        result = body.instructions[result.operands[0]]
    if result.opcode == "dynamic-update-slice" and result.operands[1] in body.instructions:
        return body.instructions[result.operands[1]].shapes[0].padded_bytes
    return shape.padded_bytes


def _hbm_bytes(shapes: tuple[Shape, ...]) -> int:
    return sum(shape.padded_bytes for shape in shapes if shape.memory_space == 0)
