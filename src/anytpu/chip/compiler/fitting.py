"""`find_room` and `largest_batch`: whether a network fits in the Unified Buffer, and the errors if it does not.

Idea: the size of every storage is proportional to the batch. So the jobs for one example, with scaled storages, show
whether any batch fits.
"""

from __future__ import annotations

import dataclasses

from anytpu.chip.compiler.allocation import BufferAllocation, BufferFullError, allocate
from anytpu.chip.compiler.lowering import Lowering
from anytpu.chip.compiler.walking import lowered
from anytpu.chip.graph.nodes import Network
from anytpu.chip.isa.design import UNIT_BYTES, Design
from anytpu.errors import CapacityError


def largest_batch(network: Network, design: Design, maximum: int) -> int:
    """Return the largest power of two up to `maximum` whose activations fit without spilling; 0 when not even 1 does.

    Args:
        network: the network to compile.
        design: the chip.
        maximum: the largest batch to consider, at least 1.
    """
    return _largest(lowered(network, 1, design, by_content=False, in_place=True), maximum, spill=False)


def find_room(
    network: Network, batch: int, design: Design, *, by_content: bool, spill: bool
) -> tuple[Lowering, BufferAllocation]:
    """Return the jobs of a network, and the allocation of their storages.

    Args:
        network, batch, design, spill: as in `compile_image`.
        by_content: as in `lowered`.

    Raises:
        CapacityError: the weights or the activations exceed the memories of the chip.
    """
    # 1. Without spilling: concatenations are written in place.
    lowering = lowered(network, batch, design, by_content=by_content, in_place=True)
    lowering.memory.check(network.name)
    try:
        return lowering, _allocated(lowering, 1, spill=False)
    except BufferFullError as error:
        if not spill:
            raise _live_error(lowering, error) from None
    # 2. With spilling. A storage can be spilled only if it is completely written, so nothing is written in place.
    lowering = lowered(network, batch, design, by_content=by_content, in_place=False)
    try:
        return lowering, _allocated(lowering, 1, spill=True)
    except BufferFullError as error:
        raise _layer_error(lowering, error) from None


def _allocated(lowering: Lowering, times: int, *, spill: bool) -> BufferAllocation:
    """Allocate the Unified Buffer for storages that are `times` as large."""
    storages = [dataclasses.replace(storage, units=storage.units * times) for storage in lowering.storages]
    units, on_host = lowering.design.buffer_units, lowering.on_host
    return allocate(lowering.jobs, storages, on_host, units, spill=spill, host_bytes=lowering.host_bytes)


def _largest(lowering: Lowering, maximum: int, *, spill: bool) -> int:
    batch = 1 << maximum.bit_length() - 1 if maximum > 0 else 0
    while batch:
        try:
            _allocated(lowering, batch, spill=spill)
            return batch
        except BufferFullError:
            batch //= 2
    return 0


def _live_error(lowering: Lowering, error: BufferFullError) -> CapacityError:
    """Return the error for live storages that exceed the Unified Buffer, without spilling."""
    single = _for_one(lowering, in_place=True)
    batch = _largest(single, lowering.batch - 1, spill=False)
    is_fragmented = error.needed_units + error.held_units <= lowering.design.buffer_units
    fragmented = "; its free memory is fragmented" if is_fragmented else ""
    advice = f"Use batch={batch}, the largest power of two that fits, or" if batch else "Not even one example fits: use"
    return CapacityError(
        f"{_where(lowering, error)} needs {error.needed_units * UNIT_BYTES:,} bytes of the Unified Buffer for "
        f"{_examples(lowering.batch)}, in addition to {error.held_units * UNIT_BYTES:,} that later layers need, and "
        f"the chip has {lowering.design.unified_buffer_bytes:,}{fragmented}. {advice} spill=True, which spills to the "
        "host's buffer what does not fit."
    )


def _layer_error(lowering: Lowering, error: BufferFullError) -> CapacityError:
    """Return the error for a layer whose own storages exceed the Unified Buffer."""
    batch = _largest(_for_one(lowering, in_place=False), lowering.batch - 1, spill=True)
    advice = "Not even one example fits: make the layer or its inputs smaller."
    if batch:
        advice = f"Use batch={batch}, the largest power of two that works."
    return CapacityError(
        f"{_where(lowering, error)} needs {error.needed_units * UNIT_BYTES:,} bytes of the Unified Buffer at once "
        f"for {_examples(lowering.batch)}, and the chip has {lowering.design.unified_buffer_bytes:,}. {advice}"
    )


def _for_one(lowering: Lowering, *, in_place: bool) -> Lowering:
    return lowered(lowering.network, 1, lowering.design, by_content=False, in_place=in_place)


def _where(lowering: Lowering, error: BufferFullError) -> str:
    tag = lowering.jobs[error.job].tag
    return f"{(tag.layer or tag.name)!r} of {lowering.network.name!r}"


def _examples(batch: int) -> str:
    return "one example" if batch == 1 else f"a batch of {batch}"
