"""`predict`: one batch of a job on one system.

Rule: the program is never run. The compiler may have no answer: it is not installed, or took too much time or memory.
Then there is an extrapolation or a floor, which say so. A changed program that is only tried has neither.
"""

from __future__ import annotations

import dataclasses

from anytpu.errors import CompilerMissingError, NoAnswerError
from anytpu.planning.compiled import predict_compiled
from anytpu.planning.cost import cost_of
from anytpu.planning.extrapolation import extrapolate_job
from anytpu.planning.floor import by_floor
from anytpu.planning.job import PlanJob, batch_rows, for_devices
from anytpu.planning.records import Prediction
from anytpu.planning.settings import PlanSettings
from anytpu.planning.target import Target
from anytpu.program.program import Program


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
    program = job.program(batch_size)
    rows = batch_rows(program)
    settings = settings.of_fit(rows)
    batch = f", {rows:,} examples a step" if rows else ""
    settings.progress(f"{settings.name or program.name} on {target.name} ({target.compiler_name}){batch}")
    program = for_devices(program, target.devices)
    try:
        prediction = predict_compiled(program, target, settings)
    except (CompilerMissingError, NoAnswerError) as error:
        if settings.is_trial:
            raise
        prediction = by_floor(program, target, settings, str(error))
        if isinstance(error, NoAnswerError):
            prediction = extrapolate_job(job, batch_size, target, settings, prediction) or prediction
    time = prediction.time
    step_s, examples, epochs = prediction.step_s, settings.examples, settings.epochs
    return dataclasses.replace(
        prediction,
        flops=sum(op.flops for op in time.ops if not op.is_recomputed) if time else None,
        cost=cost_of(target, step_s, prediction.batch_size, examples, epochs, settings.prices),
        notes=(*prediction.notes, *layout_notes(program, target)),
    )


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
    share = -(-rows // target.devices)
    return [
        *program.notes,
        f"{target.devices} devices do not divide a batch of {rows:,}: each takes {share:,} rows, the last ones fewer, "
        "as fit runs it.",
    ]
