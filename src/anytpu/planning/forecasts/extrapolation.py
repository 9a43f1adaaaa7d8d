"""`extrapolate_job`: predict a job that the compiler does not finish from two compilations with fewer blocks.

Idea: each of n equal blocks takes the same time. Two compilations with few blocks give the line, which is evaluated at
n. The memory lies on a line too. The schedule of the whole program bounds it, because a compiler that lacks memory
repeats computations.

Rule: the prediction says that it is extrapolated, and from which compilations. Its interval is wider, and never starts
below the floor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from anytpu import units
from anytpu.errors import PlanError, ProgramError
from anytpu.planning.compiler.export import traced_jaxpr
from anytpu.planning.costs.waits import add_waits
from anytpu.planning.floor import by_floor
from anytpu.planning.forecasts.compiled import predict_compiled
from anytpu.planning.jobs.job import PlanJob, for_devices
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import KINDS, Kind, MemoryPart, MemoryUse, OpTime, Prediction, StepTime
from anytpu.planning.records.target import Target
from anytpu.program.lowering import TRACING
from anytpu.program.makers import Repeats
from anytpu.program.passes import inlined
from anytpu.program.program import Program

EQUATION_S = 0.009
"""Seconds that the compiler takes for an equation of a traced step: the 13,623 of Gemma 3 1B with LoRA took 127 s on
two shared cores."""

OFF = 0.07
"""Assumed error of the part that was not compiled, as a logarithm, on top of the error of the compilations. The maximum
over ten models (benchmarks/depth_accuracy.py): 0.6 % in the median, 6.8 % at most; of the memory 0.05 % and 23 %."""

MEMORY_ERROR = " The memory was off by 0.05 % in the median of ten models, and by 23 % at most."
"""The measured error of an extrapolated memory (benchmarks/results/depth_accuracy.json)."""

BOUNDED = " A schedule of the whole program bounds the memory. It was off by 0.1 % in the median, and by 7.6 % at most."
"""The note of an extrapolated memory that a schedule bounds, with the errors over the ten models."""

BY_SCHEDULES = " Both were compiled up to their schedules, which have no cycles and no code."
"""The note of an extrapolation from two schedules."""

_PRICED_BY = "extrapolation"


def why_too_long(job: PlanJob, program: Program, settings: PlanSettings) -> str:
    """Return the reason not to compile all blocks of a job, or "".

    The time of the compilation is estimated from the number of equations of its trace.

    Args:
        job: the job.
        program: its program, with all blocks.
        settings: settings of every prediction, with the time limit.
    """
    repeats = job.repeats
    if repeats is None or not _is_deep(repeats):
        return ""
    whole_s, share = compile_s(program), choose_depths(repeats.count, repeats.period)[1] / repeats.count
    if not share * whole_s <= settings.timeout_s < whole_s:
        return ""
    return (
        f"A compilation of all {whole_s / EQUATION_S:,.0f} operations would take about {about_text(whole_s)}; the "
        f"limit is {settings.timeout_s:g} s. For a compilation of the whole program use timeout_s={2 * whole_s:.0f} "
        f"(--timeout {2 * whole_s:.0f})."
    )


def about_text(seconds: float) -> str:
    """Return a rough time, such as "a minute"."""
    return f"{seconds:.0f} s" if seconds < 45 else "a minute" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def compile_s(program: Program) -> float:
    """Return the estimated time of the compilation of a program, seconds."""
    return EQUATION_S * len(inlined(traced_jaxpr(program).jaxpr).eqns)


def _is_deep(repeats: Repeats) -> bool:
    """Return whether two shallow models have no more blocks together than the model."""
    return sum(choose_depths(repeats.count, repeats.period)) <= repeats.count


def extrapolate_job(
    job: PlanJob,
    batch_size: int | None,
    program: Program,
    target: Target,
    settings: PlanSettings,
    why: str,
    scheduled: Prediction | None,
) -> Prediction | None:
    """Predict a job from two compilations with fewer blocks; None if no blocks repeat, or neither ends.

    Args:
        job: a job that the compiler gave no answer for.
        batch_size: its batch, or None for its own.
        program: its program for this batch and the devices of the system.
        target: the system.
        settings: settings of every prediction of the plan; the time limit holds for each compilation.
        why: why it is not compiled, a sentence.
        scheduled: its prediction by its schedule, which bounds the memory; None if there is none.
    """
    repeats = job.repeats
    if repeats is None or not _is_deep(repeats):
        return None
    counts = choose_depths(repeats.count, repeats.period)
    settings.progress(f"compiling it with {counts[0]} and {counts[1]} of its {repeats.count} equal blocks instead")

    def program_with(blocks: int) -> Program:
        with TRACING:
            shallow = job.with_repeats(blocks).program(batch_size)
        return for_devices(shallow, target.devices)

    return extrapolate_programs(program, program_with, counts, repeats.count, target, settings, why, scheduled)


def extrapolate_programs(
    whole: Program,
    program_with: Callable[[int], Program],
    counts: tuple[int, int],
    count: int,
    target: Target,
    settings: PlanSettings,
    why: str,
    scheduled: Prediction | None = None,
) -> Prediction | None:
    """Predict a program from two compilations with fewer blocks; None if one has no answer.

    Args:
        whole: the program.
        program_with: returns the program with so many blocks.
        counts: the two numbers of blocks to compile.
        count: number of blocks of the program.
        target: the system.
        settings: settings of every prediction of the plan; the time limit holds for each compilation.
        why: why the whole program is not compiled, a sentence.
        scheduled: its prediction by its schedule, or None.
    """
    alone = dataclasses.replace(settings, is_trial=True, input_examples_per_s=None, host_call_s=0.0)
    try:
        few, more = (predict_compiled(program_with(blocks), target, alone) for blocks in counts)
    except (PlanError, ProgramError):
        return None
    floor = by_floor(whole, target, alone, why)
    result = extrapolate(few, more, counts, count, floor, scheduled)
    if result.time is None:
        return result
    return dataclasses.replace(result, time=add_waits(result.time, settings, floor.batch_size))


def choose_depths(count: int, period: int = 1) -> tuple[int, int]:
    """Return the two numbers of blocks to compile: a third of the layers, 4 to 8 of them, and half of that.

    Fewer than two layers say little: the first and the last have other neighbours than those between.

    Args:
        count: number of blocks.
        period: number of layers in a block.

    Example:
        >>> [choose_depths(count) for count in (6, 18, 24, 96)]
        [(2, 4), (3, 6), (4, 8), (4, 8)]
        >>> choose_depths(10, period=6)
        (1, 2)
    """
    layers = max(4, min(8, count * period // 3))
    more = max(2, -(-layers // period))
    return more // 2, more


def extrapolate(
    few: Prediction,
    more: Prediction,
    counts: tuple[int, int],
    count: int,
    floor: Prediction,
    scheduled: Prediction | None = None,
) -> Prediction:
    """Return the prediction for `count` blocks by the line through two compilations.

    Args:
        few: the compilation with fewer blocks.
        more: the compilation with more blocks.
        counts: number of blocks of each.
        count: number of blocks of the job.
        floor: the floor of the whole job, whose first note says why it was not compiled.
        scheduled: its prediction by its schedule, which bounds the memory; None if there is none.
    """
    assert few.memory is not None and more.memory is not None
    # 1. The distance along the line, in steps between the two compilations.
    further = count - counts[1]
    steps = further / (counts[1] - counts[0])
    # 2. The memory, by the schedule of the whole program if there is one.
    memory_note = BY_SCHEDULES if "schedule" in more.predicted_by else MEMORY_ERROR
    memory = _memory(few.memory, more.memory, steps)
    if scheduled is not None and scheduled.memory is not None:
        memory, memory_note = _bounded(memory, scheduled.memory), BOUNDED
    compiled = [result for result in (few, more, scheduled) if result is not None]
    compile_s = [result.compile_s for result in compiled if result.compile_s is not None]
    said = f"Extrapolated: {counts[0]} and {counts[1]} of {count} equal blocks were compiled"
    # 3. The time, of a program that fits.
    time = None
    if few.time is not None and more.time is not None and memory.fits:
        time = _time(few.time, more.time, further, steps, floor)
        of_each = " and ".join(units.format_seconds(result.step_s) for result in (few.time, more.time))
        said += f", which take {of_each} a step"
    at_least = f" It takes at least {units.format_seconds(floor.time.step_s)} a step." if floor.time else ""
    note = f"{said}. No code was made of the whole program, so the interval is wider.{memory_note}{at_least}"
    return dataclasses.replace(
        more,
        program=floor.program,
        time=time,
        memory=memory,
        predicted_by=f"{more.predicted_by}, extrapolated",
        compile_s=sum(compile_s) if compile_s else None,
        notes=(floor.notes[0], note, *more.notes),
        basis="extrapolated",
    )


def _time(few: StepTime, more: StepTime, further: int, steps: float, floor: Prediction) -> StepTime:
    least_s = floor.time.step_s if floor.time is not None else 0.0
    step_s = max(more.step_s + steps * max(more.step_s - few.step_s, 0.0), least_s)
    # The error grows with the share of the time that was not compiled.
    off = math.exp(OFF * (1 - more.step_s / step_s))
    low_s, high_s = (step_s * bound_s / more.step_s for bound_s in more.interval_s)
    ops = (*more.ops, *_further(few, more, further, steps))
    return dataclasses.replace(more, ops=ops, step_s=step_s, interval_s=(max(low_s / off, least_s), high_s * off))


def _further(few: StepTime, more: StepTime, further: int, steps: float) -> list[OpTime]:
    """Return one operation for each kind that takes time: all blocks that were not compiled, together."""
    blocks, ops = f"{further} further blocks", []
    for kind in KINDS:
        before, after = (_sums(time, kind) for time in (few, more))
        time_s, flops, moved, least_s = (steps * max(now - then, 0.0) for then, now in zip(before, after, strict=True))
        if time_s > 0:
            op = OpTime(blocks, "blocks", kind, time_s, flops=flops, bytes=moved, layer=blocks, priced_by=_PRICED_BY)
            ops.append(dataclasses.replace(op, least_s=least_s))
    return ops


def _sums(time: StepTime, kind: Kind) -> tuple[float, float, float, float]:
    """Return the seconds, FLOPs, bytes and minimum seconds of a kind; recomputed FLOPs do not count."""
    ops = [op for op in time.ops if op.kind == kind]
    flops = sum(op.flops for op in ops if not op.is_recomputed)
    return sum(op.time_s for op in ops), flops, sum(op.bytes for op in ops), sum(op.least_s for op in ops)


def _memory(few: MemoryUse, more: MemoryUse, steps: float) -> MemoryUse:
    few_parts = {part.kind: part.bytes for part in few.parts}

    def at(few_bytes: int, more_bytes: int) -> int:
        return round(more_bytes + steps * max(more_bytes - few_bytes, 0))

    return dataclasses.replace(
        more,
        peak_bytes=at(few.peak_bytes, more.peak_bytes),
        upper_bound_bytes=None,
        padding_waste_bytes=at(few.padding_waste_bytes, more.padding_waste_bytes),
        parts=tuple(MemoryPart(part.kind, at(few_parts.get(part.kind, 0), part.bytes)) for part in more.parts),
    )


def _bounded(line: MemoryUse, scheduled: MemoryUse) -> MemoryUse:
    """Return the memory on the line, if it lies between the schedule without code and with it; else the nearer bound.

    Programs share the code of equal operations, so the code on the line is a maximum.
    """
    code = tuple(part for part in line.parts if part.kind == "code")
    most_bytes = scheduled.peak_bytes + sum(part.bytes for part in code)
    if scheduled.peak_bytes <= line.peak_bytes <= most_bytes:
        return line
    if line.peak_bytes < scheduled.peak_bytes:
        return scheduled
    return dataclasses.replace(scheduled, peak_bytes=most_bytes, parts=(*scheduled.parts, *code))
