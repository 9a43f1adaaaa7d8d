"""Optimizers as the recipes had them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


class Optimizer(NamedTuple):
    """How weights are updated: `start(weights) -> slots`, `update(weights, gradients, slots) -> (weights, slots)`.

    Slots hold what is kept from step to step; learning rates are constants. `axes(of weights)` says how slots are split
    where the weights are.
    """

    start: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]
    axes: Callable[[Any], Any] = lambda axes: axes


def momentum(rate: float = 0.1, decay: float = 0.9) -> Optimizer:
    """Stochastic gradient descent with momentum."""

    def update(weights: Any, gradients: Any, slots: Any) -> tuple[Any, Any]:
        slots = jax.tree.map(lambda m, g: decay * m + g, slots, gradients)
        return jax.tree.map(lambda w, m: w - rate * m, weights, slots), slots

    return Optimizer(_zeros, update)


def lars(rate: float = 10.0, decay: float = 0.9, weight_decay: float = 1e-4) -> Optimizer:
    """Layer-wise adaptive rates (LARS); vectors (biases, BatchNorm) take plain momentum."""

    def step_of(weight: jax.Array, gradient: jax.Array) -> jax.Array:
        if weight.ndim < 2:
            return rate * gradient
        norm, gradient_norm = jnp.linalg.norm(weight.ravel()), jnp.linalg.norm(gradient.ravel())
        trust = jnp.where(norm * gradient_norm > 0, 0.001 * norm / (gradient_norm + weight_decay * norm), 1.0)
        return rate * trust * (gradient + weight_decay * weight)

    def update(weights: Any, gradients: Any, slots: Any) -> tuple[Any, Any]:
        slots = jax.tree.map(lambda m, w, g: decay * m + step_of(w, g), slots, weights, gradients)
        return jax.tree.map(jnp.subtract, weights, slots), slots

    return Optimizer(_zeros, update)


def adam(
    rate: float = 3e-5,
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: float = 0.1,
    is_lamb: bool = False,
    first_dtype: Any = jnp.float32,
) -> Optimizer:
    """AdamW, the first moment kept as `first_dtype`; with `is_lamb` each weight's step is scaled to its norm (LAMB)."""

    def step_of(weight: jax.Array, m: jax.Array, v: jax.Array, count: jax.Array) -> jax.Array:
        direction = (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + 1e-6) + weight_decay * weight
        if not is_lamb:
            return rate * direction
        norm, step_norm = jnp.linalg.norm(weight.ravel()), jnp.linalg.norm(direction.ravel())
        return rate * jnp.where(norm * step_norm > 0, norm / step_norm, 1.0) * direction

    def update(weights: Any, gradients: Any, slots: Any) -> tuple[Any, Any]:
        count = slots["count"] + 1
        m = jax.tree.map(lambda m, g: (b1 * m + (1 - b1) * g).astype(first_dtype), slots["m"], gradients)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, slots["v"], gradients)
        at = count.astype(jnp.float32)
        weights = jax.tree.map(lambda w, m, v: w - step_of(w, m, v, at).astype(w.dtype), weights, m, v)
        return weights, {"m": m, "v": v, "count": count}

    def start(weights: Any) -> Any:
        m = jax.tree.map(lambda w: jnp.zeros_like(w, first_dtype), weights)
        return {"m": m, "v": _zeros(weights), "count": jnp.zeros((), jnp.int32)}

    return Optimizer(start, update, lambda axes: {"m": axes, "v": axes, "count": P()})


def adafactor(rate: float = 5e-5) -> Optimizer:
    """Adafactor without momentum: second moments of a matrix are kept as the means of its rows and of its columns."""

    def start(weights: Any) -> Any:
        return {
            "rows": jax.tree.map(lambda w: jnp.zeros(w.shape[:-1] if w.ndim > 1 else w.shape), weights),
            "columns": jax.tree.map(lambda w: jnp.zeros((*w.shape[:-2], w.shape[-1]) if w.ndim > 1 else ()), weights),
        }

    def axes(of: Any) -> Any:
        columns = jax.tree.map(lambda at: P(*at[:-2], *at[-1:]) if len(at) > 1 else P(), of)
        return {"rows": jax.tree.map(lambda at: P(*at[:-1]) if len(at) > 1 else at, of), "columns": columns}

    def one(weight: jax.Array, gradient: jax.Array, rows: jax.Array, columns: jax.Array) -> tuple[jax.Array, ...]:
        gradient = gradient.astype(jnp.float32)
        squares = gradient * gradient + 1e-30
        if weight.ndim > 1:
            rows = 0.8 * rows + 0.2 * squares.mean(-1)
            columns = 0.8 * columns + 0.2 * squares.mean(-2)
            scaled = lax.rsqrt(rows / rows.mean(-1, keepdims=True))[..., None] * lax.rsqrt(columns)[..., None, :]
        else:
            rows = 0.8 * rows + 0.2 * squares
            scaled = lax.rsqrt(rows)
        change = gradient * scaled
        change = change / jnp.maximum(1.0, jnp.sqrt(jnp.mean(change * change)))
        return (weight - rate * change).astype(weight.dtype), rows, columns

    def update(weights: Any, gradients: Any, slots: Any) -> tuple[Any, Any]:
        done = jax.tree.map(one, weights, gradients, slots["rows"], slots["columns"])
        parts = [jax.tree.map(lambda _, three, at=at: three[at], weights, done) for at in range(3)]
        return parts[0], {"rows": parts[1], "columns": parts[2]}

    return Optimizer(start, update, axes)


def _zeros(weights: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, weights)
