"""`traffic_of`: the bytes that an instruction reads from the main memory and writes to it, padding included.

Idea: each operand and each result crosses the memory's wires once. A fusion that takes a slice of an operand reads the
slice; one that updates a slice of its operand in place writes the slice.

Rule: an array in on-chip memory (VMEM, CMEM) causes no traffic. Neither does a scalar, which the scalar unit keeps in
its own memory (SMEM).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from anytpu.planning.hlo import Computation, HloInstruction, Shape
from anytpu.planning.hlo.shapes import padded_count

_SLICES = ("dynamic-slice", "slice", "gather")
# Operations that change a part of their first operand in place, with the index of the operand that is the new part.
_UPDATES = {"dynamic-update-slice": 1, "scatter": -1}
SLICED = frozenset({*_SLICES, *_UPDATES})
"""Operations that take or change a part of their operand."""

# An update in a fusion is counted with less traffic than the same update alone (`_read` and `_put`, `_of_update`).
# A fused scatter counts its rows without padding. A fused dynamic-update-slice counts no read of partly filled tiles.
# calibration.json was fitted with these counts, so a change needs a new fit: scripts/calibrate_plan.py.

_VIEWS = ("bitcast", "get-tuple-element")
# Network traffic during a product is priced in `network.py`.
_SENT = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")
# No traffic: results that alias operands, constants and metadata (sizes and ids, which are scalars).
FREE = frozenset(
    {
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
        "opt-barrier", "optimization-barrier", "add-dependency", "iota-fold", "get-dimension-size",
    }
)  # fmt: skip


class Traffic(NamedTuple):
    """Bytes that one execution reads from the main memory, and bytes that it writes to it."""

    read: float = 0.0
    written: float = 0.0

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def ways(self) -> int:
        """Number of directions with traffic: 0, 1 or 2."""
        return (self.read > 0) + (self.written > 0)


def traffic_of(instruction: HloInstruction) -> Traffic:
    """Return the bytes that one execution of an instruction reads from and writes to the memory."""
    operands = instruction.operands
    if instruction.opcode in FREE:
        return Traffic()
    if instruction.opcode == "fusion" and instruction.called:
        return Traffic(sum(_reads(instruction)), _written(instruction.bodies[0], instruction))
    if instruction.opcode in _SLICES and operands:
        taken = part_of(instruction).padded_bytes
        sides = (operands[0].shapes[0], instruction.shapes[0])
        return Traffic(*(float(taken * _is_in_hbm(shape)) for shape in sides))
    if instruction.opcode in _UPDATES and len(operands) > 1:
        return _of_update(instruction, part_of(instruction))
    return Traffic(
        float(sum(_hbm_bytes(operand.shapes) for operand in operands)), float(_hbm_bytes(instruction.shapes))
    )


def largest_read(instruction: HloInstruction) -> float:
    """Return the bytes that a product or a fusion reads of the operand of which it reads most."""
    return max(_reads(instruction), default=0.0)


def _reads(instruction: HloInstruction) -> list[float]:
    """Return the bytes that an instruction reads of each operand: of one of a fusion, its slices."""
    sizes = [_hbm_bytes(operand.shapes) for operand in instruction.operands]
    if instruction.opcode != "fusion" or not instruction.called:
        return [float(size) for size in sizes]
    return [_read(instruction.bodies[0], number, size) for number, size in enumerate(sizes)]


def part_of(instruction: HloInstruction) -> Shape:
    """Return the shape of the part of an array that one of `SLICED` takes, or puts into it."""
    place, operands = _UPDATES.get(instruction.opcode), instruction.operands
    return instruction.shapes[0] if place is None or place >= len(operands) else operands[place].shapes[0]


def _of_update(instruction: HloInstruction, update: Shape) -> Traffic:
    """Return the traffic of an update in place, read from the update's memory and written to the array's.

    The memory works in whole tiles: partly filled ones are read first.
    """
    read, target = float(_hbm_bytes((update,))), instruction.shapes[0]
    if not _is_in_hbm(target) or instruction.opcode != "dynamic-update-slice":
        written = float(update.padded_bytes * _is_in_hbm(target))
        return Traffic(read, written)
    written = float(touched_bytes(target, update.dims))
    return Traffic(read + written * _fills_in_part(target, update.dims), written)


def touched_bytes(array: Shape, part: tuple[int, ...]) -> int:
    """Return the bytes of the tiles that a part of an array touches, if it begins at a tile's start.

    Example:
        >>> cache = shapes_of("bf16[8,12,2048,64]{2,3,1,0:T(8,128)(2,1)}")[0]
        >>> touched_bytes(cache, (8, 12, 1, 64)) // 1024
        1536
    """
    physical = tuple(part[axis] for axis in reversed(array.minor_to_major))
    bits = 8 * array.bytes // max(math.prod(array.dims), 1)
    return math.ceil(padded_count(physical, array.tiles) * bits / 8)


def _fills_in_part(array: Shape, part: tuple[int, ...]) -> bool:
    """Return whether a part of an array leaves some elements of its tiles unchanged."""
    sizes = array.tiles[0] if array.tiles else ()
    axes = array.minor_to_major[: len(sizes)]
    # The last side of a tile is along the fastest axis.
    return any(
        part[axis] < array.dims[axis] and part[axis] % side for axis, side in zip(axes, reversed(sizes), strict=False)
    )


def _read(body: Computation, number: int, whole: int) -> float:
    """Return the bytes that a computation reads of a parameter in the main memory: slices, or all of it."""
    parameter = _parameters(body).get(number)
    if not whole or parameter is None:
        return float(whole)
    read = 0.0
    # A parameter is read whole, unless each of its users takes a part of it or leaves it in place.
    for user, name in _users(parameter.name, _readers(body)):
        first = user.operands[0].name
        if user.opcode in _SLICES and first == name:
            read += user.shapes[0].padded_bytes
        elif user.opcode == "scatter" and first == name:
            read += user.operands[-1].shapes[0].bytes
        elif user.opcode == "fusion" and user.called:
            places = (at for at, operand in enumerate(user.operands) if operand.name == name)
            read += max(_read(user.bodies[0], at, whole) for at in places)
        elif not _is_untouched(user, name):
            return float(whole)
    # Slices may overlap.
    return min(float(whole), read)


def _is_untouched(user: HloInstruction, name: str) -> bool:
    """Return whether a user leaves a value in place: updated in place, passed on, or sent by a collective."""
    if user.opcode == "dynamic-update-slice":
        return user.operands[0].name == name
    return user.opcode == "tuple" or user.opcode.removesuffix("-start") in _SENT


def _users(name: str, readers: dict[str, list[HloInstruction]]) -> list[tuple[HloInstruction, str]]:
    """Return the users of a value through bitcasts and copies, each with the name that it reads.

    Inside a fusion, a copy to another tiling covers only the part that is used, unless it is the result.
    """
    users: list[tuple[HloInstruction, str]] = []
    for user in readers.get(name, ()):
        is_view = user.opcode in _VIEWS or (user.opcode == "fusion" and _consists_of(user, _VIEWS))
        is_view = is_view or (user.name in readers and _is_copy(user))
        users += _users(user.name, readers) if is_view else [(user, name)]
    return users


def _is_copy(instruction: HloInstruction) -> bool:
    is_fusion = instruction.opcode == "fusion"
    return instruction.opcode == "copy" or (is_fusion and _consists_of(instruction, (*_VIEWS, "copy")))


def _consists_of(fusion: HloInstruction, opcodes: tuple[str, ...]) -> bool:
    """Return whether a nested fusion consists only of these opcodes on its one operand."""
    inside = fusion.bodies[0].instructions.values()
    return len(fusion.operands) == 1 and all(inner.opcode in ("parameter", *opcodes) for inner in inside)


def _parameters(body: Computation) -> dict[int, HloInstruction]:
    return {inner.parameter_number: inner for inner in body.instructions.values() if inner.parameter_number is not None}


def _readers(body: Computation) -> dict[str, list[HloInstruction]]:
    readers: dict[str, list[HloInstruction]] = {}
    for inner in body.instructions.values():
        for operand in inner.operands:
            readers.setdefault(operand.name, []).append(inner)
    return readers


def _written(body: Computation, instruction: HloInstruction) -> float:
    results = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    # A result that is a tuple itself has several shapes: then no result can be told from the others.
    if len(results) != len(instruction.shapes):
        return float(_hbm_bytes(instruction.shapes))
    return float(sum(_put(result, shape) for result, shape in zip(results, instruction.shapes, strict=True)))


def _put(result: HloInstruction, shape: Shape) -> int:
    """Return the bytes written for one result: for one that is updated in place, the update."""
    if not _is_in_hbm(shape):
        return 0
    while result.opcode in _VIEWS:
        result = result.operands[0]
    # An operand that is passed on, or data that a collective writes, is not written by the fusion itself.
    if result.opcode == "parameter" or result.opcode in _SENT:
        return 0
    if result.opcode in _UPDATES:
        written = result.operands[_UPDATES[result.opcode]].shapes[0]
        if result.opcode == "scatter":
            return written.bytes
        return touched_bytes(shape, written.dims) if len(written.dims) == len(shape.dims) else written.padded_bytes
    if result.opcode == "fusion" and len(result.shapes) == 1 and result.called:
        return _put(result.bodies[0].root, shape)
    return shape.padded_bytes


def _hbm_bytes(shapes: tuple[Shape, ...]) -> int:
    return sum(shape.padded_bytes for shape in shapes if _is_in_hbm(shape))


def _is_in_hbm(shape: Shape) -> bool:
    return shape.memory_space == 0 and math.prod(shape.dims) > 1
