"""`forecast`: one program on one system, from the compiler's answer to a `Prediction`.

Rule: the program is never run. The compiler may have no answer: it is not installed, or took too much time or memory.
Then there is an extrapolation or a floor, which say so. A changed program that is only tried has neither.
"""

from __future__ import annotations

from collections.abc import Callable

from anytpu.errors import CompilerMissingError, NoAnswerError
from anytpu.planning.compiled import by_compiler
from anytpu.planning.cost import cost_of, hourly_cost
from anytpu.planning.estimate import Estimate
from anytpu.planning.floor import by_floor
from anytpu.planning.job import batch_rows, for_devices
from anytpu.planning.records import Prediction
from anytpu.planning.target import Target
from anytpu.planning.wish import Wish
from anytpu.program.program import Program

Shorter = Callable[[Estimate], Estimate | None]
"""Predicts a program that the compiler did not finish by a shorter method, given its floor; None if there is none."""


def forecast(program: Program, target: Target, wish: Wish, shorter: Shorter | None = None) -> Prediction:
    """Return the prediction of one step of a program on a system.

    Args:
        program: the program.
        target: the system.
        wish: settings of every prediction of the plan.
        shorter: called if the compiler takes too much time or memory; None: the result is then the floor.

    Raises:
        PlanError: the compiler refused the program or crashed. For a trial also: it had no answer.
    """
    program = for_devices(program, target.devices)
    result, rows = _estimate_of(program, target, wish, shorter), batch_rows(program)
    time = result.time
    cost = hourly_cost(target, wish.prices)
    if time is not None:
        cost = cost_of(target, time.step_s, rows, wish.examples, wish.epochs, wish.prices)
    return Prediction(
        program=program.name,
        mode=program.mode,
        target=target,
        batch_size=rows,
        predicted_by=result.predicted_by,
        memory=result.memory,
        time=time,
        flops=sum(op.flops for op in time.ops if not op.is_recomputed) if time else None,
        peak_flops_per_s=result.peak_flops_per_s,
        steps_per_execution=wish.steps_per_execution,
        cost=cost,
        notes=(*result.notes, *notes(program, target)),
        compile_s=result.compile_s,
        basis=result.basis,
        batch_padding=result.batch_padding,
    )


def _estimate_of(program: Program, target: Target, wish: Wish, shorter: Shorter | None) -> Estimate:
    try:
        return by_compiler(program, target, wish)
    except (CompilerMissingError, NoAnswerError) as error:
        if wish.is_trial:
            raise
        floor = by_floor(program, target, wish, str(error))
        is_ended = isinstance(error, NoAnswerError)
        return (shorter(floor) if shorter is not None and is_ended else None) or floor


def notes(program: Program, target: Target) -> list[str]:
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
