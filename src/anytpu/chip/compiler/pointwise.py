"""Nodes that Activate executes without products, plane by plane: pools, arithmetic of two tensors, tables.

Idea: consecutive planes of the same structure (the positions of a flatten) are one plane of more rows.

Rule: an elementwise operation needs two tensors whose channels are cut at the same channels. If they are not, both are
viewed in smaller parts.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.compiler.jobs import PlaneOperation, PlaneOperationsJob, storages_of
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.compiler.planes import Layout, StoragePlane, common_runs, split, stacks, structure_of
from anytpu.chip.compiler.rearranging import arrange
from anytpu.chip.compiler.results import result_of
from anytpu.chip.graph.arithmetic import average_multipliers
from anytpu.chip.graph.nodes import Elementwise, Node, Pool, Quantization, Table
from anytpu.chip.image.image import Tag
from anytpu.chip.isa.geometry import Window
from anytpu.chip.isa.registers import Register


@lower.register
def _(node: Pool, lowering: Lowering) -> None:
    result = result_of(node, lowering)
    source = lowering.layouts[node.inputs[0]]
    target = lowering.target(result.tensor, structure_of(source), node.layer or node.name)
    inside, outside = lowering.quantization(node.inputs[0]), lowering.quantization(node.output)
    shapes = lowering.network.shapes
    pad = node.padding[0][0], node.padding[1][0]
    source_size, width = shapes[node.inputs[0]][:2], shapes[node.output][1]
    window = Window.over(lowering.batch, source_size, width, node.window, node.strides, pad=pad)
    settings = {**result.settings, **_scales(node, inside, outside), **window.settings()}
    counted = node.kind == "average" and not node.counts_padding
    steps = [
        PlaneOperation(node.kind, plane, other, lowering.rows(result.tensor), settings, None, 0, window,
             inside.bits == 16, result.wide, result.table, counted)
        for plane, other in zip(source, target, strict=True)
    ]  # fmt: skip
    _add(node, result.named(f"{node.kind} pool"), steps, lowering)


def _scales(node: Pool, source: Quantization, target: Quantization) -> dict[Register, int | float]:
    if node.kind == "max":
        return {Register.ZERO_POINT: source.zero_point}
    if not node.counts_padding:
        return {
            Register.ZERO_POINT: source.zero_point,
            Register.SCALE: _single(source),
            Register.OUT_SCALE: _single(target),
        }
    multiplier = average_multipliers(source, np.array([node.window[0] * node.window[1]]), target)[0]
    return {Register.ZERO_POINT: source.zero_point, Register.SCALE: float(multiplier)}


def _single(quantization: Quantization) -> float:
    return float(np.float32(quantization.scale))


@lower.register
def _(node: Elementwise, lowering: Lowering) -> None:
    result = result_of(node, lowering, *node.bounds)
    sources = _alike(node, lowering)
    target = lowering.target(result.tensor, structure_of(sources[0]), node.layer or node.name)
    first, second = (lowering.quantization(name) for name in node.inputs)
    settings = {
        **result.settings,
        Register.ZERO_POINT: first.zero_point,
        Register.SCALE: _single(first),
        Register.SECOND_ZERO_POINT: second.zero_point,
        Register.SECOND_SCALE: _single(second),
        Register.OUT_SCALE: _single(lowering.quantization(node.output)),
    }
    rows = [lowering.rows(name) for name in node.inputs]
    steps = [
        PlaneOperation(node.kind, a, out, count * rows[0], settings, b, count * rows[1], None,
             max(first.bits, second.bits) == 16, result.wide, result.table)
        for (a, b, out), count in _stacked((*sources, target), (*rows, rows[0]))
    ]  # fmt: skip
    _add(node, result.named(node.kind), steps, lowering)


@lower.register
def _(node: Table, lowering: Lowering) -> None:
    if node.inputs[0] in lowering.fused:
        return
    source = lowering.layouts[node.inputs[0]]
    inside, outside = (lowering.quantization(name) for name in (node.inputs[0], node.output))
    wide = 16 in (inside.bits, outside.bits)
    if wide and outside.bits == 8:
        # A table of 16 bits gives 16 bits. The high bytes only repeat the sign: the low bytes are the result.
        target = lowering.make(node.output, structure_of(source), node.layer or node.name, bits=16)
        lowering.layouts[node.output] = tuple(dataclasses.replace(plane, high=0) for plane in target)
    else:
        target = lowering.target(node.output, structure_of(source), node.layer or node.name)
    slot = lowering.tables.slot(node.table, wide, node.layer or node.name)
    settings = {Register.LOW: inside.low, Register.HIGH: inside.high, Register.TABLE: slot}
    rows = lowering.rows(node.output)
    steps = [
        PlaneOperation("copy", plane, out, count * rows, settings, None, 0, None, inside.bits == 16, wide, True)
        for (plane, out), count in _stacked((source, target), (rows, rows))
    ]
    _add(node, node.kind, steps, lowering)


def _alike(node: Node, lowering: Lowering) -> list[Layout]:
    """Return the inputs of a node as planes of the same runs."""
    bits = [lowering.quantization(name).bits for name in node.inputs]
    layouts = [
        layout if own == max(bits) else _widened(name, node, lowering)
        for name, layout, own in zip(node.inputs, lowering.inputs(node), bits, strict=True)
    ]
    if len({structure_of(layout) for layout in layouts}) == 1:
        return layouts
    structure = common_runs(layouts)
    parts = []
    for name, layout in zip(node.inputs, layouts, strict=True):
        part = split(layout, structure)
        if part is None:
            part = lowering.make(name, structure, node.layer or node.name, max(bits))
            arrange(layout, 0, part, lowering.rows(name), node, lowering)
        parts.append(part)
    return parts


def _widened(tensor: str, node: Node, lowering: Lowering) -> Layout:
    """Return a 16-bit copy of an 8-bit tensor."""
    source, own = lowering.layouts[tensor], lowering.quantization(tensor)
    target = lowering.make(tensor, structure_of(source), node.layer or node.name, bits=16)
    rows, settings = lowering.rows(tensor), {Register.LOW: own.low, Register.HIGH: own.high}
    steps = [
        PlaneOperation("copy", plane, out, rows, settings, wide_out=True)
        for plane, out in zip(source, target, strict=True)
    ]
    _add(node, "copy", steps, lowering)
    return target


def _stacked(layouts: tuple[Layout, ...], rows: tuple[int, ...]) -> list[tuple[tuple[StoragePlane, ...], int]]:
    """Return matching planes of the layouts, with the number of planes that are stacked in all of the layouts."""
    if len(set(rows)) > 1:  # One of them is broadcast over the positions, so planes cannot be stacked.
        return [(planes, 1) for planes in zip(*layouts, strict=True)]
    groups, first = [], 0
    lengths = [
        [(index, len(stack)) for stack in stacks(layout, count) for index in range(len(stack))]
        for layout, count in zip(layouts, rows, strict=True)
    ]
    while first < len(layouts[0]):
        # A stack may start in the middle of another tensor's stack; take the shortest remaining stack.
        count = min(length[first][1] - length[first][0] for length in lengths)
        groups.append((tuple(layout[first] for layout in layouts), count))
        first += count
    return groups


def _add(node: Node, kind: str, steps: list[PlaneOperation], lowering: Lowering) -> None:
    layouts = [(step.source, *([step.second] if step.second else ())) for step in steps]
    tag = Tag(node.name, node.layer, kind)
    reads, writes = storages_of(layouts), storages_of([(step.target,) for step in steps])
    lowering.jobs.append(PlaneOperationsJob(tag, reads, writes, tuple(steps)))
