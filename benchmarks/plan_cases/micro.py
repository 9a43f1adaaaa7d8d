"""Micro-benchmarks: one matrix product, one copy, one collective, as their published scripts wrote them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from plan_cases.case import Built
from plan_cases.placing import mesh_of, spec


def matmul(m: int, k: int, n: int, dtype: Any = jnp.bfloat16, out: Any = jnp.bfloat16, devices: int = 1) -> Built:
    """Multiply `(m, k)` by `(k, n)` on each device, sums in float32."""
    mesh = mesh_of(device=devices)

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, jnp.matmul(batch["a"], batch["b"], preferred_element_type=jnp.float32).astype(out)

    return step, ({}, {"a": spec(mesh, (m, k), dtype), "b": spec(mesh, (k, n), dtype)})


def copy(elements: int, dtype: Any = jnp.bfloat16, devices: int = 1) -> Built:
    """Copy an array from and to the main memory of each device."""
    mesh = mesh_of(device=devices)

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, jnp.copy(batch)

    return step, ({}, spec(mesh, (elements,), dtype))


def all_gather(shape: tuple[int, int, int], chips: tuple[int, ...], cores: int = 2, dtype: Any = jnp.float32) -> Built:
    """Gather an array of `shape` a device over the chips; each of a chip's cores gathers its own."""
    mesh = mesh_of(**{f"chip_{at}": side for at, side in enumerate(chips)}, core=cores)
    over = tuple(mesh.axis_names[: len(chips)])
    step = _over(mesh, lambda x: lax.all_gather(x, over, tiled=True))
    return step, ({}, spec(mesh, shape, dtype))


def all_reduce(side: int, devices: int, dtype: Any = jnp.bfloat16) -> Built:
    """Sum square matrices, one a device, over all devices."""
    mesh = mesh_of(ici=devices)
    return _over(mesh, lambda x: lax.psum(x, "ici")), ({}, spec(mesh, (side, side), dtype))


def _over(mesh: AbstractMesh, one: Callable[[jax.Array], jax.Array]) -> Callable[[Any, Any], tuple[Any, Any]]:
    mapped = jax.shard_map(one, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return lambda state, batch: (state, mapped(batch))
