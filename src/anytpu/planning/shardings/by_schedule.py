"""`calibrated`: the prediction of a layout from its schedule, by another layout that was compiled both ways.

Idea: a schedule is final in its fusions, collectives and memory, and takes a tenth of the work of a compilation. It has
no cycles, so each operation takes the time of its products or of its bytes. Layouts of one model share most operations.
So the ratio of both times of one layout holds for the others too.

Source: five layouts of a decoder that were compiled completely take 14 to 26 % longer than by their schedules, in the
same order.
"""

from __future__ import annotations

import dataclasses
import math

from anytpu.planning.costs.cost import cost_of
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import Prediction

OFF = 0.1
"""Assumed error of the ratio for another layout, as a logarithm: the five layouts above are within it."""


def calibrated(
    prediction: Prediction, scheduled: Prediction, compiled: Prediction, settings: PlanSettings
) -> Prediction:
    """Return the prediction of a layout from its schedule.

    Args:
        prediction: the prediction by its schedule; it fits.
        scheduled: the prediction of another layout by its schedule.
        compiled: the prediction of that other layout with cycles.
        settings: settings of every prediction.
    """
    assert prediction.time is not None and scheduled.time is not None and compiled.time is not None
    ratio = compiled.time.step_s / scheduled.time.step_s
    step_s = ratio * prediction.time.step_s
    low, high = (bound_s / compiled.time.step_s for bound_s in compiled.time.interval_s)
    # The interval of the compiled layout, wider by the error of the ratio.
    interval_s = (step_s * low * math.exp(-OFF), step_s * high * math.exp(OFF))
    cost = cost_of(
        prediction.target, step_s, prediction.batch_size, settings.examples, settings.epochs, settings.prices
    )
    note = f"Priced by its schedule, times {ratio:.2f}: so much longer the best layout takes with machine code."
    time = dataclasses.replace(prediction.time, step_s=step_s, interval_s=interval_s)
    return dataclasses.replace(prediction, time=time, cost=cost, notes=(*prediction.notes, note))
