"""`with_holding`: the slices that would hold a step that does not fit, each with its minimum time and cost."""

from __future__ import annotations

import dataclasses

from anytpu.errors import AnyTPUError
from anytpu.planning.advice import MemoryLine, slices_that_hold
from anytpu.planning.floor import least_step_s, work_of
from anytpu.planning.records import Prediction
from anytpu.planning.target import Target
from anytpu.planning.wish import Wish
from anytpu.program.program import Program
from anytpu.units import format_bytes


def with_holding(program: Program, prediction: Prediction, line: MemoryLine | None, wish: Wish) -> Prediction:
    """Return a prediction with the slices that would hold the step, or with a note that none would.

    Args:
        program: the program.
        prediction: a prediction that does not fit.
        line: its memory as a function of the batch, or None.
        wish: settings of every prediction; its prices are the user's.
    """
    is_placed = program.placement is not None
    try:
        work = work_of(program)
    except AnyTPUError:
        work = None

    def least_s(target: Target) -> float | None:
        return least_step_s(work, target) if work is not None else None

    holding = slices_that_hold(prediction, line, wish.prices, least_s, is_placed=is_placed)
    if holding or line is None or is_placed:
        return dataclasses.replace(prediction, holding=holding)
    stays = (
        f"No slice would hold it as it is: about {format_bytes(line.fixed_bytes)} of a device's memory do not shrink "
        'when more devices share the batch. Split the state over them: "Layouts of your own" in docs/plan.md.'
    )
    return dataclasses.replace(prediction, notes=(*prediction.notes, stays))
