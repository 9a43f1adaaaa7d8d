"""The plots of a plan: the list of all, and the plots of one system.

The plots of a system are its time by kind, layer and operation, its memory by buffer, and its roofline.
"""

from __future__ import annotations

import dataclasses

from anytpu import units
from anytpu.planning.page import lists, phrases
from anytpu.planning.page.lists import KIND_COLOURS
from anytpu.planning.page.sweeps import batch_memory, batch_speed, scaling_efficiency, scaling_time
from anytpu.planning.page.system_plots import cost_time, step_times
from anytpu.planning.records import Plan, Prediction
from anytpu.report.drawing.axes import BOTTOM, HEIGHT, RIGHT, WIDTH, horizontal, vertical
from anytpu.report.drawing.roofline import Roof, RoofPoint, tick_text
from anytpu.report.drawing.rows import bars
from anytpu.report.drawing.shapes import Drawing, Label

_MAX_ROWS = 20
_MAX_OPS, _NAMED, _MAX_NAME = 40, 3, 22


def common_drawings(plan: Plan) -> list[Drawing]:
    """Return the plots that compare systems, batches or slices; predictions that are floors are left out."""
    plan = dataclasses.replace(
        plan,
        predictions=tuple(prediction for prediction in plan.predictions if not prediction.is_floor),
        sweep=tuple(prediction for prediction in plan.sweep if not prediction.is_floor),
    )
    drawn = (
        step_times(plan),
        cost_time(plan),
        batch_speed(plan),
        batch_memory(plan),
        scaling_time(plan),
        scaling_efficiency(plan),
    )
    return [drawing for drawing in drawn if drawing is not None]


def system_drawings(prediction: Prediction) -> list[Drawing]:
    """Return the plots of one system, named after it."""
    drawn = [*_bars(prediction), None if prediction.is_floor else roofline(prediction)]
    return [
        dataclasses.replace(
            drawing,
            name=f"{phrases.anchor(prediction)}_{drawing.name}",
            title=f"{prediction.target.name}: {drawing.title}",
        )
        for drawing in drawn
        if drawing is not None
    ]


def drawings(plan: Plan) -> list[Drawing]:
    """Return every plot of a plan."""
    return [
        *common_drawings(plan),
        *(drawing for prediction in plan.predictions for drawing in system_drawings(prediction)),
    ]


def _bars(prediction: Prediction) -> list[Drawing | None]:
    """Return the lists of a system as plots."""
    time, memory = prediction.time, prediction.memory
    plots = []
    if time is not None and not prediction.is_floor:
        plots = [
            ("time_by_kind", "Time by kind of operation", lists.kinds(time)),
            ("time_by_layer", "Time by layer", lists.layers(time)),
            ("time_by_op", "Time by operation", lists.operations(prediction.time_by_op)),
        ]
    if memory is not None:
        plots.append(("memory_by_buffer", "Memory by buffer; padding is pale", lists.buffers(memory)))
    return [bars(name, title, [row.to_bar() for row in rows[:_MAX_ROWS]]) for name, title, rows in plots]


def roofline(prediction: Prediction) -> Drawing | None:
    """Return the longest operations under the roof of their device; None if the roof or the operations are unknown."""
    ops = [op for op in prediction.time_by_op if op.flops > 0 and op.bytes > 0 and op.time_s > 0][:_MAX_OPS]
    if not ops or not prediction.peak_flops_per_s:
        return None
    peak, bandwidth = prediction.peak_flops_per_s, prediction.target.hbm_bytes_per_s
    rates = units.format_rate(peak, "FLOP"), units.format_rate(bandwidth, "B")
    roof = Roof(peak, peak / bandwidth, rates[0], ", ".join(rates), 4, 20)
    points = [
        RoofPoint(op.flops / op.bytes, op.flops / op.time_s, op.time_s, KIND_COLOURS[op.kind],
                  _shortened(op.layer or op.name), phrases.op_hover(op))
        for op in ops
    ]  # fmt: skip
    x, y = roof.scales(points)
    unseen = _unseen(prediction)
    shapes = [
        *horizontal(x, BOTTOM, tick_text, "FLOPs for each byte moved", roof.top),
        *vertical(y, roof.left, lambda rate: units.format_rate(rate, "FLOP").removesuffix("FLOP/s"), roof.right),
        Label(12, 14, "FLOP/s", colour="muted"),
        *([Label(RIGHT, 14, unseen, "end", "muted", 11.0)] if unseen else []),
        *roof.shapes(points, _NAMED),
    ]
    said = f"{phrases.plural(len(ops), 'operation')}; the roof is {rates[0]} and {rates[1]}"
    summary = f"{said}{f'; {unseen}' if unseen else ''}."
    return Drawing("roofline", "Operations under the roofline of a device", summary, WIDTH, HEIGHT, tuple(shapes))


def _unseen(prediction: Prediction) -> str:
    """Return a remark on operations without memory traffic, which have no position under the roof."""
    count = sum(op.flops > 0 and op.bytes == 0 and op.time_s > 0 for op in prediction.time_by_op)
    move = "moves nothing to memory is" if count == 1 else "move nothing to memory are"
    return f"{phrases.plural(count, 'operation')} that {move} not shown" if count else ""


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."
