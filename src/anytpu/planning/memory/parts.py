"""`parts_of`: the memory of a device at the peak by kind of arrays: weights, slots, gradients, activations.

Rule: the parts add up to the peak. State, batch and code are counted; so are temporaries of the backward pass with the
shape of a weight, the gradients. The rest are activations. Without a compiled module, gradients count among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from anytpu.planning.hlo import layer_of
from anytpu.planning.memory.arguments import arguments_of, position_of
from anytpu.planning.memory.liveness import LiveArray
from anytpu.planning.records import MemoryPart
from anytpu.planning.records.step import PartKind
from anytpu.planning.records.target import Target
from anytpu.program.program import Program

_ORDER: tuple[PartKind, ...] = (
    "weights",
    "frozen",
    "slots",
    "cache",
    "state",
    "batch",
    "gradients",
    "activations",
    "code",
)


def parts_of(
    peak_bytes: int, code_bytes: int, program: Program, target: Target, held: Sequence[LiveArray] = ()
) -> tuple[MemoryPart, ...]:
    """Return the parts of the peak, without those of no bytes.

    Args:
        peak_bytes: memory that the step needs of a device, code included.
        code_bytes: size of the code.
        program: the program.
        target: the system that it was compiled for.
        held: the arrays of the compiled module at the peak; () for a program that does not fit.
    """
    # 1. State and batch by their shapes; with a compiled module, by their padded sizes.
    arguments = arguments_of(program, target)
    kinds: list[PartKind] = [_kind(program, index, buffer.use) for index, buffer in enumerate(arguments)]
    sizes = [buffer.bytes for buffer in arguments]
    for array in held:
        if array.argument is not None:
            place = position_of(array.instruction.op_name, array.argument)
            if place < len(sizes):
                sizes[place] = array.shape.padded_bytes
    # 2. Gradients are found by their shape and direction.
    weights = {array.shape.dims for array in held if _is_weight(array, kinds)}
    gradients = sum(array.shape.padded_bytes for array in held if _is_gradient(array, weights))
    sums: dict[PartKind, int] = {"code": code_bytes}
    for kind, size in zip(kinds, sizes, strict=True):
        sums[kind] = sums.get(kind, 0) + size
    # 3. The parts add up to the compiler's peak. The sweep that found the gradients may exceed it a little.
    rest = max(peak_bytes - sum(sums.values()), 0)
    sums["gradients"] = min(gradients, rest)
    sums["activations"] = rest - sums["gradients"]
    return in_order(MemoryPart(kind, size) for kind, size in sums.items())


def in_order(parts: Iterable[MemoryPart]) -> tuple[MemoryPart, ...]:
    """Return the parts in their order, without those of no bytes."""
    return tuple(sorted((part for part in parts if part.bytes > 0), key=lambda part: _ORDER.index(part.kind)))


def _kind(program: Program, index: int, use: str) -> PartKind:
    if use == "batch":
        return "batch"
    kind = program.state_kinds[index] if index < len(program.state_kinds) else "other"
    return "state" if kind == "other" else cast(PartKind, kind)


def _is_weight(array: LiveArray, kinds: Sequence[PartKind]) -> bool:
    if array.argument is None:
        return False
    place = position_of(array.instruction.op_name, array.argument)
    return place < len(kinds) and kinds[place] in ("weights", "state")


def _is_gradient(array: LiveArray, weights: set[tuple[int, ...]]) -> bool:
    """Return whether a temporary is the gradient of a weight: of the backward pass, with the shape of a weight."""
    if array.argument is not None or array.result is not None or array.shape.dims not in weights:
        return False
    maker = array.writer or array.instruction
    return layer_of(maker.op_name).is_backward
