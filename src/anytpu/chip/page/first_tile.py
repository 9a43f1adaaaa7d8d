"""The first tile of weights that a program uses, and the rows that are multiplied with it.

Idea: the machine runs the program up to its first product and returns the operands of the array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from anytpu.chip import ports
from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Image
from anytpu.chip.isa.instructions import DebugTag
from anytpu.chip.machine.decoding import Step, decode
from anytpu.chip.machine.execution import execute
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.products import passes_of, product_of
from anytpu.chip.machine.witness import operands_of


@dataclasses.dataclass(frozen=True, eq=False)
class FirstTile:
    """A tile of weights and the activation rows of its first pass.

    Attributes:
        layer: layer of the product; "" if not known.
        weights: the tile; int8 `(array, array)`.
        numbers: activations that the pass sends into the array; int32 `(rows, array)`.
        depth: number of array rows that the pass uses, 1 to `array`.
        is_example: whether the activations come from the user's examples; else they are random.
        is_half: whether the activations are the low bytes of 16-bit values.
    """

    layer: str
    weights: np.ndarray
    numbers: np.ndarray
    depth: int
    is_example: bool
    is_half: bool = False


class _FirstProduct(Exception):
    """Raised at the first product, to stop the machine; it carries the operands."""

    def __init__(self, weights: np.ndarray, numbers: np.ndarray, step: Step):
        super().__init__()
        self.weights, self.numbers, self.step = weights, numbers, step


def first_tile(image: Image, network: Network | None, example: Mapping[str, np.ndarray]) -> FirstTile | None:
    """Return the first tile of a program; None if it has no product.

    Args:
        image: the program.
        network: the network from which it was compiled, or None if not known.
        example: the user's arrays by the names of the network's inputs, at least one row each; may be empty.
    """
    size = image.design.array

    def stop(memories: ChipMemories, step: Step) -> None:
        tile, numbers, _ = next(operands_of(memories, step, size))
        raise _FirstProduct(tile, numbers, step)

    values = _example_values(image, network, example) if network and example else _random_values(image, network)
    try:
        execute(image, decode(image), values, stop)
    except _FirstProduct as product:
        return FirstTile(
            _layer(image, product.step.number),
            product.weights.copy(),
            product.numbers,
            passes_of(product.step, size)[0].depth,
            bool(network and example),
            product_of(product.step).wide,
        )
    return None


def _example_values(image: Image, network: Network, example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the user's arrays as tensors, with rows repeated to fill a batch."""
    values = {}
    for port in network.inputs:
        rows = np.resize(np.arange(len(example[port.tensor])), image.batch)
        taken = np.asarray(example[port.tensor])[rows]
        values[port.tensor] = ports.tensor_of(port, taken, network.shapes, network.quantizations)
    return values


def _random_values(image: Image, network: Network | None) -> dict[str, np.ndarray]:
    """Return inputs of the program: random integers around the zero point, and zeros for inputs of host steps."""
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
    tags = [item.tag for item in image.instructions[: number + 1] if isinstance(item, DebugTag)]
    if not tags or tags[-1] >= len(image.tags):
        return ""
    return image.tags[tags[-1]].layer or image.tags[tags[-1]].name
