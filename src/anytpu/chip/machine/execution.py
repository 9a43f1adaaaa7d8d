"""Execution: an image run on numbers, step by step, exactly.

Idea: `decode` finds all that does not depend on the numbers, once per image; a run then only moves and makes numbers.

Rule: runs of one image may go on at the same time, each with memories of its own; what is kept for the image is only
added to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.checking import check
from anytpu.chip.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.chip.image import Image
from anytpu.chip.machine import host, workers
from anytpu.chip.machine.activation import activate
from anytpu.chip.machine.decoding import decode
from anytpu.chip.machine.fusing import LayerStep, fuse
from anytpu.chip.machine.layers import Layers
from anytpu.chip.machine.memories import Memories
from anytpu.chip.machine.products import multiply
from anytpu.chip.machine.steps import ActivateStep, ProductStep, ServiceStep, Step, TableStep, TransferStep
from anytpu.errors import ChipError


class Machine:
    """A chip with one image loaded, ready to run it again and again.

    Attributes:
        image: what it runs.
        steps: what a run does, in order.
    """

    def __init__(self, image: Image):
        """Load an image.

        Raises:
            HazardError: the image reads what nothing wrote, pops an empty FIFO, or leaves a memory.
        """
        check(image)
        self.image = image
        self.steps = fuse(decode(image), image.design)
        self._layers = Layers(image)

    def run(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the image; see `run`."""
        return execute(self.image, self.steps, values, {ProductStep: multiply, LayerStep: self._layers.do})


_machines: weakref.WeakKeyDictionary[Image, Machine] = weakref.WeakKeyDictionary()


def run(image: Image, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run an image on one batch, exactly.

    Args:
        image: what to run; what was prepared for it is kept for the next run as long as the image lives.
        values: by name: integers `(batch, height, width, channels)` of each input of the chip, and the user's own
            arrays that steps of the host take, of the same axes.

    Returns:
        By name: what went in, the integers of each output of the chip and of what the steps of the host took, and what
        they made (floats where it is no tensor of the chip).

    Raises:
        ChipError: an input is missing, or of the wrong shape or dtype; the image cannot run.
        HazardError: the image's results would depend on luck.
    """
    machine = _machines.get(image)
    if machine is None:
        machine = _machines[image] = Machine(image)
    return machine.run(values)


def execute(
    image: Image,
    steps: Sequence[Step],
    values: Mapping[str, np.ndarray],
    products: Mapping[type[Step], Callable[[Memories, Any], None]],
) -> dict[str, np.ndarray]:
    """Carry out steps in order, on memories of their own.

    Args:
        image: where the steps came from.
        steps: what to do.
        values: as in `run`.
        products: what does each kind of product.
    """
    memories = Memories.of(image)
    known = _accept(image, values)
    for binding in image.inputs:
        host.pack(memories.host, binding, known[binding.tensor])
    actions = {ActivateStep: activate, TransferStep: _transfer, TableStep: _load_tables, **products}
    with workers.one_thread_blas():
        for step in steps:
            if isinstance(step, ServiceStep):
                host.serve(memories.host, image.services[step.service], image.batch, known)
            else:
                actions[type(step)](memories, step)
    outputs = {binding.tensor: host.unpack(memories.host, binding, image.batch) for binding in image.outputs}
    return {**known, **outputs}


def _accept(image: Image, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what is needed of the values, each of the right batch."""
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


def _transfer(memories: Memories, step: TransferStep) -> None:
    chip = memories.buffer[step.address * UNIT_BYTES : (step.address + step.units) * UNIT_BYTES]
    outside = memories.host[step.host_address : step.host_address + step.units * UNIT_BYTES]
    if step.inwards:
        chip[...] = outside
    else:
        outside[...] = chip


def _load_tables(memories: Memories, step: TableStep) -> None:
    dtype, entries = ("<i2", 65536) if step.wide else ("i1", 256)
    size_bytes = np.dtype(dtype).itemsize * entries
    blocks = -(-size_bytes // BLOCK_BYTES)
    for i in range(step.count):
        start = (step.address + i * blocks) * BLOCK_BYTES
        memories.tables[step.slot + i] = memories.weights[start : start + size_bytes].view(dtype)
