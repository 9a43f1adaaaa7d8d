"""`forecast`: one program on one system, from the compiler's answer to a `Prediction`.

Rule: nothing of the program is run. Without libtpu, or for a chip that it does not know, the answer is a roofline
estimate from the Program itself, and says so.
"""

from __future__ import annotations

import dataclasses

from anytpu.errors import CompilerMissingError
from anytpu.planning import calibration, gpu, roofline
from anytpu.planning.compiler import Compiled, compile_program
from anytpu.planning.cost import cost_of
from anytpu.planning.hlo import Module, parse
from anytpu.planning.job import batch_rows, for_devices
from anytpu.planning.memory import memory_of
from anytpu.planning.records import Cost, Memory, Prediction, StepTime
from anytpu.planning.target import Target
from anytpu.planning.timing import step_time
from anytpu.planning.wish import Wish
from anytpu.program.program import Program


def forecast(program: Program, target: Target, wish: Wish) -> Prediction:
    """Return what one step of a program would take on a system.

    Raises:
        PlanError: the compiler refused the program, ended or took too long.
    """
    program = for_devices(program, target.devices)
    if target.chip is None:
        time, memory, peak_flops_per_s = gpu.predict(program)
        fitting = time if memory.fits else None
        found = _prediction(program, target, wish, fitting, memory, "this GPU's own compiler and a roofline")
        return dataclasses.replace(found, peak_flops_per_s=peak_flops_per_s)
    try:
        answer = compile_program(
            program, target, options=wish.options, timeout_s=wish.timeout_s, use_cache=wish.use_cache
        )
    except CompilerMissingError as error:
        time, memory = roofline.roofline_time(
            program,
            target,
            steps_per_execution=wish.steps_per_execution,
            input_examples_per_s=wish.input_examples_per_s,
            batch_size=batch_rows(program),
        )
        fitting = calibration.kept(program, time, target, "roofline") if memory.fits else None
        found = _prediction(program, target, wish, fitting, memory, "a roofline, not the TPU compiler")
        return dataclasses.replace(found, notes=(str(error), *found.notes))
    module = parse(answer.hlo) if isinstance(answer, Compiled) else None
    memory = memory_of(answer, module, program, target)
    time = step_time_of(module, program, target, wish) if module is not None and memory.fits else None
    found = _prediction(program, target, wish, time, memory, f"the TPU compiler ({answer.compiler})")
    return dataclasses.replace(found, compile_s=None if answer.from_cache else answer.compile_s)


def step_time_of(module: Module, program: Program, target: Target, wish: Wish) -> StepTime:
    """Return the time of a step, corrected by what this user's own runs took."""
    time = step_time(
        module,
        target,
        steps_per_execution=wish.steps_per_execution,
        input_examples_per_s=wish.input_examples_per_s,
        batch_size=batch_rows(program),
    )
    return calibration.kept(program, time, target)


def _prediction(
    program: Program, target: Target, wish: Wish, time: StepTime | None, memory: Memory | None, by: str
) -> Prediction:
    rows = batch_rows(program)
    return Prediction(
        program=program.name,
        mode=program.mode,
        target=target,
        batch_size=rows,
        predicted_by=by,
        memory=memory,
        time=time,
        flops=sum(op.flops for op in time.ops) if time else None,
        peak_flops_per_s=target.flops_per_s if target.chip else None,
        steps_per_execution=wish.steps_per_execution,
        cost=_cost(target, time, rows, wish) if time else None,
        notes=tuple(notes(program, target)),
    )


def _cost(target: Target, time: StepTime, rows: int | None, wish: Wish) -> Cost | None:
    return cost_of(target, time.step_s, rows, wish.examples, wish.epochs, wish.prices)


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
