"""Convolutions and dense layers: which planes go through the array, how many taps a pass, and against which tiles.

Idea: a convolution maps channels to the array's rows and outputs to its columns, and takes one pass for each tap of the
kernel ("native"). If there are few channels, several taps side by side fill the rows ("packed"). The result of a
flatten is an image whose positions are the taps.

Source: Jouppi et al. 2017, section 9 ("for low C/M, a number of techniques reduce passes").
"""

from __future__ import annotations

import dataclasses
import math

from anytpu.chip.compiler.jobs import Column, Feed, ProductJob, Window, storages_of
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.compiler.planes import Layout, Plane, stacks
from anytpu.chip.compiler.results import Result, result_of
from anytpu.chip.compiler.tiles import Intake, folded_bias, numbers_of, parameters_of, tiles_of
from anytpu.chip.image import Tag
from anytpu.chip.isa.registers import Register
from anytpu.chip.quantized.multipliers import convolution_multipliers
from anytpu.chip.quantized.nodes import QConvolution

_MOST_TAPS = 65535  # The maximum of register KERNEL_WIDTH.


@dataclasses.dataclass(frozen=True)
class Way:
    """One mapping of a convolution to the array: the intakes that each block of outputs sums."""

    intakes: tuple[tuple[Intake, ...], ...]

    @property
    def passes(self) -> int:
        """Tiles for each chunk of rows."""
        return sum(intake.feed.passes for column in self.intakes for intake in column)


@lower.register
def _(node: QConvolution, lowering: Lowering) -> None:
    result = result_of(node, lowering, node.low, node.high)
    source = lowering.layouts[node.inputs[0]]
    structure = lowering.structure(result.tensor)
    target = lowering.target(result.tensor, structure, node.layer or node.name, adaptable=True)
    rows = lowering.rows(result.tensor)
    window = _window(node, lowering)
    ways = {name: _way(node, source, target, window, lowering, name == "packed") for name in ("native", "packed")}
    wide = lowering.quantization(node.inputs[0]).bits == 16
    costs = {name: _cost_cycles(way, rows, wide, lowering) for name, way in ways.items()}
    chosen = lowering.convolution if lowering.convolution in ways else min(costs, key=lambda name: costs[name])
    columns = _columns(node, target, ways[chosen], lowering)
    zero_point = lowering.quantization(node.inputs[0]).zero_point
    tag = _tag(node, result, ways, chosen, lowering)
    job = ProductJob(
        tag,
        storages_of([source]),
        storages_of([target]),
        columns,
        rows,
        {**result.settings, Register.ZERO_POINT: zero_point, **window.settings(lowering.batch)},
        wide,
        result.wide,
        result.table,
    )
    lowering.jobs.append(job)


def _window(node: QConvolution, lowering: Lowering) -> Window:
    source, target = lowering.network.shapes[node.inputs[0]], lowering.network.shapes[node.output]
    pad = node.padding[0][0], node.padding[1][0]
    kernel = node.weights.shape[0], node.weights.shape[1]
    return Window(source[:2], target[:2], kernel, node.strides, node.dilation, pad)


