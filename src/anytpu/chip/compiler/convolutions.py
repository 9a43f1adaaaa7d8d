"""Convolutions and dense layers: their mapping to the array: planes, taps per pass, and tiles of weights.

Idea: a convolution maps channels to the array's rows and outputs to its columns, and takes one pass for each tap of the
kernel ("native"). If there are few channels, several taps side by side fill the rows ("packed"). The result of a
flatten is an image whose positions are the taps.

Source: Jouppi et al. 2017, section 9 ("for low C/M, a number of techniques reduce passes").
"""

from __future__ import annotations

import math

import numpy as np

from anytpu.chip.compiler.jobs import Block, Feed, ProductJob, WindowGeometry, storages_of
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.compiler.planes import Layout, StoragePlane, stacks
from anytpu.chip.compiler.results import NodeResult, result_of
from anytpu.chip.compiler.tiles import folded_bias, numbers_of, parameters_of, rows_of, tiles_of
from anytpu.chip.graph.arithmetic import convolution_multipliers
from anytpu.chip.graph.nodes import Convolution
from anytpu.chip.image.image import Tag
from anytpu.chip.isa.registers import Register

_MAX_TAPS = 65535  # The maximum of register KERNEL_WIDTH.


Mapping = tuple[tuple[Feed, ...], ...]
"""One mapping of a convolution to the array: the feeds that each block of outputs sums."""


@lower.register
def _(node: Convolution, lowering: Lowering) -> None:
    result = result_of(node, lowering, *node.bounds)
    source = lowering.layouts[node.inputs[0]]
    structure = lowering.structure(result.tensor)
    target = lowering.target(result.tensor, structure, node.layer or node.name, adaptable=True)
    rows = lowering.rows(result.tensor)
    window = _window(node, lowering)
    mappings = {name: _way(node, source, target, window, lowering, name == "packed") for name in ("native", "packed")}
    wide = lowering.quantization(node.inputs[0]).bits == 16
    costs = {name: _cost_cycles(mapping, rows, wide, lowering) for name, mapping in mappings.items()}
    chosen = min(costs, key=lambda name: costs[name])
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


def _window(node: Convolution, lowering: Lowering) -> WindowGeometry:
    source, target = lowering.network.shapes[node.inputs[0]], lowering.network.shapes[node.output]
    pad = node.padding[0][0], node.padding[1][0]
    kernel = node.weights.shape[0], node.weights.shape[1]
    return WindowGeometry(source[:2], target[:2], kernel, node.strides, node.dilation, pad)


def _passes(mapping: Mapping) -> int:
    """Return the tiles for each chunk of rows."""
    return sum(feed.passes for block in mapping for feed in block)


