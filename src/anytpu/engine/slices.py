"""`smallest_slice`: the smallest TPU slice whose cores hold the state and the batch of a placed program.

Idea: a larger slice has more devices along the mesh axes that split the examples. Arrays that are split over these axes
take less of each core there. Other arrays take the same space.

Rule: activations are not counted, as in the memory check. A slice whose devices do not divide a split axis of the state
is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax

from anytpu.program.program import Placement, Program
from anytpu.system.chips import CHIPS
from anytpu.system.topologies import SLICED, slice_sizes


def smallest_slice(program: Program) -> str | None:
    """Return the name of the slice with the fewest devices that holds a placed program; None if no slice does.

    Of slices with as many devices the one with the least memory is returned.
    """
    assert program.placement is not None
    for devices, memory_bytes, name in sorted(_slices()):
        held_bytes = _bytes_over(program, program.placement, devices)
        if held_bytes is not None and held_bytes <= memory_bytes:
            return name
    return None


def _slices() -> Iterator[tuple[int, int, str]]:
    """Yield (devices, bytes of a device, name) of each slice."""
    for chip in map(CHIPS.__getitem__, SLICED):
        for number, bounds in slice_sizes(chip.name).items():
            yield math.prod(bounds) * chip.replicas, chip.hbm_bytes // chip.replicas, f"{chip.name}-{number}"


def _bytes_over(program: Program, placement: Placement, devices: int) -> int | None:
    """Return the bytes of state and batch on each of so many devices; None if the mesh does not grow to them."""
    growth, rest = divmod(devices, placement.devices)
    if rest or not growth:
        return None
    sizes, grown = dict(placement.axes), _row_axes(program, placement)
    states, total = len(jax.tree.leaves(program.state)), 0
    for index, (leaf, spec) in enumerate(
        zip(jax.tree.leaves((program.state, program.batch)), placement.specs, strict=True)
    ):
        shape = list(leaf.shape)
        for axis, parts in enumerate(spec):
            pieces = math.prod(sizes[part] for part in parts) * (growth if grown.intersection(parts) else 1)
            if index < states and shape[axis] % pieces:
                return None
            shape[axis] = -(-shape[axis] // pieces)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total


def _row_axes(program: Program, placement: Placement) -> set[str]:
    """Return the mesh axes that split the examples; the first axis of the mesh if none does."""
    states = len(jax.tree.leaves(program.state))
    split = {
        part
        for (_, layout), spec in zip(program.leaves(), placement.specs[states:], strict=True)
        for part in (spec[layout.axis] if layout.axis is not None and layout.axis < len(spec) else ())
    }
    return split or {placement.axes[0][0]}
