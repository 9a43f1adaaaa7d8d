"""`by_roofline` and `on_gpu`: predictions without the TPU's compiler."""

from __future__ import annotations

from anytpu.planning import calibration, gpu, roofline
from anytpu.planning.found import Found
from anytpu.planning.job import batch_rows
from anytpu.planning.target import Target
from anytpu.planning.wish import Wish
from anytpu.program.program import Program


def by_roofline(program: Program, target: Target, wish: Wish, why: str) -> Found:
    """Estimate a program from its own operations, and say why the compiler was not asked."""
    time, memory = roofline.roofline_time(
        program,
        target,
        steps_per_execution=wish.steps_per_execution,
        input_examples_per_s=wish.input_examples_per_s,
        batch_size=batch_rows(program),
    )
    fitting = calibration.kept(program, time, target, "roofline") if memory.fits else None
    return Found(fitting, memory, "a roofline, not the TPU compiler", target.flops_per_s, notes=(why,))


def on_gpu(program: Program) -> Found:
    """Predict a program on the GPU of this machine, from what its own compiler makes."""
    time, memory, peak_flops_per_s = gpu.predict(program)
    by = "this GPU's own compiler and a roofline"
    return Found(time if memory.fits else None, memory, by, peak_flops_per_s)
