"""Bar plots of a prediction: time by kind, layer and operation, memory by buffer."""

from __future__ import annotations

from anytpu import units
from anytpu.planning.records import Buffer, Prediction
from anytpu.report.drawing.rows import Row, bars
from anytpu.report.drawing.shapes import Drawing
from anytpu.report.plan import phrases
from anytpu.report.plan.colours import KIND_COLOURS
from anytpu.report.plan.shares import kind_shares, kinds_of_layer, layer_shares

_WIDTH, _ROW, _TOP = 760.0, 26.0, 10.0
_NAMES, _SOURCES, _BARS, _END = 236.0, 356.0, 366.0, 612.0
_MAX_ROWS = 20


def kinds(prediction: Prediction) -> Drawing | None:
    """Return the time by kind of operation."""
    rows = [
        Row(phrases.KIND_NAMES[kind], "", phrases.percent(share), phrases.seconds(time_s),
            ((time_s, KIND_COLOURS[kind], 1.0),))
        for kind, share, time_s in (kind_shares(prediction.time) if prediction.time else ())
    ]  # fmt: skip
    return bars("time_by_kind", "Time by kind of operation", rows)


def layers(prediction: Prediction) -> Drawing | None:
    """Return the time of the longest layers, each by kind of operation."""
    if prediction.time is None:
        return None
    time = prediction.time
    rows = [
        Row(layer, source, phrases.percent(share), phrases.seconds(time_s),
            tuple((part_s, KIND_COLOURS[kind], 1.0) for kind, part_s in kinds_of_layer(time, layer)))
        for layer, source, share, time_s in layer_shares(time)[:_MAX_ROWS]
    ]  # fmt: skip
    return bars("time_by_layer", "Time by layer", rows)


def longest_ops(prediction: Prediction) -> Drawing | None:
    """Return the time of the longest operations."""
    total_s = sum(op.time_s for op in prediction.time_by_op) or 1.0
    rows = [
        Row(phrases.op_label(op), op.source,
            phrases.percent(op.time_s / total_s), phrases.seconds(op.time_s),
            ((op.time_s, KIND_COLOURS[op.kind], 1.0),), phrases.op_hover(op))
        for op in prediction.time_by_op[:_MAX_ROWS]
    ]  # fmt: skip
    return bars("time_by_op", "Time by operation", rows)


def buffers(prediction: Prediction) -> Drawing | None:
    """Return the largest buffers, with their padding in a pale colour."""
    rows = [
        Row(buffer.name, buffer.source or phrases.USE_NAMES[buffer.use], "", units.format_bytes(buffer.bytes),
            _needed_and_padding(buffer),
            buffer.shape)
        for buffer in (prediction.memory.buffers[:_MAX_ROWS] if prediction.memory else ())
    ]  # fmt: skip
    return bars("memory_by_buffer", "Memory by buffer; padding is pale", rows)


def _needed_and_padding(buffer: Buffer) -> tuple[tuple[float, str, float], ...]:
    needed = min(buffer.logical_bytes, buffer.bytes)
    return (float(needed), "c0", 1.0), (float(buffer.bytes - needed), "c0", 0.35)
