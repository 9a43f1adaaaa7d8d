"""`by_floor`: the minimum time and memory of a step on a TPU, without the TPU's compiler.

Idea: the products of a step cannot be faster than the peak of the matrix units, and its HBM traffic cannot be faster
than the bandwidth. The longer of the two times is a floor.

Rule: it says that it is a floor. Layouts, vector work, the network and the host are not included. The time above the
floor is not known, so the interval has no upper bound. A step is traced once; the minimum for each device of any system
follows by arithmetic. Global shapes are divided once by the number of devices that share the work.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax

from anytpu import units
from anytpu.planning.costs.waits import add_input_wait
from anytpu.planning.floor.work import Flops, RequiredWork, work_of
from anytpu.planning.jobs.job import batch_rows
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.memory.arguments import arguments_of, buffer_of
from anytpu.planning.memory.parts import parts_of
from anytpu.planning.records import Buffer, MemoryUse, OpTime, Prediction, StepTime
from anytpu.planning.records.target import Target, limit_bytes
from anytpu.program.program import Program

PREDICTED_BY = "a floor from FLOPs and bytes, not the TPU compiler"
"""Name of this method in a prediction."""

NOTE = (
    "This is a floor, not a forecast: a step takes at least so long, costs at least so much, and needs at least the "
    "memory of its state, batch and outputs. How much more, only the TPU compiler can tell."
)
"""Note on every floor."""


@dataclasses.dataclass(frozen=True)
class DeviceWork:
    """FLOPs and bytes that a step requires of one device.

    Attributes:
        flops: FLOPs of the products, by the multiplied type.
        crossing_bytes: minimum HBM traffic, bytes: arguments read and results written.
        memory: buffers in memory at the end of the step: state, batch and outputs.
    """

    flops: Flops
    crossing_bytes: int
    memory: tuple[Buffer, ...]


def by_floor(program: Program, target: Target, settings: PlanSettings, why: str) -> Prediction:
    """Return the minimum time and memory of a step on a system.

    Args:
        program: the program; nothing of it is run.
        target: a slice of TPU chips.
        settings: settings of every prediction of the plan.
        why: a sentence that says why the compiler gave no answer.

    Raises:
        ProgramError: the step cannot be traced.

    Example:
        >>> spec = jax.ShapeDtypeStruct((8192, 8192), "bfloat16")
        >>> program = Program("product", lambda w, x: (w, x @ w), spec, spec, ROWS)
        >>> time = by_floor(program, target_named("v5e-8"), PlanSettings(), "libtpu is not installed.").time
        >>> round(8 * 197e12 * time.step_s / (2 * 8192**3), 6), time.interval_s[1]
        (1.0, inf)
    """
    # 1. The minimum work of one device.
    work, limit, rows = work_of(program), limit_bytes(target), batch_rows(program)
    least = least_of(work, target)
    peak_bytes = sum(buffer.bytes for buffer in least.memory)
    buffers = tuple(sorted(least.memory, key=lambda buffer: -buffer.bytes)[:50])
    memory = MemoryUse(peak_bytes, limit, buffers=buffers, parts=parts_of(peak_bytes, 0, program, target))
    # 2. The time of a step that fits.
    time = _time(least, target, work.traced.uncounted) if memory.fits else None
    if time is not None:
        time = add_input_wait(time, settings.input_examples_per_s, rows)
    # 3. The peak for the utilisation is that of the type with the most FLOPs.
    main = max(least.flops, key=lambda dtype: least.flops[dtype], default="bf16")
    return Prediction(
        program=program.name,
        mode=program.mode,
        target=target,
        batch_size=rows,
        predicted_by=PREDICTED_BY,
        memory=memory,
        time=time,
        peak_flops_per_s=rate_of(main, target),
        steps_per_execution=settings.steps_per_execution,
        notes=(why, NOTE, *work.notes),
        basis="floor",
    )


def rate_of(dtype: str, target: Target) -> float:
    """Return the peak rate of one device for a type of products, FLOP/s.

    Example:
        >>> rate_of("bf16", target_named("v5e-8")), rate_of("s8", target_named("v5e-8"))
        (197000000000000.0, 393000000000000.0)
    """
    chip, (kind, _, passes) = target.chip, dtype.partition("x")
    eight = {"s8": chip.int8_ops_per_s, "s4": chip.int8_ops_per_s, "f8": chip.fp8_flops_per_s}.get(kind)
    rate = eight / chip.replicas if eight else target.flops_per_s
    # No data sheet states a rate for 4 bits: twice that for 8 is the most that halving the width can give.
    return (2 * rate if kind == "s4" else rate) / int(passes or 1)


def least_step_s(work: RequiredWork, target: Target) -> float:
    """Return the minimum time of a step on a system, seconds, whether it fits there or not."""
    return max(_parts(least_of(work, target), target))


def _parts(least: DeviceWork, target: Target) -> tuple[float, float]:
    """Return the time of the products at the peak of the matrix units, and of the bytes at the peak of the memory,
    seconds."""
    computing_s = sum(count / rate_of(dtype, target) for dtype, count in least.flops.items())
    return computing_s, least.crossing_bytes / target.hbm_bytes_per_s


def _time(least: DeviceWork, target: Target, uncounted: tuple[str, ...]) -> StepTime:
    computing_s, moving_s = _parts(least, target)
    is_computing = computing_s >= moving_s
    least_s = max(computing_s, moving_s)
    op = OpTime(
        "the whole step",
        "floor",
        "matmul" if is_computing else "memory",
        least_s,
        flops=least.flops.total(),
        bytes=least.crossing_bytes,
        bound="compute" if is_computing else "memory",
        priced_by="floor",
        least_s=least_s,
    )
    evidence = (
        f"The products of the step take {units.format_seconds(computing_s)} at the peak of the matrix units, and its "
        f"{units.format_bytes(least.crossing_bytes)} of arguments and results {units.format_seconds(moving_s)} at the "
        "peak of HBM. The longer of the two is the floor; layouts, vector work, the network and the host come on top."
    )
    return StepTime((op,), op.time_s, (op.time_s, math.inf), uncounted, (evidence,))


def least_of(work: RequiredWork, target: Target) -> DeviceWork:
    """Return the FLOPs and bytes that a step requires of one device of a system."""
    program = work.program
    each = 1 / target.devices if is_split(program) else 1.0
    arguments, states = arguments_of(program, target), len(jax.tree.leaves(program.state))
    outputs = tuple(buffer_of(f"output/{place}", "output", leaf, each) for place, leaf in enumerate(work.outputs))
    made = (*arguments[:states], *outputs)
    crossing_bytes = _sum(arguments, work.traced.is_read) + _sum(made, work.traced.is_written)
    split = Flops({dtype: count * each for dtype, count in work.traced.flops.items()})  # type: ignore[arg-type]
    return DeviceWork(split, crossing_bytes, (*arguments, *outputs))


def is_split(program: Program) -> bool:
    """Return whether the devices share the work of a program; otherwise each does all of it."""
    has_rows = any(layout.axis is not None for _, layout in program.leaves())
    return program.placement is not None or program.replicas is not None or has_rows


def _sum(buffers: Sequence[Buffer], counts: Sequence[bool]) -> int:
    return sum(buffer.bytes for buffer, is_counted in zip(buffers, counts, strict=True) if is_counted)