def _way(
    node: Convolution, source: Layout, target: Layout, window: WindowGeometry, lowering: Lowering, packed: bool
) -> Mapping:
    feeds = _feeds(node, source, window, lowering, packed)
    depth, width = node.weights.shape[2], node.weights.shape[3] // node.groups
    blocks, first = [], 0
    for plane in target:
        low, high = first // width, (first + plane.channels - 1) // width
        first += plane.channels
        blocks.append(tuple(f for f in feeds if f.channels[0] // depth <= high and low <= f.channels[1] // depth))
    return tuple(blocks)


def _feeds(node: Convolution, source: Layout, window: WindowGeometry, lowering: Lowering, packed: bool) -> list[Feed]:
    array, depth = lowering.design.array, lowering.channels(node.inputs[0])
    feeds, first = [], 0
    if window.is_plain and packed and window.target == (1, 1) and node.groups == 1:
        for stack in stacks(source, lowering.batch, _MAX_TAPS):
            feeds.append(_of_stack(stack, first, array))
            first += len(stack) * stack[0].channels
        return feeds
    for plane in source:
        if window.is_plain and plane.shift == 0:
            feeds.append(Feed(plane, first, depth))
        else:
            feeds.append(Feed(plane, first, depth, max(1, array // plane.span) if packed else 1, window))
        first += plane.channels
    return feeds


def _of_stack(stack: list[StoragePlane], first: int, array: int) -> Feed:
    plane, count = stack[0], len(stack)
    if count == 1 and plane.shift == 0:
        return Feed(plane, first)
    window = WindowGeometry((1, count), (1, 1), (1, count))
    return Feed(plane, first, plane.channels, max(1, array // plane.span), window)


def _cost_cycles(mapping: Mapping, rows: int, wide: bool, lowering: Lowering) -> float:
    """Return an estimate of the cycles: each pass streams its rows while the next tile is shifted in and fetched."""
    design = lowering.design
    chunks = math.ceil(rows / max(1, design.accumulator_rows // 2))
    return _passes(mapping) * chunks * max(rows / chunks * (1 + wide), design.array, design.tile_cycles)


def _output_blocks(node: Convolution, target: Layout, mapping: Mapping, lowering: Lowering) -> tuple[Block, ...]:
    design, memory, array = lowering.design, lowering.memory, lowering.design.array
    source, result = lowering.quantization(node.inputs[0]), lowering.quantization(node.output)
    weights, scales, bias = (memory.identity(tensor) for tensor in (node.weights, node.weight_scales, node.bias))

    def tiles(feeds: tuple[Feed, ...], columns):
        rows = np.concatenate([rows_of(feed, array) for feed in feeds])
        return tiles_of(node.weights, node.groups, rows, columns)

    def parameters(columns):
        multipliers = convolution_multipliers(source, node.weight_scales, result)
        return parameters_of(folded_bias(node.weights, node.bias, source.zero_point), multipliers, columns)

    made, first = [], 0
    for plane, feeds in zip(target, mapping, strict=True):
        columns = numbers_of(plane.runs, first, array)
        place = (first, plane.runs)
        address = memory.reserve(
            ("tiles", weights, node.groups, place, tuple(feed.key for feed in feeds)),
            sum(feed.passes for feed in feeds),
            design.tile_blocks,
            lambda feeds=feeds, columns=columns: tiles(feeds, columns),
        )
        block = memory.reserve(
            ("parameters", weights, scales, bias, place, source, result.scale),
            1,
            design.parameter_blocks,
            lambda columns=columns: parameters(columns),
        )
        made.append(Block(plane, feeds, address, block))
        first += plane.channels
    return tuple(made)


def _tag(node: Convolution, result: NodeResult, mappings: dict[str, Mapping], chosen: str, lowering: Lowering) -> Tag:
    height, width, _ = lowering.network.shapes[node.output]
    cells = math.prod(node.weights.shape)
    capacity = lowering.design.array**2
    # A dense layer after a flatten is a convolution whose kernel is as large as the image.
    is_dense = (height, width) == (1, 1) and node.groups == 1 and not any(map(any, node.padding))
    is_dense = is_dense and node.weights.shape[:2] == lowering.network.shapes[node.inputs[0]][:2]
    parts = [
        f"{name}: {_tiles(mapping, 100 * cells / (_passes(mapping) * capacity))} cells used"
        for name, mapping in sorted(mappings.items(), key=lambda item: item[0] != chosen)
    ]
    note = parts[0] if _passes(mappings["native"]) == _passes(mappings["packed"]) else f"{parts[0]} ({parts[1]})"
    name = "dense" if is_dense else "convolution"
    macs = cells * height * width * lowering.batch
    return Tag(node.name, node.layer, result.named(name), macs, note)


def _tiles(mapping: Mapping, used: float) -> str:
    """Write the number of tiles of weights: each goes through the array once for each chunk of rows."""
    passes = _passes(mapping)
    count, whose = ("1 tile", "its") if passes == 1 else (f"{passes} tiles", "their")
    return f"{count} of weights, {used:.1f} % of {whose}"
