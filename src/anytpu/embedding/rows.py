"""Lookups in a table, and the update of the rows that a batch uses.

Idea: a bag is a list of ids with weights; its result is the weighted sum of their rows. `look_up` computes the bags.
The backward pass does not make a gradient of the table's size. It sums the gradients of each id once, updates these
rows and their slots, and returns the new table. Keras assigns such a result in place of an optimizer's update
(`overwrite_with_gradient`). The table is updated in place, so a step costs as much as the batch has ids. On the CPU
both are kernels of anytpu-kernels, if it is installed (`cpu_calls.py`).

Rule: an id outside of the table stands for no row: it adds nothing and changes nothing. A row is updated once for a
step, by the sum of the gradients of all its ids. `jax.grad` with respect to a table returns the new table, so only
Keras's optimizers and code that expects it may use it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from anytpu.embedding.assigned_tables import BackwardPasses
from anytpu.embedding.cpu_calls import CpuCall
from anytpu.embedding.partitioned import mesh_for, partitioned_sums, partitioned_update
from anytpu.embedding.row_optimizers import RowOptimizer, corrected_rate, kernel_rule


@dataclasses.dataclass(frozen=True)
class TableArrays:
    """The arrays of a table in a step.

    Attributes:
        rows: the table, `(rows, width)`.
        slots: the slots of its optimizer, of the same shape.
        learning_rate: the learning rate, a scalar.
        step: number of the step, from 1, a scalar.
    """

    rows: Array
    slots: tuple[Array, ...]
    learning_rate: Array
    step: Array


@dataclasses.dataclass(frozen=True)
class Bags:
    """Bags of one size.

    Attributes:
        ids: row numbers, `(bags, size)`, int32; a number outside of the table stands for no row.
        weights: the weight of each row in the sum, `(bags, size)`, of the table's dtype.
    """

    ids: Array
    weights: Array


for _class, _names in ((TableArrays, ("rows", "slots", "learning_rate", "step")), (Bags, ("ids", "weights"))):
    jax.tree_util.register_dataclass(_class, data_fields=_names, meta_fields=())


def look_up(rows: Array, bags: Bags) -> Array:
    """Return the weighted sum of the rows of each bag, `(bags, width)`.

    Args:
        rows: the table, `(rows, width)`.
        bags: the bags.

    Example:
        >>> table = jnp.arange(6.0).reshape(3, 2)
        >>> look_up(table, Bags(jnp.array([[0, 2]]), jnp.array([[1.0, 0.5]]))).tolist()
        [[2.0, 3.5]]
    """
    mesh = mesh_for(rows.shape)
    if mesh is not None:
        return partitioned_sums(mesh, _plain_sums, rows, bags.ids, bags.weights)
    return _SUMS(rows, bags.ids, bags.weights)[0]


def _plain_sums(rows: Array, ids: Array, weights: Array) -> list[Array]:
    is_row = (ids >= 0) & (ids < rows.shape[0])
    used = rows.at[ids].get(mode="clip")
    # An infinite row that is not used must not become NaN by a weight of 0.
    return [jnp.sum(jnp.where(is_row[..., None], used * weights[..., None], 0), axis=1)]


def _foreign_sums(kernels: ModuleType, rows: Array, ids: Array, weights: Array) -> list[Array]:
    return [kernels.row_sums(rows, ids, weights)]


def _has_kernel_dtypes(*arrays: Array, **settings: Any) -> bool:
    del settings
    return all(array.dtype in (jnp.float32, jnp.int32) for array in arrays)


_SUMS = CpuCall(_plain_sums, _foreign_sums, _has_kernel_dtypes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def look_up_to_train(
    optimizer: RowOptimizer, passes: BackwardPasses, table: TableArrays, features: list[Bags]
) -> list[Array]:
    """Return `look_up` of each feature; the gradient with respect to the table is the table after the step.

    Args:
        optimizer: the optimizer of the table.
        passes: counts the backward passes.
        table: the table.
        features: bags of each feature that uses the table.
    """
    del optimizer, passes
    return [look_up(table.rows, bags) for bags in features]


def _forward(
    optimizer: RowOptimizer, passes: BackwardPasses, table: TableArrays, features: list[Bags]
) -> tuple[list[Array], Any]:
    return look_up_to_train(optimizer, passes, table, features), (table, features)


def _backward(
    optimizer: RowOptimizer, passes: BackwardPasses, residuals: Any, gradients: list[Array]
) -> tuple[TableArrays, list[Bags]]:
    passes.count += 1
    table, features = residuals
    rows, slots = updated(optimizer, table, features, gradients)
    new_table = TableArrays(rows, slots, jnp.zeros_like(table.learning_rate), table.step)
    return new_table, [_gradient_of(table.rows, *pair) for pair in zip(features, gradients, strict=True)]


def _gradient_of(rows: Array, bags: Bags, gradient: Array) -> Bags:
    """Return the gradient of the weights of bags; XLA removes it where the weights are constants."""
    is_row = (bags.ids >= 0) & (bags.ids < rows.shape[0])
    used = rows.at[bags.ids].get(mode="clip")
    weights = jnp.where(is_row, jnp.einsum("bsw,bw->bs", used, gradient.astype(rows.dtype)), 0)
    return Bags(np.zeros(bags.ids.shape, jax.dtypes.float0), weights)  # pyright: ignore[reportArgumentType]


look_up_to_train.defvjp(_forward, _backward)


def updated(
    optimizer: RowOptimizer, table: TableArrays, features: list[Bags], gradients: list[Array]
) -> tuple[Array, tuple[Array, ...]]:
    """Return the rows and the slots of a table after a step.

    Args:
        optimizer: the optimizer of the table.
        table: the table before the step.
        features: bags of each feature that uses the table.
        gradients: gradient of the sums of each feature, `(bags, width)`.
    """
    triples = [
        (bags.ids, bags.weights, gradient.astype(table.rows.dtype))
        for bags, gradient in zip(features, gradients, strict=True)
    ]
    arrays, others = [table.rows, *table.slots], [table.learning_rate, table.step]
    mesh = mesh_for(table.rows.shape)
    # Clipping by the norm needs the gradients of the rows of all devices.
    if mesh is not None and not dict(optimizer.settings).get("clipnorm"):
        rows, *slots = partitioned_update(mesh, functools.partial(_new_rows, optimizer), arrays, others, triples)
    else:
        rows, *slots = _UPDATE(*arrays, *others, *itertools.chain(*triples), optimizer=optimizer)
    return rows, tuple(slots)


def _plain_update(*operands: Array, optimizer: RowOptimizer) -> list[Array]:
    arrays, rate, step, triples = _parts(operands, optimizer)
    return _new_rows(optimizer, arrays, (rate, step), triples)


def _new_rows(
    optimizer: RowOptimizer, arrays: Sequence[Array], others: Sequence[Array], triples: Sequence[tuple]
) -> list[Array]:
    rate, step = others
    ids, sums = summed_by_row(arrays[0], [Bags(*triple[:2]) for triple in triples], [triple[2] for triple in triples])
    rows, *slots = (array.at[ids].get(mode="clip", indices_are_sorted=True) for array in arrays)
    rows, slots = optimizer.update(rows, tuple(slots), sums, rate, step)
    return [
        array.at[ids].set(part, mode="drop", indices_are_sorted=True, unique_indices=True)
        for array, part in zip(arrays, (rows, *slots), strict=True)
    ]


def _foreign_update(kernels: ModuleType, *operands: Array, optimizer: RowOptimizer) -> list[Array]:
    arrays, rate, step, triples = _parts(operands, optimizer)
    rule = kernel_rule(optimizer)
    assert rule is not None
    limit = dict(optimizer.settings).get("clipvalue") or math.inf
    rate = corrected_rate(optimizer, rate, step)
    return kernels.row_update(arrays, rate, triples, rule=rule[0], numbers=rule[1], limit=limit)


def _has_update_kernel(*operands: Array, optimizer: RowOptimizer) -> bool:
    return kernel_rule(optimizer) is not None and _has_kernel_dtypes(*operands)


def _parts(operands: Sequence[Array], optimizer: RowOptimizer) -> tuple[list[Array], Array, Array, list[tuple]]:
    """Return table and slots, learning rate, step, and for each feature ids, weights and gradients."""
    arrays, (rate, step, *rest) = operands[: 1 + len(optimizer.slots)], operands[1 + len(optimizer.slots) :]
    return list(arrays), rate, step, [tuple(rest[i : i + 3]) for i in range(0, len(rest), 3)]


_UPDATE = CpuCall(_plain_update, _foreign_update, _has_update_kernel)


def summed_by_row(rows: Array, features: list[Bags], gradients: list[Array]) -> tuple[Array, Array]:
    """Return the ids of all features, each once, and the sum of the gradients of each.

    Args:
        rows: the table, `(rows, width)`.
        features: bags of each feature.
        gradients: gradient of the sums of each feature, `(bags, width)`.

    Returns:
        Ids in ascending order, `(ids,)`, and the sums, `(ids, width)`. There are as many as the features have ids. The
        last ones stand for ids that occur again or are no row: they are beyond the table, and all different.
    """
    # 1. List all ids with their weights and bags. What stands for no row gets the first id beyond the table.
    size = rows.shape[0]
    ids, weights, bag_of = [], [], []
    first = 0
    for bags in features:
        # A weight of 0 marks an id that fills a bag up.
        is_row = (bags.ids >= 0) & (bags.ids < size) & (bags.weights != 0)
        ids.append(jnp.where(is_row, bags.ids, size).reshape(-1))
        weights.append(jnp.where(is_row, bags.weights, 0).reshape(-1))
        bag_of.append(first + np.repeat(np.arange(len(bags.ids), dtype="int32"), bags.ids.shape[1]))
        first += len(bags.ids)
    # 2. Sort by id, so that the gradients of each id are adjacent.
    places = jnp.arange(sum(map(len, ids)), dtype="int32")
    all_ids, order = jax.lax.sort((jnp.concatenate(ids), places), num_keys=1)
    gradient = jnp.concatenate(gradients).astype(rows.dtype)
    each = gradient[jnp.concatenate(bag_of)[order]] * jnp.concatenate(weights)[order][:, None]
    # 3. Add those of each id.
    is_first = jnp.concatenate([jnp.ones(all_ids[:1].shape, bool), all_ids[1:] != all_ids[:-1]])
    segment = jnp.cumsum(is_first.astype("int32")) - 1
    count = len(all_ids)
    sums = jax.ops.segment_sum(each, segment, count, indices_are_sorted=True)
    # 4. The entries that are left get ids beyond the table, all different: an update drops them, and its ids are
    # unique.
    beyond = size + jnp.arange(count, dtype="int32")
    unique = beyond.at[segment].set(all_ids, indices_are_sorted=True)
    return jnp.where(unique >= size, beyond, unique), sums
