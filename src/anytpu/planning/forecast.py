"""`forecast`: one program on one system, from the compiler's answer to a `Prediction`.

Rule: nothing of the program is run. Without libtpu, or for a chip that it does not know, the answer is a roofline
estimate from the Program itself, and says so.
"""

from __future__ import annotations

from anytpu.errors import CompilerMissingError
from anytpu.planning.compiled import by_compiler
from anytpu.planning.cost import cost_of
from anytpu.planning.estimated import by_roofline, on_gpu
from anytpu.planning.found import Found
from anytpu.planning.job import batch_rows, for_devices
from anytpu.planning.records import Prediction
from anytpu.planning.target import Target
from anytpu.planning.wish import Wish
from anytpu.program.program import Program


def forecast(program: Program, target: Target, wish: Wish) -> Prediction:
    """Return what one step of a program would take on a system.

    Raises:
        PlanError: the compiler refused the program, ended or took too long.
    """
    program = for_devices(program, target.devices)
    found, rows = _found(program, target, wish), batch_rows(program)
    time = found.time
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
        cost=cost_of(target, time.step_s, rows, wish.examples, wish.epochs, wish.prices) if time else None,
        notes=(*found.notes, *notes(program, target)),
        compile_s=found.compile_s,
    )


def _found(program: Program, target: Target, wish: Wish) -> Found:
    if target.chip is None:
        return on_gpu(program, target, wish)
    try:
        return by_compiler(program, target, wish)
    except CompilerMissingError as error:
        return by_roofline(program, target, wish, str(error))


def notes(program: Program, target: Target) -> list[str]:
    """Return what has to be said of how a program lies on a system."""
    rows = program.rows
    if rows is None and program.replicas is None and program.placement is None and target.devices > 1:
        return [
            f"Nothing of this program is split: each of the {target.devices} devices computes all of it. Of a "
            "StableHLO file, say whose rows are split: input_specs={0: anytpu.program.ROWS}, or --split 0."
        ]
    if rows is None or rows % target.devices == 0:
        return []
    share = -(-rows // target.devices)
    return [
        f"{target.devices} devices do not divide a batch of {rows:,}: each takes {share:,} rows, the last ones fewer, "
        "as fit runs it."
    ]
