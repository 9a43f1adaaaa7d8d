"""Every plot of a plan: those of all systems together, those of each, and the files that they are written to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from anytpu.planning.records import Plan, Prediction
from anytpu.report.plan import phrases, svg
from anytpu.report.plan.bars import buffers, kinds, layers, longest_ops
from anytpu.report.plan.cost_time import cost_time
from anytpu.report.plan.roofline import roofline
from anytpu.report.plan.shapes import Drawing, titled
from anytpu.report.plan.step_times import step_times
from anytpu.report.plan.sweep_plots import batch_memory, batch_speed, scaling_efficiency, scaling_time


def common_drawings(plan: Plan) -> list[Drawing]:
    """Return the plots that put systems, batches or slices beside each other, as far as the plan has numbers."""
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
    drawn = (kinds(one), layers(one), longest_ops(one), buffers(one), roofline(one))
    return [
        dataclasses.replace(
            drawing, name=f"{phrases.anchor(one)}_{drawing.name}", title=f"{one.target.name}: {drawing.title}"
        )
        for drawing in drawn
        if drawing is not None
    ]


def write_pictures(plan: Plan, folder: str | Path, form: Literal["svg", "png"]) -> list[Path]:
    """Write each plot into a folder, which is made where it is missing, and return their paths.

    Raises:
        OSError: they cannot be written there.
    """
    place = Path(folder)
    drawings = [*common_drawings(plan), *(drawing for one in plan.predictions for drawing in system_drawings(one))]
    paths = [place / f"{drawing.name}.{form}" for drawing in drawings]
    place.mkdir(parents=True, exist_ok=True)
    for drawing, path in zip(drawings, paths, strict=True):
        _write(titled(drawing), path, form)
    return paths


def _write(drawing: Drawing, path: Path, form: Literal["svg", "png"]) -> None:
    if form == "svg":
        path.write_text(svg.document(drawing), encoding="utf-8")
        return
    from anytpu.report.plan.png import paint

    paint(drawing, path)
