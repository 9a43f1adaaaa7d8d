"""`compile_image`: a quantized network becomes a program for the chip.

Idea: three steps. Nodes become jobs over planes (`lowering.py`); the Unified Buffer is shared out among the planes
(`residence.py`); jobs become instructions (`writing.py`), and Syncs are put where they must be (`ordering.py`).
"""

from __future__ import annotations

from typing import Literal

from anytpu.chip.compiler import convolutions, hosting, pointwise, rearranging
from anytpu.chip.compiler.emission import Emission
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.compiler.ordering import order
from anytpu.chip.compiler.residence import FullError, Residence, share_out
from anytpu.chip.compiler.writing import write
from anytpu.chip.design import TPU_V1, Design
from anytpu.chip.image import Image, Resident, Tag
from anytpu.chip.isa.instructions import DebugTag, Halt
from anytpu.chip.quantized.nodes import QuantizedNetwork

_ = convolutions, pointwise, rearranging  # They say how their nodes are lowered.


def compile_image(
    network: QuantizedNetwork,
    *,
    batch: int = 1,
    design: Design = TPU_V1,
    convolution: Literal["auto", "native", "packed"] = "auto",
    spill: bool = True,
    weights: bool = True,
) -> Image:
    """Compile a quantized network for batches of one size.

    Args:
        network: what to compile.
        batch: examples that go through at a time.
        design: the chip.
        convolution: one tap of the kernel a pass ("native"), as many as the array holds ("packed"), or for each layer
            what takes less time ("auto").
        spill: move to the host's buffer what the Unified Buffer has no room for; False: that is an error.
        weights: fill the Weight Memory; False: leave zeros that take no memory, for who only wants the time.

    Raises:
        CapacityError: the weights, or what one layer needs at a time, are more than the chip holds; or, without
            `spill`, all that is wanted at a time is.
    """
    lowering = lowered(network, batch, design, convolution, weights, True)
    lowering.memory.check(network.name)
    residence = share_out(
        lowering.jobs,
        lowering.storages,
        lowering.on_host,
        design.buffer_units,
        spill=spill,
        host_bytes=lowering.host_bytes,
    )
    emission, tags, ranges = _write_all(lowering, residence, design)
    program, numbers = order(emission.items)
    return Image(
        network.name,
        program,
        lowering.memory.image(filled=weights),
        batch,
        residence.host_bytes,
        tuple(lowering.bindings[port.tensor] for port in network.inputs if port.tensor in lowering.bindings),
        tuple(lowering.bindings[port.tensor] for port in network.outputs if port.tensor in lowering.bindings),
        tuple(lowering.services),
        tags,
        _residents(lowering, residence, ranges, numbers),
        design,
    )


def largest_batch(network: QuantizedNetwork, design: Design, most: int) -> int:
    """Return the largest power of two up to `most` whose activations fit in the Unified Buffer, 0 when none does."""
    batch = 1 << most.bit_length() - 1
    while batch and not _fits(network, batch, design):
        batch //= 2
    return batch


def _fits(network: QuantizedNetwork, batch: int, design: Design) -> bool:
    lowering = lowered(network, batch, design, "auto", False, True)
    try:
        share_out(lowering.jobs, lowering.storages, lowering.on_host, design.buffer_units, spill=False)
    except FullError:
        return False
    return True


def lowered(
    network: QuantizedNetwork, batch: int, design: Design, convolution: str, by_content: bool, in_place: bool
) -> Lowering:
    """Return the jobs of a network."""
    lowering = Lowering(network, batch, design, convolution, by_content, in_place)
    outputs = {port.tensor for port in network.outputs}
    for port in network.inputs:
        if port.tensor in network.quantizations:
            hosting.receive(port.tensor, port.tensor, lowering)
    for node in network.nodes:
        lower(node, lowering)
        for tensor in _made(node, lowering) & outputs & network.quantizations.keys():
            hosting.export(tensor, node, Tag(node.name, node.layer, "output"), lowering)
    return lowering


def _made(node, lowering: Lowering) -> set[str]:
    table = lowering.fused.get(node.output)
    return {table.output} if table is not None else {node.output}


def _write_all(
    lowering: Lowering, residence: Residence, design: Design
) -> tuple[Emission, tuple[Tag, ...], list[tuple[int, int]]]:
    """Write all jobs, and return the parts and from where to where each job's instructions go."""
    emission, tags, ranges = Emission(design), [], []
    for load in lowering.tables.loads:
        emission.add(load)
    for number, job in enumerate(lowering.jobs):
        first = len(emission.items)
        if not tags or tags[-1].name != job.tag.name:
            emission.add(DebugTag(len(tags)))
            tags.append(job.tag)
        for move in residence.moves[number]:
            emission.move(move, lowering.storages[move.storage].units)
        emission.addresses = residence.addresses[number]
        write(job, emission)
        ranges.append((first, len(emission.items) - 1))
    emission.add(Halt())
    return emission, tuple(tags), ranges


def _residents(
    lowering: Lowering, residence: Residence, ranges: list[tuple[int, int]], numbers: list[int]
) -> tuple[Resident, ...]:
    found = []
    for stay in residence.stays:
        storage = lowering.storages[stay.storage]
        first, last = numbers[ranges[stay.first][0]], numbers[ranges[stay.last][1]]
        found.append(Resident(storage.tensor, stay.address, storage.units, first, last))
    return tuple(sorted(found, key=lambda one: (one.first, one.address)))
