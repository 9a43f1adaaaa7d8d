"""Ids as bags of rows: combiners are weights, and an id that is no row is -1.

Idea: "mean" is a sum with weights that add up to 1, "sqrtn" one whose squares do. Embeddings that are not combined are
bags of one id. So one lookup serves all features.

Rule: as in TensorFlow, the mean of weighted ids is divided by the sum of the weights, and an empty bag is 0.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array

from anytpu.embedding.rows import Bags

COMBINERS = ("sum", "mean", "sqrtn")


@dataclasses.dataclass(frozen=True)
class FeatureBags:
    """The bags of a feature, and the form of its result.

    Attributes:
        bags: the bags.
        shape: shape of the result without its last axis.
        is_bad: whether a bag has an id outside of the table other than -1, `(bags, 1)`.
    """

    bags: Bags
    shape: tuple[int, ...]
    is_bad: Array

    def result(self, sums: Array, is_marked: bool) -> Array:
        """Return the sums `(bags, width)` in the form of the feature.

        Args:
            sums: the sums.
            is_marked: whether bags with a bad id become NaN.
        """
        if is_marked:
            sums = jnp.where(self.is_bad, jnp.nan, sums)
        return sums.reshape(*self.shape, sums.shape[-1])


def bags_of(
    ids: Array, weights: Any, combiner: str | None, vocabulary_size: int, dtype: Any, offset: int = 0
) -> FeatureBags:
    """Return the bags of a feature.

    Args:
        ids: ids, `(batch,)` or `(batch, ids)`, or with more axes; -1 stands for no id.
        weights: the weight of each id, of the same shape, or None.
        combiner: "sum", "mean" or "sqrtn" along the last axis; None to combine nothing. Ids `(batch,)` are bags of one.
        vocabulary_size: number of ids.
        dtype: dtype of the table.
        offset: row of id 0 in the table.
    """
    is_bag = combiner is not None and ids.ndim > 1
    shape = ids.shape[:-1] if is_bag else ids.shape
    size = ids.shape[-1] if is_bag else 1
    if size == 0:  # JAX cannot infer the number of rows of an empty array.
        ids, weights, size = jnp.full((*shape, 1), -1, "int32"), None, 1
    ids = ids.reshape(-1, size)
    is_id, is_filling = _kinds(ids, vocabulary_size)
    ids = ids.astype("int32")
    is_bad = jnp.any(~is_id & ~is_filling, axis=1, keepdims=True)
    own = jnp.ones(ids.shape, dtype) if weights is None else jnp.asarray(weights).astype(dtype).reshape(-1, size)
    weights = _normalized(jnp.where(is_id, own, 0), combiner)
    return FeatureBags(Bags(jnp.where(is_id, ids + offset, -1), weights), shape, is_bad)


def _kinds(ids: Array, vocabulary_size: int) -> tuple[Array, Array]:
    """Return which ids are in the table, and which are -1.

    A cast to int32 first would make other ids of fractions, NaN and large integers.
    """
    if ids.dtype.itemsize < 4 and not jnp.issubdtype(ids.dtype, jnp.floating):
        ids = ids.astype("int32")
    is_id = (ids >= 0) & (ids < vocabulary_size)
    if jnp.issubdtype(ids.dtype, jnp.floating):
        is_id &= ids == jnp.floor(ids)
    is_unsigned = jnp.issubdtype(ids.dtype, jnp.unsignedinteger)
    return is_id, jnp.zeros_like(is_id) if is_unsigned else ids == -1


def _normalized(weights: Array, combiner: str | None) -> Array:
    """Return the weights `(bags, size)` of the sum that a combiner stands for."""
    if combiner in (None, "sum"):
        return weights
    powers = weights if combiner == "mean" else weights * weights
    total = jnp.sum(powers, axis=1, keepdims=True)
    total = total if combiner == "mean" else jnp.sqrt(jnp.where(total > 0, total, 1))
    return jnp.where(total == 0, 0, weights / jnp.where(total == 0, 1, total))
