"""`forecast`: one program on one system, from the compiler's answer to a `Prediction`.

Rule: nothing of the program is run. Where the compiler has no answer, since it is not installed or took too much time
or memory, there is a shorter way or a floor, which say that they are. A changed program that is only tried has neither.
"""

from __future__ import annotations

from collections.abc import Callable

from anytpu.errors import CompilerMissingError, NoAnswerError
from anytpu.planning.compiled import by_compiler
from anytpu.planning.cost import cost_of, hourly_cost
from anytpu.planning.floor import by_floor
from anytpu.planning.found import Found
from anytpu.planning.job import batch_rows, for_devices
from anytpu.planning.records import Prediction
from anytpu.planning.target import Target
from anytpu.planning.wish import Wish
from anytpu.program.program import Program

Shorter = Callable[[Found], Found | None]
"""Predicts a program that the compiler did not finish in a shorter way, given its floor; None where there is none."""


def forecast(program: Program, target: Target, wish: Wish, shorter: Shorter | None = None) -> Prediction:
    """Return what one step of a program would take on a system.

    Args:
        program: the program.
        target: the system.
        wish: what holds for every prediction of the plan.
        shorter: asked where the compiler takes too much time or memory; None: then there is the floor.

    Raises:
        PlanError: the compiler refused the program or crashed; of a trial, also: it had no answer.
    """
    program = for_devices(program, target.devices)
    found, rows = _found(program, target, wish, shorter), batch_rows(program)
    time = found.time
    cost = hourly_cost(target, wish.prices)
    if time is not None:
        cost = cost_of(target, time.step_s, rows, wish.examples, wish.epochs, wish.prices)
    return Prediction(
        program=program.name,
        mode=program.mode,
        target=target,
        batch_size=rows,
        predicted_by=found.predicted_by,
        memory=found.memory,
        time=time,
        flops=sum(op.flops for op in time.ops if not op.is_recomputed) if time else None,
        peak_flops_per_s=found.peak_flops_per_s,
        steps_per_execution=wish.steps_per_execution,
        cost=cost,
        notes=(*found.notes, *notes(program, target)),
        compile_s=found.compile_s,
        basis=found.basis,
        batch_padding=found.batch_padding,
    )


def _found(program: Program, target: Target, wish: Wish, shorter: Shorter | None) -> Found:
    try:
        return by_compiler(program, target, wish)
    except (CompilerMissingError, NoAnswerError) as error:
        if wish.is_trial:
            raise
        floor = by_floor(program, target, wish, str(error))
        is_ended = isinstance(error, NoAnswerError)
        return (shorter(floor) if shorter is not None and is_ended else None) or floor


def notes(program: Program, target: Target) -> list[str]:
    """Return what has to be said of how a program lies on a system."""
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
