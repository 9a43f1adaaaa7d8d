"""Convolutions and dense layers: their mapping to the array: planes, taps per pass, and tiles of weights.

Idea: a convolution maps channels to the array's rows and outputs to its columns, and takes one pass for each tap of the
kernel ("native"). If there are few channels, several taps side by side fill the rows ("packed"). The result of a
flatten is an image whose positions are the taps.

Source: Jouppi et al. 2017, section 9 ("for low C/M, a number of techniques reduce passes").
"""

from __future__ import annotations

import dataclasses
import math

from anytpu.chip.compiler.jobs import OutputBlock, PlaneFeed, ProductJob, WindowGeometry, storages_of
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.compiler.planes import Layout, StoragePlane, stacks
from anytpu.chip.compiler.results import NodeResult, result_of
from anytpu.chip.compiler.tiles import FeedChannels, folded_bias, numbers_of, parameters_of, tiles_of
from anytpu.chip.image.image import Tag
from anytpu.chip.isa.registers import Register
from anytpu.chip.quantized.multipliers import convolution_multipliers
from anytpu.chip.quantized.nodes import QConvolution

_MAX_TAPS = 65535  # The maximum of register KERNEL_WIDTH.


@dataclasses.dataclass(frozen=True)
class ArrayMapping:
    """One mapping of a convolution to the array: the feeds that each block of outputs sums."""

    input_feeds: tuple[tuple[FeedChannels, ...], ...]

    @property
    def passes(self) -> int:
        """Tiles for each chunk of rows."""
        return sum(input_feed.feed.passes for block in self.input_feeds for input_feed in block)


@lower.register
def _(node: QConvolution, lowering: Lowering) -> None:
    result = result_of(node, lowering, node.low, node.high)
    source = lowering.layouts[node.inputs[0]]
    structure = lowering.structure(result.tensor)
    target = lowering.target(result.tensor, structure, node.layer or node.name, adaptable=True)
    rows = lowering.rows(result.tensor)
    window = _window(node, lowering)
    mappings = {name: _way(node, source, target, window, lowering, name == "packed") for name in ("native", "packed")}
    wide = lowering.quantization(node.inputs[0]).bits == 16
    costs = {name: _cost_cycles(mapping, rows, wide, lowering) for name, mapping in mappings.items()}
    chosen = lowering.convolution if lowering.convolution in mappings else min(costs, key=lambda name: costs[name])
    blocks = _output_blocks(node, target, mappings[chosen], lowering)
    zero_point = lowering.quantization(node.inputs[0]).zero_point
    tag = _tag(node, result, mappings, chosen, lowering)
    job = ProductJob(
        tag,
        storages_of([source]),
        storages_of([target]),
        blocks,
        rows,
        {**result.settings, Register.ZERO_POINT: zero_point, **window.settings(lowering.batch)},
        wide,
        result.wide,
        result.table,
    )
    lowering.jobs.append(job)


def _window(node: QConvolution, lowering: Lowering) -> WindowGeometry:
    source, target = lowering.network.shapes[node.inputs[0]], lowering.network.shapes[node.output]
    pad = node.padding[0][0], node.padding[1][0]
    kernel = node.weights.shape[0], node.weights.shape[1]
    return WindowGeometry(source[:2], target[:2], kernel, node.strides, node.dilation, pad)


