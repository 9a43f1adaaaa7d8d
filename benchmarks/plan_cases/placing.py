"""Where arrays lie: specs with shardings over a mesh that has no devices yet."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

REPLICATED = P()
"""Every device holds the whole array."""


def mesh_of(**sizes: int) -> AbstractMesh:
    """Return a mesh of the axes and sizes given, in their order."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def spec(mesh: AbstractMesh, shape: tuple[int, ...], dtype: Any, *axes: Any) -> jax.ShapeDtypeStruct:
    """Return the spec of an array whose dimensions are split over `axes`, None for a whole one."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))


def placed(mesh: AbstractMesh, tree: Any, axes: Any = REPLICATED) -> Any:
    """Return the specs of a tree, each leaf split as `axes` says: one `PartitionSpec`, or a tree of them."""
    if isinstance(axes, P):
        axes = jax.tree.map(lambda _: axes, tree)
    return jax.tree.map(
        lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, at)), tree, axes
    )
