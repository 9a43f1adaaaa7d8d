"""The list of a plan's plots: comparisons of systems, and plots of each system."""

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
    every = (kinds(prediction), layers(prediction), longest_ops(prediction), buffers(prediction), roofline(prediction))
    drawn = every if not prediction.is_floor else (buffers(prediction),)
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
