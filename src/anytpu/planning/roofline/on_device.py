"""`estimate_on`: a roofline over what the compiler of devices at hand makes of a program.

Rule: XLA compiles in this process; nothing of the program is run.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytpu.errors import PlanError
from anytpu.planning.hlo import parse
from anytpu.planning.records import Buffer, Memory, OpTime
from anytpu.planning.roofline.compiled import compiled_ops, hidden_products
from anytpu.planning.roofline.pricing import Machine
from anytpu.planning.roofline.share import module_of
from anytpu.program.lowering import one_device_step
from anytpu.program.program import Layout, Program


def estimate_on(program: Program, devices: list[Any], machine: Machine) -> tuple[list[OpTime], list[str], Memory, str]:
    """Return what each kernel takes, what could not be priced, the memory of a device, and the type of most products.

    Args:
        program: what to estimate.
        devices: JAX devices.
        machine: one of them, as a roofline knows it.

    Raises:
        PlanError: XLA could not compile the program.
    """
    lowered = _lowered(program, devices)
    hidden = hidden_products(module_of(lowered), machine)
    shared = {path: {dtype: flops / len(devices) for dtype, flops in each.items()} for path, each in hidden.items()}
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise PlanError(
            f"XLA could not compile {program.name!r} for {devices[0].device_kind}: {str(error).splitlines()[0]}"
        ) from error
    ops, unpriced = compiled_ops(parse(compiled.as_text() or ""), machine, shared)
    memory = _memory(program, compiled.memory_analysis(), _limit_bytes(devices[0]), len(devices))
    return ops, unpriced, memory, _main_type(shared)


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
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _main_type(products: dict[str, dict[str, float]]) -> str:
    """Return the type that most products are computed in."""
    flops: dict[str, float] = {}
    for each in products.values():
        for dtype, count in each.items():
            flops[dtype] = flops.get(dtype, 0.0) + count
    return max(flops, key=lambda dtype: flops[dtype], default="bf16")
