"""The first tile of weights that a program uses, the rows multiplied with it, and the finished sums.

Idea: the machine runs the program up to the first sums that the activation unit takes. Then the operands of the array,
the accumulators and the results are read from its memories.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from anytpu.chip import ports
from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Image, Tag
from anytpu.chip.isa.accesses import out_units
from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.isa.instructions import Activate, ArrayInstruction, DebugTag
from anytpu.chip.isa.registers import Register
from anytpu.chip.machine.activation import parameters_at
from anytpu.chip.machine.decoding import Step, decode
from anytpu.chip.machine.execution import execute
from anytpu.chip.machine.memories import ChipMemories, plane_rows
from anytpu.chip.machine.products import Multiplier, operands_of, passes_of, product_of

SIZE = 8
"""Maximum number of rows, columns and vectors shown."""


@dataclasses.dataclass(frozen=True, eq=False)
class FinishedSums:
    """Sums that the activation unit took, and the integers it made of them.

    Attributes:
        sums: contents of the accumulators, int32 `(rows, columns)`, for the first columns of the array.
        bias: bias of each column, int32; it contains the zero point of the input times the weights.
        multiplier: multiplier of each column, float32.
        zero_point: zero point of the result.
        low, high: bounds of the clip.
        table: whether a table is looked up at the end.
        results: integers that were written to the Unified Buffer, int32 `(rows, columns)`.
    """

    sums: np.ndarray
    bias: np.ndarray
    multiplier: np.ndarray
    zero_point: int
    low: int
    high: int
    table: bool
    results: np.ndarray


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
        node: name of the network's node; "" if not known.
        finished: the sums of all passes in the accumulators and their results; None if the activation unit takes other
            rows.
    """

    layer: str
    weights: np.ndarray
    numbers: np.ndarray
    depth: int
    is_example: bool
    is_half: bool = False
    node: str = ""
    finished: FinishedSums | None = None


def first_tile(image: Image, network: Network | None, example: Mapping[str, np.ndarray]) -> FirstTile | None:
    """Return the first tile of a program; None if it has no product.

    Args:
        image: the program.
        network: the network from which it was compiled, or None if not known.
        example: the user's arrays by the names of the network's inputs, at least one row each; may be empty.
    """
    steps, size = decode(image), image.design.array
    first = next((n for n, step in enumerate(steps) if isinstance(step.instruction, ArrayInstruction)), None)
    if first is None:
        return None
    scaled = next((step for step in steps[first:] if _is_scale(step)), steps[first])
    memories, machine = ChipMemories.of(image), Multiplier()
    operands: list[tuple[np.ndarray, np.ndarray]] = []

    def multiply(memories: ChipMemories, step: Step) -> None:
        if not operands:
            tile, numbers, _ = next(operands_of(memories, step, size))
            operands.append((tile.copy(), numbers))
        machine.multiply(memories, step)

    values = _example_values(image, network, example) if network and example else _random_values(image, network)
    execute(image, [step for step in steps if step.number <= scaled.number], values, multiply, memories)
    tag, product = _tag(image, steps[first].number), product_of(steps[first])
    return FirstTile(
        tag.layer or tag.name,
        *operands[0],
        passes_of(steps[first], size)[0].depth,
        bool(network and example),
        product.wide,
        tag.name,
        _finished(memories, scaled, product),
    )


def _is_scale(step: Step) -> bool:
    return isinstance(step.instruction, Activate) and step.instruction.operation == "scale"


def _finished(memories: ChipMemories, step: Step, product: ArrayInstruction) -> FinishedSums | None:
    """Return the sums and results of an Activate that takes the rows of a product, from its first column on."""
    taken = step.instruction
    if not isinstance(taken, Activate) or taken.source != product.accumulator or taken.rows > product.rows:
        return None
    pitch = step.integer(Register.OUT_PITCH)
    columns = min(SIZE, memories.accumulators.shape[1], out_units(step.registers) * UNIT_BYTES)
    if not columns or step.integer(Register.SOURCE_LANE):
        return None

    def written(address: int, dtype: type[np.generic]) -> np.ndarray:
        return plane_rows(memories.buffer, address, pitch, columns, dtype)[: taken.rows, 0].astype(np.int32)

    if taken.wide_out:
        high = written(taken.target + step.integer(Register.OUT_HIGH_OFFSET), np.int8)
        results = written(taken.target, np.uint8) + 256 * high
    else:
        results = written(taken.target, np.int8)
    bias, multiplier = parameters_at(memories.weights, step.parameters, memories.accumulators.shape[1])
    return FinishedSums(
        memories.accumulators[taken.source : taken.source + taken.rows, :columns].copy(),
        bias[:columns].copy(),
        multiplier[:columns].copy(),
        step.integer(Register.OUT_ZERO_POINT),
        step.integer(Register.LOW),
        step.integer(Register.HIGH),
        taken.table,
        results,
    )


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


def _tag(image: Image, number: int) -> Tag:
    """Return the part of the program that an instruction belongs to."""
    tags: Sequence[int] = [item.tag for item in image.instructions[: number + 1] if isinstance(item, DebugTag)]
    return image.tags[tags[-1]] if tags and tags[-1] < len(image.tags) else Tag("")
