"""The first tile that a program multiplies with, and the first rows that meet it: the user's own numbers.

Idea: the machine runs the program up to its first product, and hands over what it would send into the array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from anytpu.chip import ports
from anytpu.chip.image import Image
from anytpu.chip.isa.instructions import DebugTag
from anytpu.chip.machine.decoding import decode
from anytpu.chip.machine.execution import execute
from anytpu.chip.machine.memories import Memories
from anytpu.chip.machine.steps import ProductStep
from anytpu.chip.machine.witness import passes_of
from anytpu.chip.quantized.nodes import QuantizedNetwork


@dataclasses.dataclass(frozen=True, eq=False)
class FirstTile:
    """A tile, and rows that go through it.

    Attributes:
        layer: of the product; "" where it is not known.
        weights: int8 `(array, array)`: the tile.
        numbers: int32 `(rows, array)`: what the pass sends into the array.
        depth: rows of the array that the pass uses.
        is_example: whether the numbers are of the user's examples; else they are drawn at random.
        is_half: whether the numbers are the low bytes of numbers of 16 bits.
    """

    layer: str
    weights: np.ndarray
    numbers: np.ndarray
    depth: int
    is_example: bool
    is_half: bool = False


class _Found(Exception):
    """The first product was reached."""

    def __init__(self, weights: np.ndarray, numbers: np.ndarray, step: ProductStep):
        super().__init__()
        self.weights, self.numbers, self.step = weights, numbers, step


def first_tile(image: Image, network: QuantizedNetwork | None, example: Mapping[str, np.ndarray]) -> FirstTile | None:
    """Return the first tile of a program; None where it has no product.

    Args:
        image: the program.
        network: what it was compiled from, if that is known.
        example: arrays of the user by the names of the network's inputs, a row or more of each; empty for none.
    """
    size = image.design.array

    def stop(memories: Memories, step: ProductStep) -> None:
        tile, numbers, _ = next(passes_of(memories, step, size))
        raise _Found(tile, numbers, step)

    values = _own(image, network, example) if network and example else _invented(image, network)
    try:
        execute(image, decode(image), values, {ProductStep: stop})
    except _Found as found:
        feed = found.step.feeds[0]
        return FirstTile(
            _layer(image, found.step.number),
            found.weights.copy(),
            found.numbers,
            feed.depth,
            bool(network and example),
            feed.plane.high_offset is not None,
        )
    return None


def _own(image: Image, network: QuantizedNetwork, example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the user's arrays as tensors, their rows again and again until a batch is full."""
    values = {}
    for port in network.inputs:
        rows = np.resize(np.arange(len(example[port.tensor])), image.batch)
        taken = np.asarray(example[port.tensor])[rows]
        values[port.tensor] = ports.tensor_of(port, taken, network.shapes, network.quantizations)
    return values


def _invented(image: Image, network: QuantizedNetwork | None) -> dict[str, np.ndarray]:
    """Return numbers for what the program takes: whole numbers around the middle of what they may be, else zeros."""
    rng = np.random.default_rng(0)
    values: dict[str, np.ndarray] = {}
    for binding in image.inputs:
        drawn = rng.normal(binding.quantization.zero_point, 40, (image.batch, *binding.shape)).round()
        kept = np.clip(drawn, binding.quantization.low, binding.quantization.high)
        values[binding.tensor] = kept.astype(binding.quantization.dtype)
    made = {service.step.output for service in image.services}
    for service in image.services:
        for name, binding in zip(service.step.inputs, service.inputs, strict=True):
            if binding is None and name not in made:
                values[name] = np.zeros((image.batch, *(network.shapes[name] if network else (1, 1, 1))), np.float32)
    return values


def _layer(image: Image, number: int) -> str:
    tags = [one.tag for one in image.instructions[: number + 1] if isinstance(one, DebugTag)]
    if not tags or tags[-1] >= len(image.tags):
        return ""
    return image.tags[tags[-1]].layer or image.tags[tags[-1]].name