def _way(
    node: QConvolution, source: Layout, target: Layout, window: WindowGeometry, lowering: Lowering, packed: bool
) -> ArrayMapping:
    input_feeds = _intakes(node, source, window, lowering, packed)
    depth, width = node.weights.shape[2], node.weights.shape[3] // node.groups
    blocks, first = [], 0
    for plane in target:
        low, high = first // width, (first + plane.channels - 1) // width
        first += plane.channels
        blocks.append(tuple(i for i in input_feeds if i.channels[0] // depth <= high and low <= i.channels[1] // depth))
    return ArrayMapping(tuple(blocks))


def _intakes(
    node: QConvolution, source: Layout, window: WindowGeometry, lowering: Lowering, packed: bool
) -> list[FeedChannels]:
    array, depth = lowering.design.array, lowering.channels(node.inputs[0])
    input_feeds, first = [], 0
    if window.is_plain and packed and window.target == (1, 1) and node.groups == 1:
        for stack in stacks(source, lowering.batch, _MAX_TAPS):
            input_feeds.append(_of_stack(stack, first, array))
            first += len(stack) * stack[0].channels
        return input_feeds
    for plane in source:
        if window.is_plain and plane.shift == 0:
            feed = PlaneFeed(plane, plane.span)
        else:
            feed = PlaneFeed(plane, plane.span, max(1, array // plane.span) if packed else 1, window)
        input_feeds.append(FeedChannels(feed, first, depth))
        first += plane.channels
    return input_feeds


def _of_stack(stack: list[StoragePlane], first: int, array: int) -> FeedChannels:
    plane, count = stack[0], len(stack)
    if count == 1 and plane.shift == 0:
        return FeedChannels(PlaneFeed(plane, plane.span), first, 0)
    window = WindowGeometry((1, count), (1, 1), (1, count))
    return FeedChannels(PlaneFeed(plane, plane.span, max(1, array // plane.span), window), first, plane.channels)


def _cost_cycles(mapping: ArrayMapping, rows: int, wide: bool, lowering: Lowering) -> float:
    """Return an estimate of the cycles: each pass streams its rows while the next tile is shifted in and fetched."""
    design = lowering.design
    chunks = math.ceil(rows / max(1, design.accumulator_rows // 2))
    return mapping.passes * chunks * max(rows / chunks * (1 + wide), design.array, design.tile_cycles)


def _output_blocks(
    node: QConvolution, target: Layout, mapping: ArrayMapping, lowering: Lowering
) -> tuple[OutputBlock, ...]:
    design, memory, array = lowering.design, lowering.memory, lowering.design.array
    source, result = lowering.quantization(node.inputs[0]), lowering.quantization(node.output)
    weights, scales, bias = (memory.identity(tensor) for tensor in (node.weights, node.weight_scales, node.bias))

    def tiles(input_feeds: tuple[FeedChannels, ...], columns):
        import numpy as np

        rows = np.concatenate([input_feed.rows(array) for input_feed in input_feeds])
        return tiles_of(node.weights, node.groups, rows, columns)

    def parameters(columns):
        multipliers = convolution_multipliers(source, node.weight_scales, result)
        return parameters_of(folded_bias(node.weights, node.bias, source.zero_point), multipliers, columns)

    made, first = [], 0
    for plane, input_feeds in zip(target, mapping.input_feeds, strict=True):
        columns = numbers_of(plane.runs, first, array)
        place = (first, plane.runs)
        passes = sum(input_feed.feed.passes for input_feed in input_feeds)
        address = memory.reserve(
            ("tiles", weights, node.groups, place, tuple(input_feed.key for input_feed in input_feeds)),
            passes,
            design.tile_blocks,
            lambda input_feeds=input_feeds, columns=columns: tiles(input_feeds, columns),
        )
        block = memory.reserve(
            ("parameters", weights, scales, bias, place, source, result.scale),
            1,
            design.parameter_blocks,
            lambda columns=columns: parameters(columns),
        )
        made.append(OutputBlock(plane, tuple(input_feed.feed for input_feed in input_feeds), address, block))
        first += plane.channels
    return tuple(made)


def _tag(
    node: QConvolution, result: NodeResult, mappings: dict[str, ArrayMapping], chosen: str, lowering: Lowering
) -> Tag:
    height, width, _ = lowering.network.shapes[node.output]
    cells = math.prod(node.weights.shape)
    capacity = lowering.design.array**2
    # A dense layer after a flatten is a convolution whose kernel is as large as the image.
    is_dense = (height, width) == (1, 1) and node.groups == 1 and not any(map(any, node.padding))
    is_dense = is_dense and node.weights.shape[:2] == lowering.network.shapes[node.inputs[0]][:2]
    parts = [
        f"{name}: {_tiles(mapping, 100 * cells / (mapping.passes * capacity))} cells used"
        for name, mapping in sorted(mappings.items(), key=lambda item: item[0] != chosen)
    ]
    note = parts[0] if mappings["native"].passes == mappings["packed"].passes else f"{parts[0]} ({parts[1]})"
    name = "dense" if is_dense else "convolution"
    macs = cells * height * width * lowering.batch
    return Tag(node.name, node.layer, result.named(name), macs, note)


def _tiles(mapping: ArrayMapping, used: float) -> str:
    """Write the number of tiles of weights: each goes through the array once for each chunk of rows."""
    whose = (
        "1 tile of weights, {} % of its"
        if mapping.passes == 1
        else f"{mapping.passes} tiles of weights, {{}} % of their"
    )
    return whose.format(f"{used:.1f}")
