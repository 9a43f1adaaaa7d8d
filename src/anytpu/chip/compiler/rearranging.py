"""Slices, concatenations and reshapes: a view where planes allow it, otherwise a copy.

Idea: Activate copies channels that start at a whole unit of 32 lanes. Other channels go through the array against a
selection tile: a 1 at the row of a channel's source and the column of its target. A sum of one number times 1, scaled
by 1, is that number.

Rule: rows are in position-major order. So a part of the height, or of a sequence's time, is a range of consecutive
rows. So is each position of a flatten.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.compiler.jobs import (
    Block,
    BlockResult,
    Feed,
    PlaneOperation,
    PlaneOperationsJob,
    ProductJob,
    storages_of,
)
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.compiler.planes import Layout, StoragePlane, channels_of, common_runs, structure_of
from anytpu.chip.compiler.tiles import numbers_of
from anytpu.chip.graph.nodes import Concatenate, Node, Reshape, Slice
from anytpu.chip.image.image import Tag
from anytpu.chip.isa.geometry import Window
from anytpu.chip.isa.registers import Register


@lower.register
def _(node: Slice, lowering: Lowering) -> None:
    source, shape = lowering.layouts[node.inputs[0]], lowering.network.shapes[node.inputs[0]]
    if node.axis == 2:
        view = channels_of(source, node.start, node.stop)
        if view is None:
            view = lowering.make(node.output, lowering.structure(node.output), _layer(node))
            arrange(source, node.start, view, lowering.rows(node.output), node, lowering)
        lowering.layouts[node.output] = view
    elif node.axis == 0 or shape[0] == 1:
        first = node.start * lowering.batch * (shape[1] if node.axis == 0 else 1)
        lowering.layouts[node.output] = tuple(plane.row(first) for plane in source)
    else:
        target = lowering.target(node.output, structure_of(source), _layer(node))
        width = lowering.network.shapes[node.output][1]
        window = Window.over(lowering.batch, shape[:2], width, pad=(0, -node.start))
        _copy_windows(source, target, [window] * len(source), lowering.rows(node.output), node, lowering)


@lower.register
def _(node: Concatenate, lowering: Lowering) -> None:
    if node.axis == 2 and node.output not in lowering.shared:
        lowering.layouts[node.output] = tuple(plane for name in node.inputs for plane in lowering.layouts[name])
        return
    if node.axis == 2:
        _share_rows(node, lowering)
        return
    target = lowering.layouts.get(node.output)
    if target is None:
        structure = structure_of(lowering.layouts[node.inputs[0]])
        target = lowering.target(node.output, structure, _layer(node))
    height, width, _ = lowering.network.shapes[node.output]
    lines = height if node.axis == 1 else 1
    first = 0
    for name in node.inputs:
        rows = lowering.rows(name) // lines
        for line in range(lines):
            source = tuple(plane.row(line * rows) for plane in lowering.layouts[name])
            part = tuple(plane.row(line * width * lowering.batch + first) for plane in target)
            if source != part:
                arrange(source, 0, part, rows, node, lowering)
        first += rows


def _share_rows(node: Concatenate, lowering: Lowering) -> None:
    """Copy the inputs into the same rows, except for those that were written there."""
    target = lowering.layouts.get(node.output)
    if target is None:
        target = lowering.target(node.output, lowering.structure(node.output), _layer(node))
    first = 0
    for name in node.inputs:
        part = channels_of(target, first, first + lowering.channels(name))
        assert part is not None  # the planes are cut where an input begins
        if part != lowering.layouts[name]:
            arrange(lowering.layouts[name], 0, part, lowering.rows(name), node, lowering)
        first += lowering.channels(name)


@lower.register
def _(node: Reshape, lowering: Lowering) -> None:
    source, batch = lowering.layouts[node.inputs[0]], lowering.batch
    old, new = (lowering.network.shapes[name] for name in (node.inputs[0], node.output))
    if old[2] == new[2]:
        lowering.layouts[node.output] = source
        return
    positions = old[0] * old[1]
    if new[0] * new[1] == 1:
        lowering.layouts[node.output] = _flat(source, positions, batch)
    elif new[2] % old[2] == 0:
        _gather_positions(node, new[2] // old[2], positions, lowering)
    else:
        flat = _flat(source, positions, batch)
        target = lowering.target(node.output, lowering.structure(node.output), _layer(node))
        for index in range(new[0] * new[1]):
            part = tuple(plane.row(index * batch) for plane in target)
            arrange(flat, index * new[2], part, batch, node, lowering)


def _flat(source: Layout, positions: int, batch: int) -> Layout:
    return tuple(plane.row(index * batch) for index in range(positions) for plane in source)


def _gather_positions(node: Reshape, count: int, positions: int, lowering: Lowering) -> None:
    """Merge every `count` positions into one: every count-th position of the source is a window of one tap."""
    source = lowering.layouts[node.inputs[0]]
    structure = structure_of(source) * count
    target = lowering.target(node.output, structure, _layer(node))
    windows = [
        Window.over(lowering.batch, (1, positions), positions // count, strides=(1, count), pad=(0, -index))
        for index in range(count)
        for _ in source
    ]
    _copy_windows(source * count, target, windows, lowering.rows(node.output), node, lowering)


def _copy_windows(
    source: Layout, target: Layout, windows: list[Window], rows: int, node: Node, lowering: Lowering
) -> None:
    quantization = lowering.quantization(node.output)
    wide = quantization.bits == 16
    limits = {Register.ZERO_POINT: quantization.zero_point, **_limits(quantization.bits)}
    steps = tuple(
        PlaneOperation("max", plane, other, rows, {**limits, **window.settings()}, None, 0, window, wide, wide)
        for plane, other, window in zip(source, target, windows, strict=True)
    )
    lowering.jobs.append(PlaneOperationsJob(_tag(node), storages_of([source]), storages_of([target]), steps))


def arrange(source: Layout, first: int, target: Layout, rows: int, node: Node, lowering: Lowering) -> None:
    """Copy channels of `source`, from channel `first` on, to all channels of `target`.

    Args:
        source, target: planes of as many bits.
        first: index of a channel of `source`.
        rows: number of rows of both.
        node: the node that needs the copy.
        lowering: takes the jobs.
    """
    wide = source[0].high > 0
    limits = _limits(16 if wide else 8)
    steps, blocks = [], []
    for plane in target:
        part = channels_of(source, first, first + plane.channels)
        if part is not None and len(part) == 1 and part[0].runs == plane.runs:
            steps.append(PlaneOperation("copy", part[0], plane, rows, limits, None, 0, None, wide, wide))
        else:
            blocks.append(_selection(source, first, plane, rows, lowering, wide=wide))
        first += plane.channels
    if steps:
        reads, writes = storages_of([[s.source] for s in steps]), storages_of([[s.target] for s in steps])
        lowering.jobs.append(PlaneOperationsJob(_tag(node), reads, writes, tuple(steps)))
    if blocks:
        reads = storages_of([[feed.plane for feed in block.feeds] for block in blocks])
        writes = storages_of([[result.target for result in block.results] for block in blocks])
        settings = {**limits, Register.OUT_ZERO_POINT: 0, Register.BATCH: lowering.batch}
        job = ProductJob(_tag(node), reads, writes, tuple(blocks), rows, settings, wide)
        lowering.jobs.append(job)


def _selection(source: Layout, first: int, target: StoragePlane, rows: int, lowering: Lowering, *, wide: bool) -> Block:
    """Return the product that copies channels from `first` on to the lanes of a plane."""
    array, design = lowering.design.array, lowering.design
    columns = numbers_of(target.runs, first, array)
    feeds, lanes, number = [], [], 0
    for plane in source:
        if number < first + target.channels and first < number + plane.channels:
            feeds.append(row_feed(plane, rows, lowering.batch))
            lanes.append(numbers_of(plane.runs, number, array))
        number += plane.channels
    chosen = np.stack(lanes)

    def tiles() -> np.ndarray:
        return ((chosen[:, :, None] == columns) & (columns >= 0)).astype(np.int8)

    def parameters() -> np.ndarray:
        return np.stack([np.zeros(array, "<i4"), np.ones(array, "<f4").view("<i4")])[None]

    minimum = min(int(chosen[chosen >= 0].min()), first)
    key = (np.where(chosen < 0, -1, chosen - minimum).tobytes(), np.where(columns < 0, -1, columns - minimum).tobytes())
    address = lowering.memory.reserve(("selection", key), len(feeds), design.tile_blocks, tiles)
    block = lowering.memory.reserve("ones", 1, design.parameter_blocks, parameters)
    return Block((BlockResult(target, {}, wide, False),), tuple(feeds), address, block)


def row_feed(plane: StoragePlane, rows: int, batch: int) -> Feed:
    """Return the feed that sends a plane through the array row by row."""
    if plane.shift == 0:
        return Feed(plane)
    # A shifted row starts after other lanes, and the lanes after it belong to the next row: take only its own lanes.
    positions = rows // batch
    return Feed(plane, window=Window.over(batch, (1, positions), positions))


def compacted(tensor: str, node: Node, lowering: Lowering) -> Layout:
    """Return a copy of a tensor in one storage, as compact planes for the host."""
    source = lowering.layouts[tensor]
    target = lowering.make(tensor, common_runs([source]), _layer(node))
    arrange(source, 0, target, lowering.rows(tensor), node, lowering)
    return target


def _limits(bits: int) -> dict[Register, int | float]:
    return {Register.LOW: -(2 ** (bits - 1)), Register.HIGH: 2 ** (bits - 1) - 1}


def _tag(node: Node) -> Tag:
    return Tag(node.name, node.layer, "copy")


def _layer(node: Node) -> str:
    return node.layer or node.name
