"""Lookups and updates on a mesh of devices, each of which holds some rows of the table.

Idea: every device gets the ids of all bags, which are small, and sums the rows that it holds. The partial sums of a bag
are added up on the device of its example. One row travels for each bag, not for each id. For the update
every device gets the gradients of all bags, and updates its own rows. XLA's partitioner alone would add up a row for
each id, five times in a step of Adam.

Rule: the results are those of the form for one device, within rounding: partial sums are added in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.sharding import AxisType, PartitionSpec

from anytpu.sharding import SPLIT_TABLES

PlainForm = Callable[..., Sequence[Array]]


def mesh_for(shape: tuple[int, ...]) -> Any:
    """Return the mesh over which a table's rows are split while a step is traced for it; None for one device.

    Args:
        shape: shape of the table.
    """
    mesh = jax.sharding.get_abstract_mesh()
    is_split = shape in SPLIT_TABLES.get() and mesh.size > 1
    return mesh if is_split and all(kind == AxisType.Auto for kind in mesh.axis_types) else None


def partitioned_sums(mesh: Any, plain: PlainForm, rows: Array, ids: Array, weights: Array) -> Array:
    """Return the weighted sum of the rows of each bag, `(bags, width)`, split over the devices if they divide the bags.

    Args:
        mesh: the mesh.
        plain: the form for one device.
        rows: the table.
        ids: row numbers, `(bags, size)`.
        weights: their weights.
    """
    axes = mesh.axis_names
    is_divided = len(ids) % mesh.size == 0

    def local(rows: Array, ids: Array, weights: Array) -> Array:
        # Ids of other devices' rows are outside of this part, and so stand for no row.
        (sums,) = plain(rows, ids - lax.axis_index(axes) * len(rows), weights)
        if not is_divided:
            return lax.psum(sums, axes)
        return lax.psum_scatter(sums, axes, scatter_dimension=0, tiled=True)

    split, whole = PartitionSpec(axes), PartitionSpec()
    result = split if is_divided else whole
    return _over(mesh, local, (split, whole, whole), result)(rows, ids, weights)


def partitioned_update(
    mesh: Any, update: PlainForm, arrays: Sequence[Array], others: Sequence[Array], triples: Any
) -> Sequence[Array]:
    """Return a table and its slots after a step.

    Args:
        mesh: the mesh.
        update: the form for one device, `update(arrays, others, triples)`.
        arrays: the table and its slots.
        others: scalars.
        triples: ids, weights and gradients of each feature.
    """
    axes = mesh.axis_names

    def local(arrays: Any, others: Any, triples: Any) -> Any:
        first = lax.axis_index(axes) * len(arrays[0])
        return tuple(update(arrays, others, [(ids - first, *rest) for ids, *rest in triples]))

    split, whole = PartitionSpec(axes), PartitionSpec()
    return _over(mesh, local, (split, whole, whole), split)(tuple(arrays), tuple(others), triples)


def _over(mesh: Any, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
