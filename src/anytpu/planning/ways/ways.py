"""`ways_to_fit`: the memory and the time of a training step with each change that makes it smaller, compiled.

Idea: the gain of rematerialisation or of LoRA depends on the step, the chip and the compiler. So each changed step is
compiled up to its schedule, which has the memory and takes a tenth of the time of a compilation.

Rule: the job does not change. A change that does not apply to it has a row with the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Unpack

import jax

from anytpu._calls import explain_arguments
from anytpu.errors import AnyTPUError, CompilerMissingError, ProgramError
from anytpu.planning.advice import facts_of, slices_that_hold
from anytpu.planning.advice.residuals import Residuals
from anytpu.planning.forecasts.compiled import predict_compiled
from anytpu.planning.forecasts.forecast import completed
from anytpu.planning.jobs.job import PlanJob, batch_parts, batch_rows, for_devices
from anytpu.planning.jobs.settings import PlanSettings, check_positive_integer
from anytpu.planning.memory.batches import fit_line
from anytpu.planning.plans.planner import run_together
from anytpu.planning.plans.request import JobOptions, requested
from anytpu.planning.records import Holding, Prediction
from anytpu.planning.records.changes import ChangedStep, SliceChoice, StepChanges
from anytpu.planning.records.target import Target, target_named
from anytpu.planning.ways.changed_steps import rematerialised_program, with_narrow_slots
from anytpu.program.makers import variant_of
from anytpu.program.program import spec_of

AS_IT_IS = "as it is"
HALF_SEQUENCE = "half the sequence"
MICRO_BATCHES = 4
"""Steps of gradient accumulation, if the batch has no larger divisor that the devices divide."""

_REMAT = "jax.checkpoint around each block, in a Keras model keras.remat"
_REMATS: dict[Literal["products kept", "by block"], str] = {
    "products kept": "; what is cheap, with policy=dots_with_no_batch_dims_saveable",
    "by block": "",
}


@dataclasses.dataclass(frozen=True)
class _TriedChange:
    """A change before it is compiled: `job` raises a ProgramError where it does not apply.

    Attributes:
        name: name of the row.
        how: how to make it, a sentence.
        job: returns the changed job.
        batch_size: examples of a changed step.
        steps: changed steps for one batch of the job.
    """

    name: str
    how: str
    job: Callable[[], PlanJob]
    batch_size: int | None
    steps: int = 1


@functools.partial(explain_arguments, also=JobOptions.__annotations__)
def ways_to_fit(
    job: Any,
    batch_size: int | None = None,
    tpu: str = "v2-8",
    *,
    lora_rank: int = 8,
    prices: str | Path | None = None,
    **settings: Unpack[JobOptions],
) -> StepChanges:
    """Compile a training step as it is and with each change that makes it smaller, and compare memory and time.

    The changes: rematerialisation in two forms, gradient accumulation, half the sequence, optimizer slots in bfloat16,
    LoRA. A change that does not apply to the job has a row with the reason. Each step is compiled up to its schedule.

    Args:
        job: as `plan` takes it.
        batch_size: examples of one step over all devices; None for a job that brings its own batch.
        tpu: the system.
        lora_rank: rank of the LoRA adapters.
        prices: a file of prices that replaces the included table; see `anytpu docs prices`.
        **settings: as `plan` takes them: input_specs (which half the sequence needs), precision, batch_axis, layout,
            mesh, options, timeout_s, use_cache, progress and name.

    Raises:
        UnknownTPUError: no such TPU.
        SettingError: the rank or the batch is not a positive integer.
        ProgramError: the job cannot be planned, or does not train.
        CompilerMissingError: the TPU compiler is not installed.
        PlanError: the compiler refused the step as it is, or had no answer.

    Example:
        >>> tpu.ways_to_fit(model, batch_size=256, tpu="v5e-1").show()  # doctest: +SKIP
    """
    check_positive_integer("batch_size", batch_size)
    check_positive_integer("lora_rank", lora_rank)
    target = target_named(tpu)
    # 1. The step as it is. Its errors are those of the call.
    jobs, trial = requested(
        job, target.devices, mode="train", waits=False, prices=prices, is_trial=True, stage="schedule", **settings
    )
    own, compiler = jobs(target.devices), _Compiler(target, trial)
    program = own.program(batch_size)
    rows = batch_rows(program)
    first = ChangedStep(AS_IT_IS, compiler.predict(own, batch_size))
    # 2. The changes are traced in this thread, then compiled together. An error is the reason in a row.
    changes = list(_changes(own, batch_size, rows, target, lora_rank))
    jobs = [(change, _job_or_reason(change)) for change in changes]
    tasks = [functools.partial(compiler.row, change, changed) for change, changed in jobs]
    table = [first, *run_together(tasks)]
    # 3. The row that is computed, not compiled.
    residuals = facts_of(program, own.is_model, target.devices).residuals
    if residuals.attention_bytes:
        table.append(_flash_attention(residuals, own.is_model))
    # 4. Slices for the step as it is, and for the change that saves most.
    made = {change.name: (changed, change.batch_size) for change, changed in jobs if isinstance(changed, PlanJob)}
    slices = compiler.slices(table, {AS_IT_IS: (own, batch_size), **made})
    return StepChanges(trial.name or program.name, target, rows, tuple(table), slices, _notes(slices, table))


def _changes(own: PlanJob, batch: int | None, rows: int | None, target: Target, rank: int) -> Iterator[_TriedChange]:
    """Yield the changes, in the order of their rows."""
    for remat, policy in _REMATS.items():
        again = functools.partial(rematerialised_program, remat=remat)
        yield _TriedChange(f"remat, {remat}", f"{_REMAT}{policy}.", functools.partial(_with, own, change=again), batch)
    parts = _micro_batches(rows, batch_parts(own.program(batch), target.devices))
    share = (rows or 0) // parts
    yield _TriedChange(
        f"accumulation over {parts}",
        f"gradient_accumulation_steps={parts} in the optimizer, and batches of {share:,}.",
        lambda: _accumulating(own, parts, rows, share),
        share or None,
        parts,
    )
    yield _TriedChange(
        HALF_SEQUENCE, "input_specs, and examples, of half the length.", lambda: _half_sequence(own), batch
    )
    yield _TriedChange(
        "slots in bfloat16",
        "cast the optimizer's slots to float32 before an update, and to bfloat16 after it.",
        functools.partial(_with, own, change=with_narrow_slots),
        batch,
    )
    yield _TriedChange(
        f"LoRA of rank {rank}",
        f"enable_lora({rank}) of the backbone, or of each Dense layer with the other weights frozen.",
        lambda: _with(own, source=variant_of(own.source, "LoRA", rank)),
        batch,
    )


def _with(own: PlanJob, **changes: Any) -> PlanJob:
    return dataclasses.replace(own, **changes)


def _micro_batches(rows: int | None, parts: int) -> int:
    """Return the number of steps of gradient accumulation: 4 if the devices divide the rest, else the next that is."""
    fitting = (count for count in (MICRO_BATCHES, 2, 3, 5) if rows and rows % (count * parts) == 0)
    return next(fitting, MICRO_BATCHES)


def _accumulating(own: PlanJob, parts: int, rows: int | None, share: int) -> PlanJob:
    changed = _with(own, source=variant_of(own.source, "accumulation", parts))
    if not share or share * parts != rows:
        raise ProgramError(f"{parts} does not divide a batch of {rows}")
    return changed


def _half_sequence(own: PlanJob) -> PlanJob:
    """Return the job with half of axis 1 of each array of its batch."""
    if own.input_specs is None:
        raise ProgramError("the length of a sequence is only known from input_specs; give them")
    if not own.has_batches or own.batch_axis not in (None, 0):
        raise ProgramError("the batch of this job cannot be changed, or its examples are not along axis 0")
    state, batch = (None, own.input_specs) if own.is_model else own.input_specs
    leaves = jax.tree.leaves(spec_of(batch))
    lengths = {leaf.shape[1] if len(leaf.shape) > 1 else None for leaf in leaves}
    length = next(iter(lengths), None)
    if len(lengths) != 1 or length is None or length % 2:
        raise ProgramError("the arrays of the batch do not share an even length of axis 1")

    def half(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((leaf.shape[0], length // 2, *leaf.shape[2:]), leaf.dtype)

    shorter = jax.tree.map(half, spec_of(batch))
    return _with(own, input_specs=shorter if own.is_model else (state, shorter))


def _job_or_reason(change: _TriedChange) -> PlanJob | str:
    """Return the changed job, traced, or why it does not apply: Keras traces in one thread only."""
    try:
        job = change.job()
        job.program(change.batch_size)
    except Exception as error:  # A step that is written for one length may fail in any way for another.
        return _sentence(error)
    return job


def _sentence(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return line.rstrip(".") + "."


def _flash_attention(residuals: Residuals, is_model: bool) -> ChangedStep:
    how = (
        "keras.config.enable_flash_attention() before the model is made."
        if is_model
        else "flash_attention(q, k, v) of jax.experimental.pallas.ops.tpu.flash_attention."
    )
    share = residuals.attention_bytes / residuals.total_bytes
    reason = (
        f"not compiled here: the kernel is traced on a TPU only. {share:.0%} of what is kept is attention's products."
    )
    return ChangedStep("flash attention", how=how, reason=reason)


@dataclasses.dataclass(frozen=True)
class _Compiler:
    """Compiles steps up to their schedules for one system.

    Attributes:
        target: the system.
        settings: settings of each prediction.
    """

    target: Target
    settings: PlanSettings

    def predict(self, job: PlanJob, batch_size: int | None) -> Prediction:
        """Return the prediction of a job from its schedule."""
        program = for_devices(job.program(batch_size), self.target.devices)
        prediction = predict_compiled(program, self.target, self.settings)
        return completed(prediction, program, self.target, self.settings)

    def row(self, change: _TriedChange, job: PlanJob | str) -> ChangedStep:
        """Return the row of a change."""
        if isinstance(job, str):
            return ChangedStep(change.name, None, change.steps, change.how, job)
        self.settings.progress(f"{self.settings.name or 'the step'} on {self.target.name}: {change.name}")
        try:
            prediction = self.predict(job, change.batch_size)
        except CompilerMissingError:
            raise
        except AnyTPUError as error:
            return ChangedStep(change.name, None, change.steps, change.how, _sentence(error))
        return ChangedStep(change.name, prediction, change.steps, change.how)

    def slices(
        self, table: list[ChangedStep], jobs: Mapping[str, tuple[PlanJob, int | None]]
    ) -> tuple[SliceChoice, ...]:
        """Return the cheapest slice of each chip for the step as it is, or with the change that saves most."""
        # Half the sequence is another task, so it does not compete.
        changed = [row for row in table[1:] if row.memory_bytes is not None and row.change != HALF_SEQUENCE]
        smallest = min(changed, key=lambda row: row.memory_bytes or 0, default=table[0])
        choices: dict[str, SliceChoice] = {}
        for row in dict.fromkeys((table[0], smallest)):
            for holding in self._holding(row, *jobs[row.change]):
                choice, chip = SliceChoice(row.change, holding), holding.target.chip.name
                if chip not in choices or holding.target.chips < choices[chip].holding.target.chips:
                    choices[chip] = choice
        return tuple(sorted(choices.values(), key=lambda choice: choice.holding.usd_per_hour or math.inf))

    def _holding(self, row: ChangedStep, job: PlanJob, batch: int | None) -> tuple[Holding, ...]:
        prediction = row.prediction
        if prediction is None or prediction.memory is None:
            return ()
        program = job.program(batch)
        parts, line, rows = batch_parts(program, self.target.devices), None, prediction.batch_size
        half = (rows or 0) // 2 // parts * parts
        if program.placement is None and job.has_batches and rows and half:
            try:
                less = self.predict(job, half).memory
                line = fit_line([(half, less), (rows, prediction.memory)], parts) if less else None
            except Exception:  # A step that is written for one batch.
                line = None
        return slices_that_hold(prediction, line, self.settings.prices, program)


def _notes(slices: tuple[SliceChoice, ...], table: list[ChangedStep]) -> tuple[str, ...]:
    """Return the notes on a table."""
    notes = ["Each step was compiled up to its schedule: it has the memory, but no cycles, so the intervals are wide."]
    if any(row.steps > 1 and row.prediction for row in table):
        notes.append("The time with accumulation counts an update in each of its steps: an upper bound.")
    if slices:
        notes.append("The memory on other slices is estimated, not compiled. Prices are on demand.")
    return tuple(notes)
