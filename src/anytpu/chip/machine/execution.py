"""`execute`: carry out the steps of an image in order, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import blocks_of
from anytpu.chip.isa.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.isa.instructions import (
    Activate,
    ArrayInstruction,
    InterruptHost,
    ReadHostMemory,
    ReadWeights,
    WriteHostMemory,
)
from anytpu.chip.machine import host, workers
from anytpu.chip.machine.activation import activate
from anytpu.chip.machine.decoding import Step
from anytpu.chip.machine.memories import ChipMemories
from anytpu.errors import ChipError


def execute(
    image: Image,
    steps: Sequence[Step],
    values: Mapping[str, np.ndarray],
    multiply: Callable[[ChipMemories, Step], None],
    memories: ChipMemories | None = None,
) -> dict[str, np.ndarray]:
    """Carry out steps in order.

    Args:
        image: the image of the steps.
        steps: the steps, in order.
        values: as in `run`.
        multiply: carries out a product.
        memories: memories of the image's chip; None: new ones. Contents left by an earlier run have no effect: the
            checker has verified that an address is written before it is read.
    """
    # 1. The host writes the inputs into its buffer.
    memories = memories or ChipMemories.of(image)
    known = _accept(image, values)
    for binding in image.inputs:
        host.pack(memories.host, binding, known[binding.tensor])
    # 2. The steps, each by the function of its kind.
    with workers.one_thread_blas():
        for step in steps:
            instruction = step.instruction
            if isinstance(instruction, ArrayInstruction):
                multiply(memories, step)
            elif isinstance(instruction, Activate):
                activate(memories, step)
            elif isinstance(instruction, ReadHostMemory | WriteHostMemory):
                _transfer(memories, instruction)
            elif isinstance(instruction, ReadWeights):
                _load_tables(memories, instruction, blocks_of(instruction, image.design))
            elif isinstance(instruction, InterruptHost):
                host.serve(memories.host, image.services[instruction.number], image.batch, known)
    # 3. The host reads the outputs.
    outputs = {binding.tensor: host.unpack(memories.host, binding, image.batch) for binding in image.outputs}
    return {**known, **outputs}


def _accept(image: Image, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the values that the image needs, and check their batch."""
    made = {service.step.output for service in image.services}
    asked = [binding.tensor for binding in image.inputs]
    for service in image.services:
        pairs = zip(service.step.inputs, service.inputs, strict=True)
        asked += [name for name, binding in pairs if binding is None and name not in made]
    known = {}
    for name in asked:
        if name not in values:
            others = ", ".join(map(repr, sorted(values)))
            raise ChipError(
                f"{image.name!r} needs {name!r}, and was given {'only ' + others if others else 'nothing'}."
            )
        known[name] = np.asarray(values[name])
        shape = known[name].shape
        if shape[:1] != (image.batch,):
            text = f"was compiled for batches of {image.batch}, and {name!r} is of shape {shape}"
            raise ChipError(f"{image.name!r} {text}.")
    return known


def _transfer(memories: ChipMemories, instruction: ReadHostMemory | WriteHostMemory) -> None:
    start, size = instruction.address * UNIT_BYTES, instruction.units * UNIT_BYTES
    chip = memories.buffer[start : start + size]
    outside = memories.host[instruction.host_address : instruction.host_address + size]
    if isinstance(instruction, ReadHostMemory):
        chip[...] = outside
    else:
        outside[...] = chip


def _load_tables(memories: ChipMemories, instruction: ReadWeights, blocks: int) -> None:
    dtype, entries = ("<i2", 65536) if instruction.wide else ("i1", 256)
    for number in range(instruction.count):
        start = (instruction.address + number * blocks) * BLOCK_BYTES
        content = memories.weights[start : start + np.dtype(dtype).itemsize * entries]
        memories.tables[instruction.slot + number] = content.view(dtype)
