"""Convolutions and dense layers: their mapping to the array: planes, taps per pass, and tiles of weights.

Idea: a convolution maps channels to the array's rows and outputs to its columns, and takes one pass for each tap of the
kernel ("native"). If there are few channels, several taps side by side fill the rows ("packed"). The result of a
flatten is an image whose positions are the taps.

Source: Jouppi et al. 2017, section 9 ("for low C/M, a number of techniques reduce passes").
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from anytpu.chip.compiler.jobs import Block, BlockResult, Feed, ProductJob, storages_of
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.compiler.planes import Layout, StoragePlane, stacks
from anytpu.chip.compiler.results import NodeResult, result_of
from anytpu.chip.compiler.tiles import folded_bias, numbers_of, parameters_of, rows_of, tiles_of
from anytpu.chip.graph.arithmetic import convolution_multipliers
from anytpu.chip.graph.nodes import Convolution
from anytpu.chip.image.image import Tag
from anytpu.chip.isa.geometry import Window
from anytpu.chip.isa.registers import Register

_MAX_TAPS = 65535  # The maximum of register KERNEL_WIDTH.


Mapping = tuple[tuple[Feed, ...], ...]
"""One mapping of a convolution to the array: the feeds that each block of outputs sums."""


class _Piece(NamedTuple):
    """A plane of the result of a convolution, and the columns of the array that make it.

    Attributes:
        node: the convolution.
        result: its result.
        plane: the plane.
        first: the output channel of its first lane.
        lane: its first column.
    """

    node: Convolution
    result: NodeResult
    plane: StoragePlane
    first: int
    lane: int = 0

    def columns(self, array: int) -> np.ndarray:
        """Return the output of each column of the array, -1 where another piece or nothing is made."""
        columns = np.full(array, -1, np.int64)
        columns[self.lane : self.lane + self.plane.span] = numbers_of(self.plane.runs, self.first, self.plane.span)
        return columns


@lower.register
def _(node: Convolution, lowering: Lowering) -> None:
    if node.output in lowering.joined:
        return  # made with the convolution before it
    nodes = (node, *lowering.joints.get(node.output, ()))
    source, window = lowering.layouts[node.inputs[0]], _window(node, lowering)
    pieces = [piece for one in nodes for piece in _pieces(one, lowering)]
    columns = _side_by_side(pieces, lowering.design.array) if len(nodes) > 1 else [(piece,) for piece in pieces]
    rows = lowering.rows(pieces[0].result.tensor)
    mappings = {name: _way(columns, source, window, lowering, name == "packed") for name in ("native", "packed")}
    wide = lowering.quantization(node.inputs[0]).bits == 16
    costs = {name: _cost_cycles(mapping, rows, wide, lowering) for name, mapping in mappings.items()}
    chosen = min(costs, key=lambda name: costs[name])
    blocks = tuple(_block(pieces, feeds, lowering) for pieces, feeds in zip(columns, mappings[chosen], strict=True))
    zero_point = lowering.quantization(node.inputs[0]).zero_point
    tag = _tag(nodes, pieces, mappings, chosen, lowering)
    job = ProductJob(
        tag,
        storages_of([source]),
        storages_of([[piece.plane for piece in pieces]]),
        blocks,
        rows,
        {**pieces[0].result.settings, Register.ZERO_POINT: zero_point, **window.settings()},
        wide,
    )
    lowering.jobs.append(job)


def _pieces(node: Convolution, lowering: Lowering) -> Iterator[_Piece]:
    result = result_of(node, lowering, *node.bounds)
    structure, first = lowering.structure(result.tensor), 0
    for plane in lowering.target(result.tensor, structure, node.layer or node.name, adaptable=True):
        yield _Piece(node, result, plane, first)
        first += plane.channels


def _side_by_side(pieces: Sequence[_Piece], array: int) -> list[tuple[_Piece, ...]]:
    """Give each piece columns of the first block of outputs that has as many left."""
    blocks: list[list[_Piece]] = []
    for piece in pieces:
        for block in blocks:
            lane = block[-1].lane + block[-1].plane.span
            if lane + piece.plane.span <= array:
                block.append(piece._replace(lane=lane))
                break
        else:
            blocks.append([piece])
    return [tuple(block) for block in blocks]


def _window(node: Convolution, lowering: Lowering) -> Window:
    source, target = lowering.network.shapes[node.inputs[0]], lowering.network.shapes[node.output]
    pad = node.padding[0][0], node.padding[1][0]
    kernel = node.weights.shape[0], node.weights.shape[1]
    return Window.over(lowering.batch, source[:2], target[1], kernel, node.strides, node.dilation, pad)


def _passes(mapping: Mapping) -> int:
    """Return the tiles for each chunk of rows."""
    return sum(feed.passes for block in mapping for feed in block)


def _way(
    columns: Sequence[tuple[_Piece, ...]], source: Layout, window: Window, lowering: Lowering, packed: bool
) -> Mapping:
    node = columns[0][0].node
    feeds = _feeds(node, source, window, lowering, packed)
    depth, width = node.weights.shape[2], node.weights.shape[3] // node.groups
    blocks = []
    for pieces in columns:
        first, plane = pieces[0].first, pieces[0].plane  # with several groups, the only piece
        low, high = first // width, (first + plane.channels - 1) // width
        met = [feed for feed in feeds if feed.channels[0] // depth <= high and low <= feed.channels[1] // depth]
        blocks.append(tuple(met if node.groups > 1 else feeds))
    return tuple(blocks)


def _feeds(node: Convolution, source: Layout, window: Window, lowering: Lowering, packed: bool) -> list[Feed]:
    array, depth = lowering.design.array, lowering.channels(node.inputs[0])
    feeds, first = [], 0
    if window.is_plain and packed and window.in_height == window.in_width == 1 and node.groups == 1:
        for stack in stacks(source, lowering.batch, _MAX_TAPS):
            feeds.append(_of_stack(stack, first, array, lowering.batch))
            first += len(stack) * stack[0].channels
        return feeds
    for plane in source:
        if window.is_plain and plane.shift == 0:
            feeds.append(Feed(plane, first, depth))
        else:
            feeds.append(Feed(plane, first, depth, max(1, array // plane.span) if packed else 1, window))
        first += plane.channels
    return feeds


def _of_stack(stack: list[StoragePlane], first: int, array: int, batch: int) -> Feed:
    plane, count = stack[0], len(stack)
    if count == 1 and plane.shift == 0:
        return Feed(plane, first)
    window = Window.over(batch, (1, count), 1, (1, count))
    return Feed(plane, first, plane.channels, max(1, array // plane.span), window)


def _cost_cycles(mapping: Mapping, rows: int, wide: bool, lowering: Lowering) -> float:
    """Return an estimate of the cycles: each pass streams its rows while the next tile is shifted in and fetched."""
    design = lowering.design
    chunks = math.ceil(rows / max(1, design.accumulator_rows // 2))
    return _passes(mapping) * chunks * max(rows / chunks * (1 + wide), design.array, design.tile_cycles)


def _block(pieces: tuple[_Piece, ...], feeds: tuple[Feed, ...], lowering: Lowering) -> Block:
    """Return a block of outputs, with its tiles and parameters in the Weight Memory."""
    design, memory, array = lowering.design, lowering.memory, lowering.design.array

    def tiles() -> np.ndarray:
        rows = np.concatenate([rows_of(feed, array) for feed in feeds])
        made = [tiles_of(one.node.weights, one.node.groups, rows, one.columns(array)) for one in pieces]
        return functools.reduce(np.bitwise_or, made)  # in columns of their own

    def parameters() -> np.ndarray:
        return functools.reduce(np.bitwise_or, [_parameters(piece, lowering) for piece in pieces])

    keys = [(memory.identity(one.node.weights), one.first, one.plane.runs, one.lane) for one in pieces]
    address = memory.reserve(
        ("tiles", *keys, pieces[0].node.groups, tuple(feed.key for feed in feeds)),
        sum(feed.passes for feed in feeds),
        design.tile_blocks,
        tiles,
    )
    source = lowering.quantization(pieces[0].node.inputs[0])
    more = [
        (memory.identity(node.weight_scales), memory.identity(node.bias), lowering.quantization(node.output).scale)
        for node, *_ in pieces
    ]
    block = memory.reserve(("parameters", *keys, *more, source), 1, design.parameter_blocks, parameters)
    results = tuple(
        BlockResult(one.plane, one.result.settings, one.result.wide, one.result.table, one.lane) for one in pieces
    )
    return Block(results, feeds, address, block)


def _parameters(piece: _Piece, lowering: Lowering) -> np.ndarray:
    node = piece.node
    source, target = lowering.quantization(node.inputs[0]), lowering.quantization(node.output)
    own = slice(piece.first, piece.first + piece.plane.channels)
    multipliers = convolution_multipliers(source, node.weight_scales[own], target)
    bias = folded_bias(node.weights[..., own], node.bias[own], source.zero_point)
    columns = piece.columns(lowering.design.array)
    return parameters_of(bias, multipliers, np.where(columns < 0, -1, columns - piece.first))


def _tag(
    nodes: Sequence[Convolution],
    pieces: Sequence[_Piece],
    mappings: dict[str, Mapping],
    chosen: str,
    lowering: Lowering,
) -> Tag:
    node = nodes[0]
    height, width, _ = lowering.network.shapes[node.output]
    cells = sum(math.prod(one.weights.shape) for one in nodes)
    capacity = lowering.design.array**2
    # A dense layer after a flatten is a convolution whose kernel is as large as the image.
    is_dense = (height, width) == (1, 1) and node.groups == 1 and not any(map(any, node.padding))
    is_dense = is_dense and node.weights.shape[:2] == lowering.network.shapes[node.inputs[0]][:2]
    parts = [
        f"{name}: {_tiles(mapping, 100 * cells / (_passes(mapping) * capacity))} cells used"
        for name, mapping in sorted(mappings.items(), key=lambda item: item[0] != chosen)
    ]
    note = parts[0] if _passes(mappings["native"]) == _passes(mappings["packed"]) else f"{parts[0]} ({parts[1]})"
    kinds = ["dense" if is_dense else "convolution", *(piece.result.kind for piece in pieces if piece.result.kind)]
    macs = cells * height * width * lowering.batch
    return Tag(node.name, node.layer, " + ".join(dict.fromkeys(kinds)), macs, note)


def _tiles(mapping: Mapping, used: float) -> str:
    """Write the number of tiles of weights: each goes through the array once for each chunk of rows."""
    passes = _passes(mapping)
    count, whose = ("1 tile", "its") if passes == 1 else (f"{passes} tiles", "their")
    return f"{count} of weights, {used:.1f} % of {whose}"
