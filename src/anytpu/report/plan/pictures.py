"""Every plot of a plan: those of all systems together, those of each, and the files that they are written to."""

from __future__ import annotations

import dataclasses

from anytpu.planning.records import Plan, Prediction
from anytpu.report.drawing.shapes import Drawing
from anytpu.report.plan import phrases
from anytpu.report.plan.bars import buffers, kinds, layers, longest_ops
from anytpu.report.plan.cost_time import cost_time
from anytpu.report.plan.roofline import roofline
from anytpu.report.plan.step_times import step_times
from anytpu.report.plan.sweep_plots import batch_memory, batch_speed, scaling_efficiency, scaling_time


def common_drawings(plan: Plan) -> list[Drawing]:
    """Return the plots that put systems, batches or slices beside each other; a floor compares with nothing."""
    plan = dataclasses.replace(
        plan,
        predictions=tuple(one for one in plan.predictions if not one.is_floor),
        sweep=tuple(one for one in plan.sweep if not one.is_floor),
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


def system_drawings(one: Prediction) -> list[Drawing]:
    """Return the plots of one system, with its name in theirs."""
    every = (kinds(one), layers(one), longest_ops(one), buffers(one), roofline(one))
    drawn = every if not one.is_floor else (buffers(one),)
    return [
        dataclasses.replace(
            drawing, name=f"{phrases.anchor(one)}_{drawing.name}", title=f"{one.target.name}: {drawing.title}"
        )
        for drawing in drawn
        if drawing is not None
    ]


def drawings(plan: Plan) -> list[Drawing]:
    """Return every plot of a plan."""
    return [*common_drawings(plan), *(drawing for one in plan.predictions for drawing in system_drawings(one))]
