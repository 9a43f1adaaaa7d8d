"""Plans for the NVIDIA GPU of this machine, with its own compiler.

Idea: where a GPU is at hand, XLA compiles the program for it, in this process. What it made of it (its fusions, its
memory) is exact; what each kernel takes is a roofline with the peak rates of that model of GPU.

Rule: nothing of the program is run. The rates are those of data sheets, and nothing here was fitted on measurements of
GPUs: the interval is wide until runs of this machine correct it (`calibration.py`).
"""

from __future__ import annotations

from typing import Any

import jax

from anytpu import _env
from anytpu.errors import TPUNotFoundError
from anytpu.planning.gpus import Gpu, gpu_of_kind
from anytpu.planning.records import Memory, StepTime
from anytpu.planning.roofline.on_device import estimate_on
from anytpu.planning.roofline.pricing import Machine
from anytpu.planning.target import Target
from anytpu.program.program import Program

WIDTH = 2.0
"""The interval is from the estimate divided by this to the estimate times this."""

_PRODUCT_SHARE, _MEMORY_SHARE, _KERNEL_S = 0.6, 0.8, 3e-6
_EVIDENCE = (
    "a roofline over the kernels that XLA made for this GPU, with the peak rates of its data sheet; not fitted on "
    "measurements of GPUs"
)


def target() -> Target:
    """Return this machine's GPUs as a system to plan for.

    Raises:
        TPUNotFoundError: JAX finds none.
        PlanError: the peak rates of this model are not known.
    """
    devices = _devices()
    gpu_of_kind(devices[0].device_kind)
    return _target(devices)


def predict(
    program: Program, devices: list[Any] | None = None, *, steps_per_execution: int = 1
) -> tuple[StepTime, Memory, float]:
    """Predict a step on this machine's GPUs.

    Args:
        program: what to predict.
        devices: JAX devices; None is all GPUs of this machine.
        steps_per_execution: steps that one call of the host starts.

    Returns:
        The time of a step, the memory of one GPU, and its peak rate for the type that most products are computed in.

    Raises:
        TPUNotFoundError: JAX finds no GPU.
        PlanError: XLA could not compile the program, or the peak rates of this GPU are not known.
    """
    devices = _devices() if devices is None else devices
    return predict_on(program, devices, gpu_of_kind(devices[0].device_kind), steps_per_execution=steps_per_execution)


def predict_on(
    program: Program, devices: list[Any], gpu: Gpu, *, steps_per_execution: int = 1
) -> tuple[StepTime, Memory, float]:
    """Predict a step on devices whose rates are given; see `predict`."""
    machine = machine_of(gpu)
    ops, unpriced, memory, main = estimate_on(program, devices, machine)
    step_s = sum(op.time_s for op in ops)
    often = "" if steps_per_execution == 1 else f", once in {steps_per_execution} steps"
    host = f"the host's dispatch{often}: not in a roofline"
    time = StepTime(tuple(ops), step_s, (step_s / WIDTH, step_s * WIDTH), (*unpriced, host), (_EVIDENCE,))
    return time, memory, machine.rate(main)


def machine_of(gpu: Gpu) -> Machine:
    """Return a GPU as a roofline knows it."""
    rates = {"bf16": gpu.bf16_flops_per_s, "f16": gpu.f16_flops_per_s, "f32": gpu.f32_flops_per_s}
    return Machine(
        {**rates, "tf32": gpu.tf32_flops_per_s},
        gpu.hbm_bytes_per_s,
        _PRODUCT_SHARE,
        _MEMORY_SHARE,
        _KERNEL_S,
        multiplies_f32_as="tf32",
    )


def _devices() -> list[Any]:
    _env.prepare_jax()
    try:
        return jax.devices("gpu")
    except RuntimeError as error:
        raise TPUNotFoundError(
            "tpu='gpu' plans for the NVIDIA GPU of this machine, and JAX finds none here: install the GPU's driver and "
            "pip install 'anytpu[gpu]', or plan for a TPU, such as tpu='v5e-8' (--tpu v5e-8), for which none has to be "
            "at hand"
        ) from error


def _target(devices: list[Any]) -> Target:
    count, kind = len(devices), devices[0].device_kind
    return Target("gpu", None, count, count, 1, (count, 1, 1), kind, aliases=("local",), device_kind=kind)
