"""Plots that are lists of bars: time by kind, layer and operation, memory by buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anytpu import units
from anytpu.planning.records import Buffer, Prediction
from anytpu.report.plan import phrases
from anytpu.report.plan.shapes import KIND_COLOURS, Box, Drawing, Label, Shape, shortened
from anytpu.report.plan.shares import kind_shares, kinds_of_layer, layer_shares

_WIDTH, _ROW, _TOP = 760.0, 26.0, 10.0
_NAMES, _SOURCES, _BARS, _END = 236.0, 356.0, 366.0, 612.0
_MOST = 20


@dataclasses.dataclass(frozen=True)
class Row:
    """A bar and what stands beside it.

    Attributes:
        name: left of it.
        source: between, the user's source line or what it is.
        share: right of it, which part of the whole it is, or "".
        amount: at the right edge.
        parts: (length, colour, opacity) of each of its pieces.
        title: what is said of it when it is pointed at.
    """

    name: str
    source: str
    share: str
    amount: str
    parts: tuple[tuple[float, str, float], ...]
    title: str = ""


def kinds(one: Prediction) -> Drawing | None:
    """Return the time by what it keeps busy."""
    rows = [
        Row(phrases.KIND_NAMES[kind], "", phrases.percent(share), phrases.seconds(time_s),
            ((time_s, KIND_COLOURS[kind], 1.0),))
        for kind, share, time_s in (kind_shares(one.time) if one.time else ())
    ]  # fmt: skip
    return _drawing("time_by_kind", "Time by what it keeps busy", rows)


def layers(one: Prediction) -> Drawing | None:
    """Return the time of the longest layers, each with what it keeps busy."""
    if one.time is None:
        return None
    time = one.time
    rows = [
        Row(layer, source, phrases.percent(share), phrases.seconds(time_s),
            tuple((part_s, KIND_COLOURS[kind], 1.0) for kind, part_s in kinds_of_layer(time, layer)))
        for layer, source, share, time_s in layer_shares(time)[:_MOST]
    ]  # fmt: skip
    return _drawing("time_by_layer", "Time by layer", rows)


def longest_ops(one: Prediction) -> Drawing | None:
    """Return the time of the longest operations."""
    total_s = sum(op.time_s for op in one.time_by_op) or 1.0
    rows = [
        Row(phrases.op_label(op), op.source,
            phrases.percent(op.time_s / total_s), phrases.seconds(op.time_s),
            ((op.time_s, KIND_COLOURS[op.kind], 1.0),), phrases.op_hover(op))
        for op in one.time_by_op[:_MOST]
    ]  # fmt: skip
    return _drawing("time_by_op", "Time by operation", rows)


def buffers(one: Prediction) -> Drawing | None:
    """Return the largest buffers; what padding adds is pale."""
    rows = [
        Row(buffer.name, buffer.source or phrases.USE_NAMES[buffer.use], "", units.format_bytes(buffer.bytes),
            _needed_and_padding(buffer),
            buffer.shape)
        for buffer in (one.memory.buffers[:_MOST] if one.memory else ())
    ]  # fmt: skip
    return _drawing("memory_by_buffer", "Memory by buffer; what padding adds is pale", rows)


def _needed_and_padding(buffer: Buffer) -> tuple[tuple[float, str, float], ...]:
    needed = min(buffer.logical_bytes, buffer.bytes)
    return (float(needed), "c0", 1.0), (float(buffer.bytes - needed), "c0", 0.35)


def _drawing(name: str, title: str, rows: Sequence[Row]) -> Drawing | None:
    if not rows:
        return None
    longest = max(sum(length for length, *_ in row.parts) for row in rows) or 1.0
    shapes = [shape for number, row in enumerate(rows) for shape in _row(row, _TOP + _ROW * number, longest)]
    summary = f"{rows[0].name}: {rows[0].amount}."
    return Drawing(name, title, summary, _WIDTH, _TOP * 2 + _ROW * len(rows), tuple(shapes))


def _row(row: Row, top: float, longest: float) -> list[Shape]:
    base, has_source = top + _ROW / 2 + 4, bool(row.source)
    room = _NAMES - 12 if has_source else _SOURCES - 20
    shapes: list[Shape] = [Label(12, base, shortened(phrases.one_line(row.name), room))]
    if has_source:
        shapes.append(Label(_NAMES + 8, base, shortened(row.source, _SOURCES - _NAMES - 14, 11), "start", "muted", 11))
    x = _BARS
    for length, colour, opacity in row.parts:
        width = max(length, 0.0) / longest * (_END - _BARS)
        shapes.append(Box(x, top + 5, width, _ROW - 10, colour, opacity, row.title or f"{row.name}: {row.amount}"))
        x += width
    amounts = [Label(_WIDTH - 84, base, row.share, "end", "muted"), Label(_WIDTH - 12, base, row.amount, "end")]
    return [*shapes, *(label for label in amounts if label.text)]
