"""`SliceSearch`: the layouts of one traced job on one slice, compiled in rounds.

Idea: the first round compiles the best estimates up to their schedules. A training step that does not fit is compiled
again with rematerialisation in the next round: first with the products kept, then by block. The last round compiles the
fastest layout completely.

Rule: a layout that fits is never compiled with rematerialisation, because that only adds computation. Nor is one after
which a layout that fits has the shorter estimate. Of each layout that was not compiled the reason is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

from anytpu import units
from anytpu.errors import AnyTPUError, CompilerMissingError, NoAnswerError
from anytpu.planning.advice.remat import how_to_rematerialise
from anytpu.planning.advice.residuals import residuals_of
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import Prediction
from anytpu.planning.records.shardings import Sharding, missing_memory
from anytpu.planning.records.target import Stage, Target, limit_bytes
from anytpu.planning.shardings.by_schedule import calibrated
from anytpu.planning.shardings.candidates import batch_rows_divide, candidates
from anytpu.planning.shardings.depth import SearchedJob
from anytpu.planning.shardings.estimate import estimate, live_bytes_of
from anytpu.program.rematerialising import REMATS, Remat
from anytpu.sharding import ModelLayout

FUSED = 0.35
"""Share of the activations that the compiler keeps, at least: fusions never write the rest."""

WORTH_TRYING = 1.15
"""A rematerialised step is compiled if its estimated memory is below the limit times this."""


class SliceSearch:
    """The layouts of a traced job on one system.

    Args:
        job: the job, traced.
        target: the system.
        settings: settings of every prediction; with `stage` "schedule" no layout is compiled completely.

    Attributes:
        job: the job, traced.
        target: the system.
        shardings: the layouts, in the order of their estimates; layouts with rematerialisation come later.
    """

    def __init__(self, job: SearchedJob, target: Target, settings: PlanSettings) -> None:
        self.job, self.target, self._settings, self._limit = job, target, settings, limit_bytes(target)
        self.shardings = sorted(self._estimated(), key=lambda sharding: sharding.estimate_s)
        self._round: list[int] = []
        self._by_schedule: dict[int, Prediction] = {}
        self._completes = False
        first = next((sharding for sharding in self.shardings if not sharding.reason), None)
        if first is not None:
            settings.progress(
                f"{len(self.shardings)} layouts on {target.name}; by FLOPs and bytes the first is {first.layout.name} "
                f"({first.mesh})"
            )

    def choose(self, count: int) -> None:
        """Choose the layouts of the first round: the best estimates that can fit."""
        possible = [index for index, sharding in enumerate(self.shardings) if not sharding.reason]
        kept = []
        if count > 1:
            # Data parallelism is compiled in any case: users ask how much another layout gains over it.
            kept = [index for index in possible if self.shardings[index].layout.name == "data"]
        if count > 2:
            # So is the layout with the smallest state: perhaps no other fits.
            kept.append(min(possible, key=lambda index: self.shardings[index].state_bytes, default=0))
        kept = list(dict.fromkeys(kept))
        others = [index for index in possible if index not in kept]
        self._round = sorted([*kept, *others[: count - len(kept)]]) if possible else []
        # Each layout outside of the round has a reason. One that cannot fit without rematerialisation begins with it.
        for index in possible:
            if index not in self._round:
                self._set(index, reason="not compiled, because others have a shorter estimate.")
            elif self._trains and self._least_bytes(self.shardings[index]) > self._limit:
                self.shardings[index] = self._with_remat(self.shardings[index], self._first_remat(index))

    def tasks(self) -> list[Callable[[], None]]:
        """Return the compilations of this round, the best estimate first."""
        _ = self.job.shallow  # Keras traces in one thread only.
        # Machine code takes nine tenths of a compilation. So only one layout gets it: the fastest by its schedule, or
        # the only one of the round.
        is_last = self._settings.stage == "code" and len(self._round) == 1 and (not self.fits or self._completes)
        return [functools.partial(self._predict, index, "code" if is_last else "schedule") for index in self._round]

    def next_round(self) -> bool:
        """Choose the layouts to compile again, with rematerialisation or completely; return whether there are any."""
        # 1. Layouts that lacked memory try the next form of rematerialisation, as layouts of their own.
        failed = [index for index in self._round if self._lacks_memory(self.shardings[index])]
        self._round = []
        fitting_s = [sharding.estimate_s for sharding in self.shardings if sharding.step_s is not None]
        for index in failed if self._trains else []:
            before = self.shardings[index]
            remat = self._next_remat(before)
            if remat is None:
                continue
            again = self._with_remat(before, remat)
            if min(fitting_s, default=again.estimate_s) < again.estimate_s:
                reason = f"{before.reason} With rematerialisation a layout that fits has a shorter estimate."
                self._set(index, reason=reason)
                continue
            self._round.append(len(self.shardings))
            self.shardings.append(again)
        # 2. Without any, the fastest is compiled completely.
        if not self._round and self._settings.stage == "code":
            self._complete()
        return bool(self._round)

    def _complete(self) -> None:
        """Choose the fastest layout if all are known by their schedules alone; else calibrate the others by it."""
        fitting = [index for index, sharding in enumerate(self.shardings) if sharding.step_s is not None]
        best = next((index for index in fitting if self.shardings[index].stage == "code"), None)
        # 1. No layout was compiled completely yet: choose the fastest.
        if best is None:
            # A layout whose complete compilation failed has a reason; then the search ends with schedules.
            if fitting and not any(self.shardings[index].reason for index in fitting):
                self._round = [min(fitting, key=lambda index: self.shardings[index].step_s or math.inf)]
                self._completes = True
            return
        # 2. One was: the ratio of its two times corrects the layouts that have a schedule only.
        compiled, scheduled = self.shardings[best].prediction, self._by_schedule.get(best)
        for index in fitting:
            prediction = self.shardings[index].prediction
            if index != best and prediction and compiled and scheduled:
                prediction = calibrated(prediction, scheduled, compiled, self._settings)
                self.shardings[index] = dataclasses.replace(self.shardings[index], prediction=prediction)

    def stop(self) -> None:
        """Give a reason to the layouts whose compilation the end of the search cut off."""
        for index in self._round:
            if self.shardings[index].prediction is None and not self.shardings[index].reason:
                self._set(index, reason="not compiled, because the search was stopped.")

    @property
    def least(self) -> Sharding | None:
        """The layout that needs the least memory of a device, by the compiler if it compiled any."""
        compiled = [sharding for sharding in self.shardings if sharding.prediction and sharding.prediction.memory]
        return min(
            compiled or self.shardings,
            key=lambda sharding: (sharding.prediction and sharding.prediction.hbm_bytes) or sharding.state_bytes,
            default=None,
        )

    @property
    def fits(self) -> bool:
        """Whether a layout was compiled that fits."""
        return any(sharding.step_s is not None for sharding in self.shardings)

    @property
    def _trains(self) -> bool:
        return self.job.traced.program.mode == "train"

    def _live_bytes(self, layout: ModelLayout) -> int:
        """Return the activations of one device that are live at once, bytes by their shapes, without fusions."""
        sizes = dict(layout.axes)
        parts = math.prod(sizes[part] for part in layout.storage_axes)
        return live_bytes_of(self.job.traced, layout.remat) // parts

    def _set(self, index: int, reason: str) -> None:
        self.shardings[index] = dataclasses.replace(self.shardings[index], reason=reason)

    def _estimated(self) -> Iterator[Sharding]:
        for layout in candidates(self.job.traced, self.target.devices):
            costs = estimate(self.job.traced, layout, self.target)
            sharding = Sharding(layout, self.target, costs.step_s, costs.state_bytes)
            if not batch_rows_divide(self.job.traced, layout):
                rows = self.job.traced.program.rows
                reason = f"not compiled, because the row axes of the mesh do not divide {rows:,} examples."
                sharding = dataclasses.replace(sharding, reason=reason)
            elif costs.state_bytes > self._limit:
                sharding = dataclasses.replace(sharding, reason=missing_memory(sharding, self._limit))
            yield sharding

    # Rematerialisation

    def _least_bytes(self, sharding: Sharding) -> float:
        """Return the memory that a layout needs at least, bytes of one device."""
        return sharding.state_bytes + FUSED * self._live_bytes(sharding.layout)

    def _first_remat(self, index: int) -> Remat:
        """Return the form with the least computation that may fit, of a layout that cannot fit without one."""
        sharding = self.shardings[index]
        for remat in REMATS:
            layout = dataclasses.replace(sharding.layout, remat=remat)
            if self._least_bytes(dataclasses.replace(sharding, layout=layout)) <= self._limit:
                return remat
        return REMATS[-1]

    def _next_remat(self, sharding: Sharding) -> Remat | None:
        """Return the next form that may fit, by the memory of a compiled step that does not; None if none may."""
        own: Remat = sharding.layout.remat
        forms: tuple[Remat, ...] = REMATS[REMATS.index(own) + 1 :] if own else REMATS
        # What exceeds the state shrinks as the live activations do by their shapes. The share of fusions cancels.
        growing = max(((sharding.prediction and sharding.prediction.hbm_bytes) or 0) - sharding.state_bytes, 0)
        live = max(live_bytes_of(self.job.traced, own), 1)
        for remat in forms:
            left = growing * live_bytes_of(self.job.traced, remat) / live
            if sharding.state_bytes + left <= WORTH_TRYING * self._limit:
                return remat
        return None

    def _with_remat(self, sharding: Sharding, remat: Remat) -> Sharding:
        layout = dataclasses.replace(sharding.layout, remat=remat)
        costs = estimate(self.job.traced.rematerialised(remat), layout, self.target)
        trace = self.job.traced.trace
        blocks = residuals_of(trace, len(self.job.traced.state_axes)).blocks
        code = how_to_rematerialise(remat, blocks, self.job.job.is_model)
        return Sharding(layout, self.target, costs.step_s, sharding.state_bytes, remat_code=code)

    @staticmethod
    def _lacks_memory(sharding: Sharding) -> bool:
        return sharding.prediction is not None and not sharding.prediction.fits

    # Compilation

    def _predict(self, index: int, stage: Stage) -> None:
        sharding = self.shardings[index]
        settings = dataclasses.replace(self._settings, progress=PlanSettings.progress, stage=stage)
        try:
            prediction = self.job.predict(sharding.layout, self.target, settings)
        except CompilerMissingError:
            raise
        except AnyTPUError as error:
            # A refusal by the compiler has many lines; the text of a time limit is one sentence after another.
            said = str(error) if isinstance(error, NoAnswerError) else next(iter(str(error).splitlines()), "")
            self._set(index, reason=f"{'by its schedule alone' if sharding.prediction else 'not predicted'}: {said}")
            return
        if stage == "schedule":
            self._by_schedule[index] = prediction
        sharding = dataclasses.replace(sharding, prediction=prediction, stage=stage)
        if not prediction.fits:
            sharding = dataclasses.replace(sharding, reason=missing_memory(sharding, self._limit))
        self.shardings[index] = sharding
        step = f"{units.format_seconds(prediction.step_s)} a step" if prediction.step_s else "does not fit"
        step += " by its schedule" * bool(prediction.step_s and stage == "schedule")
        self._settings.progress(f"{sharding.title} on {self.target.name}: {step}")
