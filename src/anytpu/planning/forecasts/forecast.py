"""`predict`: one batch of a job on one system.

Rule: the program is never run. The compiler may have no answer: it is not installed, or took too much time or memory.
Then there is an extrapolation, a schedule or a floor, which say so. A program that is only tried has no floor, and none
of these after a compilation without an answer.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable

import jax

from anytpu import units
from anytpu.errors import CompilerMissingError, NoAnswerError
from anytpu.planning.costs.cost import cost_of
from anytpu.planning.floor import by_floor
from anytpu.planning.forecasts.compiled import predict_compiled, predict_scheduled
from anytpu.planning.forecasts.extrapolation import about_text, compile_s, extrapolate_job, why_too_long
from anytpu.planning.forecasts.hosts import host_load
from anytpu.planning.jobs.job import PlanJob, batch_rows, for_devices
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import Prediction, StepTime
from anytpu.planning.records.target import Target
from anytpu.program.program import Placement, Program, state_names

LONG_S = 60.0
"""Estimated time of a compilation from which a plan prints a floor first, and two shallow models of a deep one."""


def predict(job: PlanJob, batch_size: int | None, target: Target, settings: PlanSettings) -> Prediction:
    """Predict one batch of a job on one system.

    `settings.progress` gets a line before each compilation, because one may take a minute.

    Args:
        job: the job.
        batch_size: examples of a step over all devices, or None for the job's own.
        target: the system.
        settings: settings of every prediction of the plan.

    Raises:
        PlanError: the compiler refused the program or crashed. For a trial also: it had no answer.
    """
    # 1. The program for these devices.
    program = job.program(batch_size)
    rows = batch_rows(program)
    settings = settings.of_fit(rows)
    batch = f", {rows:,} examples a step" if rows else ""
    settings.progress(f"{settings.name or program.name} on {target.name} ({target.compiler_name}){batch}")
    program = for_devices(program, target.devices)
    # 2. A compilation that would pass the time limit is not begun.
    # A schedule takes a tenth of the time of the code, so it is made of all blocks.
    why = why_too_long(job, program, settings) if settings.stage == "code" else ""
    shallow = functools.partial(extrapolate_job, job, batch_size, program, target)
    # The schedules of two shallow models take one time limit together, and are made once.
    half_s = settings.timeout_s / 2
    quick = dataclasses.replace(settings, stage="schedule", timeout_s=half_s, progress=PlanSettings.progress)
    by_schedules = functools.cache(functools.partial(shallow, quick, "", None))
    tell = None if why else functools.partial(_tell_early, by_schedules, program, target, settings)

    def approximate(why: str) -> Prediction | None:
        # A schedule that does not fit is the answer. Else two models with fewer blocks give time and memory, within the
        # bounds of the schedule. If neither ends in time, their schedules do.
        scheduled = predict_scheduled(program, target, settings, why)
        if scheduled is not None and not scheduled.fits:
            return scheduled
        if prediction := shallow(settings, why, scheduled) or scheduled:
            return prediction
        about = by_schedules()
        return about and dataclasses.replace(about, notes=(why, *about.notes[1:]))

    # 3. The compiler's prediction, or the best that there is without: an extrapolation, a schedule, a floor.
    try:
        prediction = approximate(why) if why else None
        prediction = prediction or predict_compiled(program, target, settings, tell)
    except (CompilerMissingError, NoAnswerError) as error:
        if settings.is_trial:
            raise
        is_late = isinstance(error, NoAnswerError) and not why
        prediction = (approximate(str(error)) if is_late else None) or by_floor(program, target, settings, str(error))
    return dataclasses.replace(
        completed(prediction, program, target, settings), layout_name=job.layout.name if job.layout else ""
    )


def _tell_early(
    by_schedules: Callable[[], Prediction | None], program: Program, target: Target, settings: PlanSettings
) -> None:
    """Print what is known before a long compilation begins: a floor, and the schedules of two shallow models."""
    if settings.stage != "code" or settings.is_trial or compile_s(program) < LONG_S:
        return
    floor = by_floor(program, target, settings, "")
    if floor.step_s is not None:
        said = f"at least {units.format_seconds(floor.step_s)} a step, by its products and bytes alone"
        settings.progress(f"{target.name}: {said}; its compilation takes about {about_text(compile_s(program))}")
    about = by_schedules()
    if about is not None and about.step_s is not None:
        said = "by the schedules of two models with fewer blocks; the whole one follows"
        settings.progress(f"{target.name}: about {units.format_seconds(about.step_s)} a step, {said}")


def completed(prediction: Prediction, program: Program, target: Target, settings: PlanSettings) -> Prediction:
    """Return a prediction with its FLOPs, its cost, its host's load, and the layout of its program."""
    time = prediction.time
    step_s, examples, epochs = prediction.step_s, settings.examples, settings.epochs
    return dataclasses.replace(
        prediction,
        flops=sum(op.flops for op in time.ops if not op.is_recomputed) if time else None,
        cost=cost_of(target, step_s, prediction.batch_size, examples, epochs, settings.prices),
        notes=(
            *prediction.notes,
            *layout_notes(program, target),
            *table_notes(program, target, time),
            *(sum_notes(target, time) if sums_are_gradients(program) else []),
        ),
        layout=layout_text(program.placement) if program.placement else "",
        host=host_load(program, prediction),
    )


