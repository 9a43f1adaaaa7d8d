"""Plans for the NVIDIA GPU of this machine, with its own compiler.

Idea: where a GPU is at hand, XLA compiles the program for it, in this process. What it made of it (its fusions, its
memory) is exact; what each kernel takes is a roofline with the peak rates of that model of GPU.

Rule: nothing of the program is run. The rates are those of data sheets, and nothing here was fitted on measurements of
GPUs: the interval is wide until runs of this machine correct it (`calibration.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytpu import _env
from anytpu.errors import PlanError, TPUNotFoundError
from anytpu.planning import calibration
from anytpu.planning.gpus import Gpu, gpu_of_kind
from anytpu.planning.hlo import parse
from anytpu.planning.records import Buffer, Memory, StepTime
from anytpu.planning.roofline.compiled import compiled_ops, hidden_products
from anytpu.planning.roofline.pricing import Machine
from anytpu.planning.roofline.share import module_of
from anytpu.planning.target import Target
from anytpu.program.lowering import one_device_step
from anytpu.program.program import Layout, Program

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


def predict(program: Program, devices: list[Any] | None = None) -> tuple[StepTime, Memory, float]:
    """Predict a step on this machine's GPUs.

    Args:
        program: what to predict.
        devices: JAX devices; None is all GPUs of this machine.

    Returns:
        The time of a step, the memory of one GPU, and its peak rate for the type that most products are computed in.

    Raises:
        TPUNotFoundError: JAX finds no GPU.
        PlanError: XLA could not compile the program, or the peak rates of this GPU are not known.
    """
    devices = _devices() if devices is None else devices
    time, memory, rate = predict_on(program, devices, gpu_of_kind(devices[0].device_kind))
    return calibration.kept(program, time, _target(devices), "gpu"), memory, rate


def predict_on(program: Program, devices: list[Any], gpu: Gpu) -> tuple[StepTime, Memory, float]:
    """Predict a step on devices whose rates are given; see `predict`."""
    lowered = _lowered(program, devices)
    machine = machine_of(gpu)
    hidden = hidden_products(module_of(lowered), machine)
    shared = {path: {t: flops / len(devices) for t, flops in each.items()} for path, each in hidden.items()}
    limit_bytes = _limit_bytes(devices[0])
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise PlanError(
            f"XLA could not compile {program.name!r} for {devices[0].device_kind}: {str(error).splitlines()[0]}"
        ) from error
    ops, unpriced = compiled_ops(parse(compiled.as_text() or ""), machine, shared)
    step_s = sum(op.time_s for op in ops)
    time = StepTime(
        tuple(ops),
        step_s,
        (step_s / WIDTH, step_s * WIDTH),
        (*unpriced, "the host's dispatch and the input pipeline: not in a roofline"),
        (_EVIDENCE,),
    )
    return time, _memory(program, compiled.memory_analysis(), limit_bytes, len(devices)), _main_rate(shared, machine)


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
            "pip install 'anytpu[gpu]', or plan for a TPU, such as tpu='v5e-8', for which none has to be at hand"
        ) from error


def _target(devices: list[Any]) -> Target:
    count, kind = len(devices), devices[0].device_kind
    return Target("gpu", None, count, count, 1, (count, 1, 1), kind, aliases=("local",), device_kind=kind)


def _lowered(program: Program, devices: list[Any]) -> jax.stages.Lowered:
    mesh = Mesh(np.array(devices), ("device",))

    def placed(leaf: jax.ShapeDtypeStruct, layout: Layout) -> jax.ShapeDtypeStruct:
        divides = layout.axis is not None and leaf.shape[layout.axis] % len(devices) == 0
        spec = PartitionSpec(*[None] * (layout.axis or 0), "device") if divides else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    whole = NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), program.state)
    leaves = [placed(leaf, layout) for leaf, layout in program.leaves()]
    batch = jax.tree.unflatten(jax.tree.structure(program.batch), leaves)
    step = one_device_step(program)
    # A fresh function: jit's cache would hand back what another backend traced.
    run = jax.jit(lambda state, batch: step(state, batch), donate_argnums=0, out_shardings=(whole, None))
    return run.lower(state, batch)


def _memory(program: Program, sizes: Any, limit_bytes: int, devices: int) -> Memory:
    upper = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    upper += sizes.temp_size_in_bytes + sizes.generated_code_size_in_bytes
    # The temporaries share one allocation already, so their sum with the rest is what is allocated.
    needed = upper
    names = program.state_names or ("",) * len(jax.tree.leaves(program.state))
    state = [_buffer(name, "state", leaf, 1) for name, leaf in zip(names, jax.tree.leaves(program.state), strict=True)]
    batch = [_buffer("batch", "batch", leaf, devices if lay.axis is not None else 1) for leaf, lay in program.leaves()]
    temporary = Buffer("temporaries", "temporary", sizes.temp_size_in_bytes, sizes.temp_size_in_bytes, "")
    buffers = sorted([*state, *batch, temporary], key=lambda one: -one.bytes)[:50]
    said = "" if needed <= limit_bytes else "more than the memory of this GPU"
    return Memory(needed, limit_bytes, upper, tuple(buffers), said=said)


def _buffer(name: str, use: Any, leaf: jax.ShapeDtypeStruct, parts: int) -> Buffer:
    size = leaf.size * leaf.dtype.itemsize // parts
    return Buffer(name, use, size, size, f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]")


def _limit_bytes(device: Any) -> int:
    stats = device.memory_stats() or {}
    return int(stats.get("bytes_limit", 0)) or _host_bytes()


def _host_bytes() -> int:
    """Return the memory of the host, in which a device without one of its own computes."""
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _main_rate(products: dict[str, dict[str, float]], machine: Machine) -> float:
    flops: dict[str, float] = {}
    for each in products.values():
        for dtype, count in each.items():
            flops[dtype] = flops.get(dtype, 0.0) + count
    return machine.rate(max(flops, key=lambda dtype: flops[dtype], default="bf16"))