def _way(node: QConvolution, source: Layout, target: Layout, window: Window, lowering: Lowering, packed: bool) -> Way:
    intakes = _intakes(node, source, window, lowering, packed)
    depth, width = node.weights.shape[2], node.weights.shape[3] // node.groups
    columns, first = [], 0
    for plane in target:
        low, high = first // width, (first + plane.channels - 1) // width
        first += plane.channels
        columns.append(tuple(i for i in intakes if i.channels[0] // depth <= high and low <= i.channels[1] // depth))
    return Way(tuple(columns))


def _intakes(node: QConvolution, source: Layout, window: Window, lowering: Lowering, packed: bool) -> list[Intake]:
    array, depth = lowering.design.array, lowering.channels(node.inputs[0])
    intakes, first = [], 0
    if window.is_plain and packed and window.target == (1, 1) and node.groups == 1:
        for stack in stacks(source, lowering.batch, _MOST_TAPS):
            intakes.append(_of_stack(stack, first, array))
            first += len(stack) * stack[0].channels
        return intakes
    for plane in source:
        if window.is_plain and plane.shift == 0:
            feed = Feed(plane, plane.span)
        else:
            feed = Feed(plane, plane.span, max(1, array // plane.span) if packed else 1, window)
        intakes.append(Intake(feed, first, depth))
        first += plane.channels
    return intakes


def _of_stack(stack: list[Plane], first: int, array: int) -> Intake:
    plane, count = stack[0], len(stack)
    if count == 1 and plane.shift == 0:
        return Intake(Feed(plane, plane.span), first, 0)
    window = Window((1, count), (1, 1), (1, count))
    return Intake(Feed(plane, plane.span, max(1, array // plane.span), window), first, plane.channels)


def _cost_cycles(way: Way, rows: int, wide: bool, lowering: Lowering) -> float:
    """Return about how long a convolution takes: each pass streams its rows while the next tile is fetched."""
    design = lowering.design
    chunks = math.ceil(rows / max(1, design.accumulator_rows // 2))
    return way.passes * chunks * max(rows / chunks * (1 + wide), design.array, design.tile_cycles)


def _columns(node: QConvolution, target: Layout, way: Way, lowering: Lowering) -> tuple[Column, ...]:
    design, memory, array = lowering.design, lowering.memory, lowering.design.array
    source, result = lowering.quantization(node.inputs[0]), lowering.quantization(node.output)
    weights, scales, bias = (memory.identity(tensor) for tensor in (node.weights, node.weight_scales, node.bias))

    def tiles(intakes: tuple[Intake, ...], columns):
        import numpy as np

        rows = np.concatenate([intake.rows(array) for intake in intakes])
        return tiles_of(node.weights, node.groups, rows, columns)

    def parameters(columns):
        multipliers = convolution_multipliers(source, node.weight_scales, result)
        return parameters_of(folded_bias(node.weights, node.bias, source.zero_point), multipliers, columns)

    made, first = [], 0
    for plane, intakes in zip(target, way.intakes, strict=True):
        columns = numbers_of(plane.runs, first, array)
        place = (first, plane.runs)
        passes = sum(intake.feed.passes for intake in intakes)
        address = memory.reserve(
            ("tiles", weights, node.groups, place, tuple(intake.key for intake in intakes)),
            passes,
            design.tile_blocks,
            lambda intakes=intakes, columns=columns: tiles(intakes, columns),
        )
        block = memory.reserve(
            ("parameters", weights, scales, bias, place, source, result.scale),
            1,
            design.parameter_blocks,
            lambda columns=columns: parameters(columns),
        )
        made.append(Column(plane, tuple(intake.feed for intake in intakes), address, block))
        first += plane.channels
    return tuple(made)


def _tag(node: QConvolution, result: Result, ways: dict[str, Way], chosen: str, lowering: Lowering) -> Tag:
    height, width, _ = lowering.network.shapes[node.output]
    cells = math.prod(node.weights.shape)
    capacity = lowering.design.array**2
    # A dense layer after a flatten is a convolution whose kernel is as large as the image.
    is_dense = (height, width) == (1, 1) and node.groups == 1 and not any(map(any, node.padding))
    is_dense = is_dense and node.weights.shape[:2] == lowering.network.shapes[node.inputs[0]][:2]
    parts = [
        f"{name}: {_tiles(way, 100 * cells / (way.passes * capacity))} cells used"
        for name, way in sorted(ways.items(), key=lambda item: item[0] != chosen)
    ]
    note = parts[0] if ways["native"].passes == ways["packed"].passes else f"{parts[0]} ({parts[1]})"
    name = "dense" if is_dense else "convolution"
    macs = cells * height * width * lowering.batch
    return Tag(node.name, node.layer, result.named(name), macs, note)


def _tiles(way: Way, used: float) -> str:
    """Write the number of tiles of weights: each goes through the array once for each chunk of rows."""
    whose = "1 tile of weights, {} % of its" if way.passes == 1 else f"{way.passes} tiles of weights, {{}} % of their"
    return whose.format(f"{used:.1f}")
