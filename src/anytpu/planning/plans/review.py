"""Review of a prediction: advice; if the program does not fit, also the largest batch that fits, and larger slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from anytpu.errors import PlanError
from anytpu.planning.advice import advice_for, facts_of, slices_that_hold
from anytpu.planning.forecasts.forecast import predict
from anytpu.planning.jobs.job import PlanJob, batch_parts
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.memory.batches import (
    LargestBatch,
    MemoryLine,
    fit_line,
    is_relaxed,
    search_largest_batch,
    settle_batch,
)
from anytpu.planning.records import MemoryUse, Prediction
from anytpu.planning.records.target import Target, target_named
from anytpu.program.program import Program
from anytpu.units import format_bytes

ROWS_TO_BEGIN_WITH = 128
"""Rows a device at which the search for the largest batch begins, if no batch is known to be too large."""


def review(
    job: PlanJob, batch_size: int | None, prediction: Prediction, settings: PlanSettings, tries: bool
) -> Prediction:
    """Return a prediction with advice, and with the largest batch that fits if its own batch does not.

    Args:
        job: the planned job.
        batch_size: the batch that was asked for, or None for the job's own.
        prediction: the prediction of that batch.
        settings: settings of every prediction.
        tries: whether to compile changed programs to measure their gain.
    """
    if prediction.is_floor:
        return prediction  # A bound says neither where the time goes nor the gain of a change.
    # 1. What is worth trying.
    # A program that the compiler did not finish would not finish with a change either, and each try costs its timeout.
    is_compiled = prediction.basis == "compiled"
    tries = tries and is_compiled
    facts, line = facts_of(job.program(batch_size), job.is_model, prediction.target.devices), None
    settings = dataclasses.replace(settings, is_trial=True)
    # 2. A step that does not fit: the largest batch, and the slices that hold it.
    if not prediction.fits and is_compiled and job.has_batches and prediction.batch_size and prediction.memory:
        # State that is split is smaller on each device, by a factor that only the compiler knows.
        whole_bytes = 0 if facts.is_placed else facts.state_bytes
        parts = facts.batch_parts or prediction.target.devices
        prediction, line = _with_largest_batch(job, prediction, settings, parts, whole_bytes)
    if not prediction.fits:
        prediction = _with_holding(job.program(batch_size), prediction, line, settings)

    # 3. Advice, tried by compiling changed programs.
    compiled: list[Prediction] = []

    def predict_changed(batch: int | None, precision: str | None, tpu: str | None) -> Prediction:
        changed = job if precision is None else dataclasses.replace(job, precision=precision)
        compiled.append(predict(changed, batch, target_named(tpu) if tpu else prediction.target, settings))
        return compiled[-1]

    epoch_steps = settings.epoch_steps(prediction.batch_size)
    advice = advice_for(prediction, facts, predict_changed if tries else None, job.has_batches, line, epoch_steps)
    notes = (*prediction.notes, *([_count(compiled)] if tries else []))
    return dataclasses.replace(prediction, advice=advice, notes=notes)


def _with_largest_batch(
    job: PlanJob, prediction: Prediction, settings: PlanSettings, parts: int, whole_bytes: int
) -> tuple[Prediction, MemoryLine | None]:
    """Return the prediction with the largest batch that fits, and the memory as a function of the batch.

    A compilation that fails, for example by a timeout, ends the search; the batches compiled before it count.
    """
    assert prediction.batch_size is not None and prediction.memory is not None
    too_large = prediction.batch_size, prediction.memory
    # The state alone does not fit, so no batch is searched for.
    if whole_bytes > prediction.memory.limit_bytes:
        largest = LargestBatch(0, (too_large,))
    else:
        largest = find_largest_batch(job, prediction.target, settings, too_large)
    tried, batch_size, notes = [*largest.tried], largest.batch_size, [*prediction.notes]
    if largest.ended_by is not None:
        why = _first_line(largest.ended_by)
        early = f"The search for the largest batch ended early; a batch larger than {batch_size:,} may fit. {why}"
        notes.append(early if batch_size else f"The largest batch that fits was not found: {why}")
        batch_size = batch_size or None
    else:
        try:
            tried += _half(job, prediction, settings, parts, tried)
        except Exception as error:  # A timeout; or a step that is written for one batch.
            notes.append(f"The memory of a smaller batch is not known: {_first_line(error)}")
    return dataclasses.replace(prediction, largest_batch=batch_size, notes=tuple(notes)), fit_line(tried, parts)


def _half(
    job: PlanJob, prediction: Prediction, settings: PlanSettings, parts: int, tried: Sequence[tuple[int, MemoryUse]]
) -> Iterator[tuple[int, MemoryUse]]:
    """Yield half the smallest batch that fits, with its memory, if the batches tried so far give no good line."""
    fitting = [batch for batch, memory in tried if memory.fits]
    relaxed = sum(is_relaxed(memory) for _, memory in tried)
    # Two relaxed batches give a good line. If several were tried and none fits, no smaller batch is left.
    if relaxed > 1 or (not fitting and len(tried) > 1):
        return
    batch = min(fitting or [prediction.batch_size or 0]) // 2 // parts * parts
    if batch:
        yield batch, _memory_by_schedule(job, batch, prediction.target, settings)


def _count(compiled: list[Prediction]) -> str:
    """Return the note on the number of programs that were compiled to try advice."""
    if not compiled:
        return "There was no advice to try."
    anew = sum(prediction.compile_s is not None for prediction in compiled)
    programs = "1 changed program was" if len(compiled) == 1 else f"{len(compiled)} changed programs were"
    return f"To try advice, {programs} planned, {anew} of them compiled anew."


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _with_holding(
    program: Program, prediction: Prediction, line: MemoryLine | None, settings: PlanSettings
) -> Prediction:
    """Return a prediction with the slices that would hold the step, or with a note that none would."""
    is_placed = program.placement is not None
    holding = slices_that_hold(prediction, line, settings.prices, program)
    if holding or line is None or is_placed:
        return dataclasses.replace(prediction, holding=holding)
    stays = (
        f"No slice would hold it as it is: about {format_bytes(line.fixed_bytes)} of a device's memory do not shrink "
        'when more devices share the batch. Split the state over them: "Layouts of your own" in `anytpu docs plan`.'
    )
    return dataclasses.replace(prediction, notes=(*prediction.notes, stays))


def find_largest_batch(
    job: PlanJob, target: Target, settings: PlanSettings, too_large: tuple[int, MemoryUse] | None = None
) -> LargestBatch:
    """Find the largest batch of a job that fits on a system, by schedules: their memory lacks the code alone.

    Args:
        job: the job.
        target: the system.
        settings: settings of every prediction.
        too_large: a batch that does not fit, with its memory, or None.
    """

    def memory_at(batch: int) -> MemoryUse:
        memory = _memory_by_schedule(job, batch, target, settings)
        settings.progress(f"{batch:,} examples on {target.name}: {_verdict(memory)}")
        return memory

    start = ROWS_TO_BEGIN_WITH * target.devices
    if too_large:
        start = too_large[0]
        settings.progress(f"{start:,} examples do not fit on {target.name}: looking for the largest batch that does")
    return search_largest_batch(batch_parts(job.program(start), target.devices), memory_at, start, too_large)


def compile_largest_batch(job: PlanJob, target: Target, settings: PlanSettings, batch_size: int) -> int:
    """Return the largest batch that fits with its code, to a 32nd, from the one that was found by schedules.

    Args:
        job: the job.
        target: the system.
        settings: settings of every prediction.
        batch_size: the largest batch that fits by its schedule.

    Raises:
        PlanError: neither it nor the next three smaller ones fit when they are compiled completely.
    """
    trial = dataclasses.replace(settings, is_trial=True)

    def fits(batch: int) -> bool:
        memory = predict(job, batch, target, trial).memory
        return memory is not None and memory.fits

    if settled := settle_batch(batch_parts(job.program(batch_size), target.devices), batch_size, fits):
        return settled
    raise PlanError(
        f"a batch of {batch_size:,} fits on {target.name} by its schedule, and not with its code. Ask for a smaller "
        f"one: anytpu plan --batch {batch_size // 2}"
    )


def _memory_by_schedule(job: PlanJob, batch: int, target: Target, settings: PlanSettings) -> MemoryUse:
    """Return the memory of a batch; the compiler makes a schedule, which takes a tenth of the time of its code."""
    memory = predict(job, batch, target, dataclasses.replace(settings, is_trial=True, stage="schedule")).memory
    assert memory is not None
    return memory


def _verdict(memory: MemoryUse) -> str:
    if memory.fits:
        return f"fits, with {memory.peak_bytes / memory.limit_bytes:.0%} of the memory"
    return f"does not fit, {format_bytes(memory.missing_bytes)} are missing"
