"""`by_roofline` and `on_gpu`: predictions without the TPU's compiler."""

from __future__ import annotations

from anytpu.planning import calibration, gpu, roofline
from anytpu.planning.found import Found
from anytpu.planning.target import Target
from anytpu.planning.wish import Wish
from anytpu.program.program import Program


def by_roofline(program: Program, target: Target, wish: Wish, why: str) -> Found:
    """Estimate a program from its own operations, and say why the compiler was not asked."""
    time, memory = roofline.roofline_time(program, target, steps_per_execution=wish.steps_per_execution)
    fitting = calibration.kept(program, time, target, wish, "roofline") if memory.fits else None
    return Found(fitting, memory, "a roofline, not the TPU compiler", target.flops_per_s, notes=(why,))


def on_gpu(program: Program, target: Target, wish: Wish) -> Found:
    """Predict a program on the GPU of this machine, from what its own compiler makes."""
    time, memory, peak_flops_per_s = gpu.predict(program, steps_per_execution=wish.steps_per_execution)
    by = "this GPU's own compiler and a roofline"
    fitting = calibration.kept(program, time, target, wish, "gpu") if memory.fits else None
    return Found(fitting, memory, by, peak_flops_per_s)
