"""`compile_image`: compile a quantized network to a program for the chip.

Idea: five passes, each over the whole network:

1. Lowering (`lowering.py`): nodes become jobs over planes that have no addresses yet.
2. Buffer allocation (`allocation.py`): each storage gets an address in the Unified Buffer, or is spilled.
3. Code generation (`writing.py`): jobs become instructions in an order that is correct sequentially.
4. Hoisting (`hoisting.py`): each write to the host moves right after the instruction that completes its data.
5. Synchronization (`ordering.py`): a Sync is inserted wherever two units access the same address.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytpu.chip.compiler.allocation import BufferAllocation
from anytpu.chip.compiler.drafting import write_unsynced
from anytpu.chip.compiler.fitting import find_room
from anytpu.chip.compiler.limits import check_registers
from anytpu.chip.compiler.lowering import Lowering
from anytpu.chip.compiler.ordering import insert_syncs
from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Binding, Image, Resident
from anytpu.chip.isa.design import TPU_V1, Design


def compile_image(
    network: Network,
    *,
    batch: int = 1,
    design: Design = TPU_V1,
    spill: bool = True,
    weights: bool = True,
    known: np.ndarray | None = None,
) -> Image:
    """Compile a quantized network for batches of one size.

    Args:
        network: the network to compile.
        batch: number of examples in a batch, at least 1.
        design: the chip.
        spill: whether to spill storages that exceed the Unified Buffer to the host's buffer; False: that is an error.
        weights: whether to fill the Weight Memory; False: zeros that take no memory, if only the time is needed.
        known: the weights of the network's image for another batch, which the new image shares if they are equal.

    Raises:
        CapacityError: the weights, or the storages that one layer needs at a time, exceed the chip's memory. Without
            `spill`: all storages that are live at a time do.
    """
    # 1 and 2. Lowering and buffer allocation; lowering is repeated if storages must be spilled.
    lowering, allocation = find_room(network, batch, design, by_content=weights, spill=spill)
    # 3 and 4. Instructions without Syncs, writes to the host hoisted.
    drafted = write_unsynced(lowering, allocation)
    # 5. Syncs. They shift instructions: `numbers` maps old indices to new ones.
    program, numbers = insert_syncs(drafted.items)
    check_registers(program, drafted.tags)
    return Image(
        network.name,
        program,
        lowering.memory.image(filled=weights, known=known),
        batch,
        allocation.host_bytes,
        _bindings([port.tensor for port in network.inputs], lowering),
        _bindings([port.tensor for port in network.outputs], lowering),
        tuple(lowering.services),
        drafted.tags,
        _residents(lowering, allocation, drafted.ranges, numbers),
        design,
    )


def _bindings(tensors: Sequence[str], lowering: Lowering) -> tuple[Binding, ...]:
    """Return the bindings of tensors in the host's buffer, each once; tensors without a binding are left out."""
    return tuple(lowering.bindings[tensor] for tensor in dict.fromkeys(tensors) if tensor in lowering.bindings)


def _residents(
    lowering: Lowering, allocation: BufferAllocation, ranges: list[tuple[int, int]], numbers: list[int]
) -> tuple[Resident, ...]:
    residents = []
    for buffer in allocation.buffers:
        storage = lowering.storages[buffer.storage]
        first, last = numbers[ranges[buffer.first][0]], numbers[ranges[buffer.last][1]]
        residents.append(Resident(storage.tensor, buffer.address, storage.units, first, last))
    return tuple(sorted(residents, key=lambda resident: (resident.first, resident.address)))