def layout_text(placement: Placement) -> str:
    """Return a mesh and the number of arrays of state and batch with each partition.

    Example:
        >>> layout_text(Placement((("data", 4), ("model", 2)), (((), ("model",)), (), ((), ("model",)))))
        'mesh data=4, model=2; 2 x (-, model), 1 x whole'
    """
    mesh = ", ".join(f"{name}={size}" for name, size in placement.axes)
    texts = (f"({', '.join('+'.join(names) or '-' for names in spec)})" for spec in placement.specs if any(spec))
    counts = collections.Counter(sorted(texts))
    counts["whole"] = sum(not any(spec) for spec in placement.specs)
    return "; ".join([f"mesh {mesh}", ", ".join(f"{count} x {text}" for text, count in counts.items() if count)])


_WITH_SPARSE_CORES = ("v5p", "v6e", "v7x")
"""The chips whose SparseCores keras-rs uses through jax-tpu-embedding, or that have them (Google's datasheets)."""


def table_notes(program: Program, target: Target, time: StepTime | None = None) -> list[str]:
    """Return the notes on the embedding tables of a program on a system; `time` is that of its step."""
    if not program.tables:
        return []
    names, leaves = state_names(program), jax.tree.leaves(program.state)
    arrays = {name: leaf for name, leaf in zip(names, leaves, strict=True) if name in program.tables}
    sizes = {name: leaf.size * leaf.dtype.itemsize for name, leaf in arrays.items()}
    specs = program.placement.specs if program.placement else ()
    split = [name for name, spec in zip(names, specs, strict=False) if name in arrays and any(spec)]
    share_bytes = sum(size / (target.devices if name in split else 1) for name, size in sizes.items())
    count = "1 array" if len(arrays) == 1 else f"{len(arrays)} arrays"
    note = (
        f"The embedding tables and their slots ({count}, {units.format_bytes(sum(sizes.values()))}) take "
        f"{units.format_bytes(share_bytes)} on a device; a step updates the rows of its batch."
    )
    notes = [note, *_copied_tables(time, max(sizes.values()) / (target.devices if split else 1))]
    if target.chip.name not in _WITH_SPARSE_CORES:
        return notes
    return [*notes, f"Lookups are planned on the TensorCores: the SparseCores of {target.chip.name} are not used."]


def _copied_tables(time: StepTime | None, table_bytes: float) -> list[str]:
    """Return a note if a step copies whole tables: the compiler stores some widths by columns, and rows are updated."""
    copies = [op for op in time.ops if op.opcode == "copy" and op.bytes >= table_bytes] if time else []
    if not copies:
        return []
    seconds = units.format_seconds(sum(op.time_s for op in copies))
    count = "a whole table" if len(copies) == 1 else f"{len(copies)} whole tables or slots"
    return [
        f"A step copies {count} ({seconds}), because of their width. Give the tables a width that is a multiple of "
        "128, or 48 at most."
    ]


_WORTH_NOTING_SHARE = 0.01
"""Gradients that are a smaller share of all summed bytes are not noted: a few small ones of norms."""


def sums_are_gradients(program: Program) -> bool:
    """Return whether only examples are split, over all devices: sums of the backward pass are of gradients then.

    A split weight or sequence adds sums of activations, over some of the devices.
    """
    if program.placement is None:
        return True
    specs, states = program.placement.specs, len(jax.tree.leaves(program.state))
    batch = list(zip(program.leaves(), specs[states:], strict=False))
    if any(any(spec) for spec in specs[:states]) or not batch:
        return False
    inner = any(parts for (_, layout), spec in batch for axis, parts in enumerate(spec) if axis != layout.axis)
    used = {part for _, spec in batch for parts in spec for part in parts}
    return not inner and all(size == 1 or name in used for name, size in program.placement.axes)


def sum_notes(target: Target, time: StepTime | None) -> list[str]:
    """Return a note if the gradients of a step are summed over the devices in bfloat16."""
    sums = [op for op in time.ops if op.collective in ("all-reduce", "reduce-scatter")] if time else []
    narrow = [op for op in sums if op.dtype == "bf16" and op.is_backward]
    size_bytes = sum(op.bytes for op in narrow)
    if not size_bytes or size_bytes < _WORTH_NOTING_SHARE * sum(op.bytes for op in sums):
        return []
    most = max(narrow, key=lambda op: op.bytes)
    place = f", most by {most.layer!r}" if most.layer else ""
    return [
        f"Gradients are summed over the devices in bfloat16 ({units.format_bytes(size_bytes)} a step{place}): each of "
        f"the sums over {target.devices} devices is rounded to 8 bits. In float32 they take twice the bytes."
    ]


def layout_notes(program: Program, target: Target) -> list[str]:
    """Return the notes on the layout of a program over a system."""
    if program.placement is not None:
        return [*program.notes]
    rows = program.rows
    if rows is None and program.replicas is None and target.devices > 1:
        return [
            *program.notes,
            f"Nothing of this program is split: each of the {target.devices} devices computes all of it. Of a "
            "StableHLO file, say whose rows are split: input_specs={0: anytpu.program.ROWS}, or --split 0.",
        ]
    if rows is None or rows % target.devices == 0:
        return [*program.notes]
    return [
        *program.notes,
        f"{target.devices} devices do not divide a batch of {rows:,}: each takes "
        f"{-(-rows // target.devices):,} rows, the last ones fewer, as fit runs it.",
    ]
