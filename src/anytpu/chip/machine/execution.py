"""`execute`: carry out the steps of an image in order, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.machine import host, workers
from anytpu.chip.machine.activation import activate
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.steps import ActivateStep, MachineStep, ServiceStep, TableStep, TransferStep
from anytpu.errors import ChipError


def execute(
    image: Image,
    steps: Sequence[MachineStep],
    values: Mapping[str, np.ndarray],
    products: Mapping[type[MachineStep], Callable[[ChipMemories, Any], None]],
    memories: ChipMemories | None = None,
) -> dict[str, np.ndarray]:
    """Carry out steps in order.

    Args:
        image: the image of the steps.
        steps: the steps, in order.
        values: as in `run`.
        products: the function that carries out each kind of product.
        memories: memories of the image's chip; None: new ones. Contents left by an earlier run have no effect: the
            checker has verified that an address is written before it is read.
    """
    # 1. The host writes the inputs into its buffer.
    memories = memories or ChipMemories.of(image)
    known = _accept(image, values)
    for binding in image.inputs:
        host.pack(memories.host, binding, known[binding.tensor])
    actions = {ActivateStep: activate, TransferStep: _transfer, TableStep: _load_tables, **products}
    # 2. The steps, each by the function of its kind.
    with workers.one_thread_blas():
        for step in steps:
            if isinstance(step, ServiceStep):
                host.serve(memories.host, image.services[step.service], image.batch, known)
            else:
                actions[type(step)](memories, step)
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


def _transfer(memories: ChipMemories, step: TransferStep) -> None:
    chip = memories.buffer[step.address * UNIT_BYTES : (step.address + step.units) * UNIT_BYTES]
    outside = memories.host[step.host_address : step.host_address + step.units * UNIT_BYTES]
    if step.inwards:
        chip[...] = outside
    else:
        outside[...] = chip


def _load_tables(memories: ChipMemories, step: TableStep) -> None:
    dtype, entries = ("<i2", 65536) if step.wide else ("i1", 256)
    size_bytes = np.dtype(dtype).itemsize * entries
    blocks = -(-size_bytes // BLOCK_BYTES)
    for i in range(step.count):
        start = (step.address + i * blocks) * BLOCK_BYTES
        memories.tables[step.slot + i] = memories.weights[start : start + size_bytes].view(dtype)
