"""`SearchedJob`: the prediction of a step in a layout; of a deep model from two shallow ones.

Idea: a search compiles many layouts. A model of many equal blocks of layers takes minutes each time, and two models
with few of its blocks take a fraction. Arrays of the shallow models have the names of the deep one, so its layout fits
them.

Rule: such a prediction says that it is extrapolated, and from which depths. A plan of the chosen layout compiles all
blocks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from anytpu.errors import ProgramError
from anytpu.planning.forecasts.extrapolation import extrapolate_programs
from anytpu.planning.forecasts.forecast import completed, predict
from anytpu.planning.jobs.job import PlanJob
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import Prediction
from anytpu.planning.records.target import Target
from anytpu.program.lowering import TRACING
from anytpu.program.program import Placement, Program, state_names
from anytpu.sharding import ModelLayout, TracedStep, place, trace_step
from anytpu.sharding.placing import specs_of
from anytpu.sharding.searched import searched_layout

DEEP = 24
"""Minimum number of equal layers with which a search compiles two shallow models. Of 12 layers a schedule takes 14 s of
CPU time, of 48 layers 74 s."""

DEPTHS = (2, 4)
"""Numbers of layers of the shallow models, where a block has one."""

WHY = "A search compiles few blocks of a deep model; tpu.plan(model, layout=found) compiles all of them."


@dataclasses.dataclass(frozen=True, eq=False)
class SearchedJob:
    """A job and its traced step, with its shallow models.

    Attributes:
        job: the job.
        traced: its traced step.
        batch_size: examples of a step, or None for the job's own.
    """

    job: PlanJob
    traced: TracedStep
    batch_size: int | None

    @functools.cached_property
    def shallow(self) -> dict[int, TracedStep]:
        """The traced steps of the shallow models by their number of blocks; none if all of the model is compiled."""
        repeats = self.job.repeats
        if repeats is None or repeats.count * repeats.period < DEEP:
            return {}
        try:
            with TRACING:
                steps = {
                    count: trace_step(self.job.with_repeats(count).program(self.batch_size)) for count in self.depths
                }
        except ProgramError:  # A layer without a configuration.
            return {}
        # A Sequential model that is made again may name its arrays anew; then its layouts do not fit.
        names = set(state_names(self.traced.program))
        return steps if all(names.issuperset(state_names(traced.program)) for traced in steps.values()) else {}

    @property
    def depths(self) -> tuple[int, int]:
        """Numbers of blocks of the shallow models."""
        assert self.job.repeats is not None
        few = -(-DEPTHS[0] // self.job.repeats.period)
        return few, 2 * few

    def predict(self, layout: ModelLayout, target: Target, settings: PlanSettings) -> Prediction:
        """Return the prediction of the step in a layout.

        Raises:
            PlanError: the compiler refused the program, crashed or had no answer.
        """
        if self.shallow and (extrapolated := self._extrapolate(layout, target, settings)):
            return extrapolated
        return predict(PlanJob(place(self.traced.program, layout, self.traced)), None, target, settings)

    def _extrapolate(self, layout: ModelLayout, target: Target, settings: PlanSettings) -> Prediction | None:
        program = self.traced.program
        assert self.job.repeats is not None

        def program_with(blocks: int) -> Program:
            traced = self.shallow[blocks]
            return place(traced.program, restricted(layout, state_names(traced.program)), traced)

        blocks = self.job.repeats.count
        result = extrapolate_programs(program, program_with, self.depths, blocks, target, settings, WHY)
        if result is None:
            return None
        # The whole program is not lowered. Its placement is for the notes and for the load of a host.
        placement = Placement(layout.axes, specs_of(self.traced, layout))
        return completed(result, dataclasses.replace(program, placement=placement), target, settings)


def restricted(
    layout: ModelLayout, names: tuple[str, ...], changed: Mapping[str, tuple[int, ...]] | None = None
) -> ModelLayout:
    """Return a searched layout for a model that has only some of its arrays.

    Args:
        layout: the layout.
        names: names of the arrays of the model.
        changed: shapes of those that are larger or smaller than in the layout's model, as a cache of another batch.
    """
    kept = set(names)
    specs = {name: spec for name, spec in layout.specs.items() if name in kept}
    shapes = {name: layout.shapes[name] for name in specs} | dict(changed or {})
    patterns = tuple(name for name in layout.patterns if name in kept)
    return searched_layout(layout.name, layout.axes, specs, shapes, patterns, layout.inner, layout.remat)
