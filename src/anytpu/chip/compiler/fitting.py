"""Does it fit? Room in the Unified Buffer for a network, the errors that say there is none, and `largest_batch`.

Idea: every storage is as many rows as there are examples, times something. So jobs made for one example tell, with
larger storages, whether any batch fits.
"""

from __future__ import annotations

import dataclasses

from anytpu.chip.compiler.allocation import BufferAllocation, BufferFullError, allocate
from anytpu.chip.compiler.lowering import Lowering
from anytpu.chip.compiler.walking import lowered
from anytpu.chip.design import UNIT_BYTES, Design
from anytpu.chip.quantized.nodes import QuantizedNetwork
from anytpu.errors import CapacityError


def largest_batch(network: QuantizedNetwork, design: Design, maximum: int) -> int:
    """Return the largest power of two up to `maximum` whose activations fit without spilling; 0 when not even 1 does.

    Args:
        network: what is to be compiled.
        design: for which chip.
        maximum: at least 1.
    """
    return _largest(lowered(network, 1, design, "auto", by_content=False, in_place=True), maximum, spill=False)


def find_room(
    network: QuantizedNetwork, batch: int, design: Design, convolution: str, *, by_content: bool, spill: bool
) -> tuple[Lowering, BufferAllocation]:
    """Return the jobs of a network and where their storages lie.

    Args:
        network, batch, design, convolution, spill: as in `compile_image`.
        by_content: as in `lowered`.

    Raises:
        CapacityError: the weights, or the activations, are more than the chip holds.
    """
    lowering = lowered(network, batch, design, convolution, by_content=by_content, in_place=True)
    lowering.memory.check(network.name)
    try:
        return lowering, _share(lowering, 1, spill=False)
    except BufferFullError as error:
        if not spill:
            raise _crowded(lowering, error) from None
    # A storage that goes out must have been written as a whole.
    lowering = lowered(network, batch, design, convolution, by_content=by_content, in_place=False)
    try:
        return lowering, _share(lowering, 1, spill=True)
    except BufferFullError as error:
        raise _too_large(lowering, error) from None


def _share(lowering: Lowering, times: int, *, spill: bool) -> BufferAllocation:
    """Share out the Unified Buffer among storages that are `times` as large."""
    storages = [dataclasses.replace(storage, units=storage.units * times) for storage in lowering.storages]
    units, on_host = lowering.design.buffer_units, lowering.on_host
    return allocate(lowering.jobs, storages, on_host, units, spill=spill, host_bytes=lowering.host_bytes)


def _largest(lowering: Lowering, maximum: int, *, spill: bool) -> int:
    batch = 1 << maximum.bit_length() - 1 if maximum > 0 else 0
    while batch:
        try:
            _share(lowering, batch, spill=spill)
            return batch
        except BufferFullError:
            batch //= 2
    return 0


def _crowded(lowering: Lowering, error: BufferFullError) -> CapacityError:
    """Return the error that says that what is wanted at a time does not fit."""
    single = _for_one(lowering, in_place=True)
    batch = _largest(single, lowering.batch - 1, spill=False)
    is_in_pieces = error.needed_units + error.held_units <= lowering.design.buffer_units
    pieces = ", of which what is free is in pieces" if is_in_pieces else ""
    advice = f"Use batch={batch}, the largest power of two that fits, or" if batch else "Not even one example fits: use"
    return CapacityError(
        f"{_where(lowering, error)} needs {error.needed_units * UNIT_BYTES:,} bytes of the Unified Buffer for "
        f"{_examples(lowering.batch)}, beside {error.held_units * UNIT_BYTES:,} that are wanted later, and the chip "
        f"has {lowering.design.unified_buffer_bytes:,}{pieces}. {advice} spill=True, which moves "
        "to the host what there is no room for."
    )


def _too_large(lowering: Lowering, error: BufferFullError) -> CapacityError:
    """Return the error that says that what one layer touches does not fit."""
    batch = _largest(_for_one(lowering, in_place=False), lowering.batch - 1, spill=True)
    advice = "Not even one example fits: make the layer, or what goes into it, smaller."
    if batch:
        advice = f"Use batch={batch}, the largest power of two that works."
    return CapacityError(
        f"{_where(lowering, error)} works on {error.needed_units * UNIT_BYTES:,} bytes of the Unified Buffer at a time "
        f"for {_examples(lowering.batch)}, and the chip has {lowering.design.unified_buffer_bytes:,}. {advice}"
    )


def _for_one(lowering: Lowering, *, in_place: bool) -> Lowering:
    network, design, convolution = lowering.network, lowering.design, lowering.convolution
    return lowered(network, 1, design, convolution, by_content=False, in_place=in_place)


def _where(lowering: Lowering, error: BufferFullError) -> str:
    tag = lowering.jobs[error.job].tag
    return f"{(tag.layer or tag.name)!r} of {lowering.network.name!r}"


def _examples(batch: int) -> str:
    return "one example" if batch == 1 else f"a batch of {batch}"
