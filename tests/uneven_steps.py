"""Steps as people write them, which reduce or mix the rows of their batch; each is compared with real rows alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

import anytpu as tpu

GLOBAL_BATCH = 16


def losses_of(w, x, y):
    return jnp.square(jnp.tanh(x @ w) - y)


def by_global_batch(x, y, w):
    return jax.value_and_grad(lambda w: losses_of(w, x, y).sum() / GLOBAL_BATCH)(w)


def times_reciprocal(x, y, w):
    return jax.value_and_grad(lambda w: jnp.sum(losses_of(w, x, y)) * (1.0 / GLOBAL_BATCH))(w)


def mean_of_rows(x, y, w):
    return jax.value_and_grad(lambda w: keras.ops.mean(losses_of(w, x, y)))(w)


def mean_by_shape(x, y, w):
    return jax.value_and_grad(lambda w: jnp.sum(losses_of(w, x, y)) / x.shape[0])(w)


def mean_by_reciprocal(x, y, w):
    return jax.value_and_grad(lambda w: jnp.sum(losses_of(w, x, y)) * (1 / len(x)))(w)


def mean_of_pixels(x, y, w):
    return jnp.mean(x.reshape(-1)), jnp.mean(x, axis=0), jnp.mean(x, axis=1)


def accuracy(x, y, w):
    hits = jnp.argmax(x, axis=1) == jnp.argmax(x @ jnp.diag(w), axis=1)
    return jnp.sum(hits), jnp.mean(hits), len(x) - jnp.sum(hits), jnp.float32(len(x))


def confusion(x, y, w):
    a, b = jax.nn.one_hot(jnp.argmax(x, axis=1), 3), jax.nn.one_hot(jnp.argmin(x, axis=1), 3)
    return a.T @ b, jnp.einsum("ri,rj->ij", a, b)


def confusion_by_scatter(x, y, w):
    a, b = jnp.argmax(x, axis=1), jnp.argmin(x, axis=1)
    return jnp.zeros((3, 3)).at[a, b].add(1.0), jnp.bincount(a, length=3), jax.ops.segment_sum(y, a, 3)


def rows_by_scatter(x, y, w):
    a = jnp.argmax(x, axis=1)
    return jnp.zeros((len(x), 3)).at[jnp.arange(len(x)), a].set(1.0).sum(0), x[jnp.arange(len(x)), a].sum()


def extremes(x, y, w):
    return x.max(), x.min(axis=0), jnp.all(x > -9), jnp.any(x > 2), jnp.prod(1 + y / 9), jax.nn.logsumexp(x, axis=0)


def positions(x, y, w):
    return jnp.argmax(x, axis=0), jnp.argmin(y)


def variance(x, y, w):
    return jnp.var(x, axis=0), jnp.std(x)


def covariance(x, y, w):
    centred = x - x.mean(0)
    return centred.T @ centred / len(x)


def normalised(x, y, w):
    def loss(w):
        h = x * w
        return jnp.sum(jnp.square((h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-3)) * y[:, None])

    return jax.value_and_grad(loss)(w)


def pairs(x, y, w):
    def loss(w):
        z = x * w
        similar = z @ z.T
        target = y[:, None] > y[None, :]
        return jnp.sum(jnp.where(target, similar, -similar)), jnp.sum(similar, axis=1)

    return jax.value_and_grad(loss, has_aux=True)(w)


def contrastive(x, y, w):
    def loss(w):
        z = x * w
        logits = z @ (x + 0.1).T
        return jnp.sum(-jnp.diagonal(jax.nn.log_softmax(logits, axis=1)))

    return jax.value_and_grad(loss)(w)


def contrastive_by_labels(x, y, w):
    def loss(w):
        logits = (x * w) @ (x + 0.1).T
        labels = jnp.arange(len(x))
        rows = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return jnp.sum(rows) / GLOBAL_BATCH

    return jax.value_and_grad(loss)(w)


def softmax_over_rows(x, y, w):
    return jnp.sum(jax.nn.softmax(x, axis=0) * y[:, None])


def adversarial(x, y, w):
    noise = jnp.full((len(x), 3), 0.3) * w
    both = jnp.concatenate([noise, x])
    labels = jnp.concatenate([jnp.ones((len(x), 1)), jnp.zeros((len(x), 1))])
    scores = jax.nn.sigmoid(both @ w[:, None])
    return jnp.mean(jnp.square(scores - labels)), jnp.sum(scores[: len(x)]), jnp.sum(scores[len(x) :])


def concatenated_gradient(x, y, w):
    def loss(w):
        both = jnp.concatenate([x * w, x + w])
        return jnp.sum(jnp.square(both).sum(1)[len(x) :] * y)

    return jax.grad(loss)(w)


def sorted_rows(x, y, w):
    return jnp.sum(jnp.sort(y) * y), jnp.cumsum(y).max(), jnp.sum(jnp.argsort(y) * y)


def running(x, y, w):
    return jnp.sum(jnp.cumsum(x, axis=0)), jnp.sum(jnp.cumsum(x[:, 0], axis=0) * y)


def scanned(x, y, w):
    def one(state, row):
        state = jnp.tanh(state + row * w)
        return state, state

    def loss(w):
        last, every = jax.lax.scan(lambda s, row: (jnp.tanh(s + row * w), s), jnp.zeros(3), x)
        return jnp.sum(last), jnp.sum(every)

    return jax.lax.scan(one, jnp.zeros(3), x)[0], jax.value_and_grad(loss, has_aux=True)(w)


def mapped(x, y, w):
    return jnp.sum(jax.lax.map(lambda row: jnp.sin(row * w), x)), jax.vmap(lambda row: row @ w)(x).sum()


def looped(x, y, w):
    def body(i, total):
        return total * 0.5 + jnp.sum(x) * i

    return jax.lax.fori_loop(0, 3, body, 0.0), jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + x.sum(0)), (0, w)
    )


def branched(x, y, w):
    return jax.lax.cond(jnp.sum(y) > 0, lambda: jnp.sum(x), lambda: jnp.mean(x))


def convolved(x, y, w):
    image = x.reshape(-1, 3, 1)

    def loss(w):
        made = jax.lax.conv_general_dilated(
            image, w.reshape(3, 1, 1), (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
        )
        pooled = jax.lax.reduce_window(made, -jnp.inf, jax.lax.max, (1, 2, 1), (1, 1, 1), "VALID")
        return jnp.sum(pooled)

    return jax.value_and_grad(loss)(w)


def checkpointed(x, y, w):
    return jax.value_and_grad(lambda w: jax.checkpoint(lambda w: jnp.sum(jnp.sin(x * w)))(w))(w)


def penalised(x, y, w):
    def critic(rows):
        return jnp.sum(jnp.tanh(rows @ w))

    slopes = jax.grad(critic)(x)
    norms = jnp.sqrt(jnp.sum(jnp.square(slopes), axis=1) + 1e-6)
    return jnp.sum(jnp.square(norms - 1)) / GLOBAL_BATCH


def picked(x, y, w):
    best = jnp.argmax(y)
    return jnp.sum(x[jnp.argsort(y)] * y[:, None]), jnp.sum(jnp.take_along_axis(x, x.argmax(1)[:, None], 1)), best


def activations(x, y, w):
    return sum(jnp.sum(f(x * w)) for f in (jax.nn.relu, jax.nn.silu, jax.nn.gelu, jax.nn.softplus, jax.nn.log_softmax))


def quadratic_mean(x, y, w):
    return jnp.mean(x @ x.T), jnp.mean(jnp.abs(y[:, None] - y[None, :]))


def per_row(x, y, w):
    return x * 2, losses_of(w, x, y), jnp.sum(x, axis=1, keepdims=True)


def in_masks(x, y, w):
    weights = (y > 0).astype(x.dtype)
    return jnp.sum(losses_of(w, x, y) * weights) / jnp.maximum(jnp.sum(weights), 1), jnp.sum(weights)


def constants(x, y, w):
    rows = len(x)
    ones, table = np.ones(rows, "float32"), np.eye(rows, dtype="float32")
    return jnp.sum(y * ones), jnp.sum(x * np.arange(rows, dtype="float32")[:, None], axis=0), jnp.sum(table @ x)


def real_rows(x):
    context = tpu.get_replica_context()
    assert context is not None
    return tpu.row_mask(x) if context.num_replicas_in_sync > 1 else jnp.ones(len(x), bool)


def zeros_over_zeros(x, y, w):
    real = real_rows(x)
    z = jnp.where(real[:, None], x * w, 0)
    norms = jnp.linalg.norm(z, axis=1, keepdims=True)
    weights = jnp.where(real, jnp.float32(1), 0)[:, None]
    return (
        jnp.sum(z / norms),
        jnp.sum(weights * (1 / norms)),
        jnp.sum(weights * jnp.log(norms)),
        jnp.sum(z * (1 / norms)),
    )


def zeros_times_infinity(x, y, w):
    real = real_rows(x)
    z = jnp.where(real[:, None], jnp.abs(x) + 1, 0)
    return jnp.sum(z * jnp.inf), jnp.sum(z @ jnp.full(3, jnp.inf))


def neighbours(x, y, w):
    after = jnp.arange(len(x)) + 1
    clamped = jnp.sum(x[after] - x) + jnp.sum(x.at[after].get(mode="clip", wrap_negative_indices=False) * y[:, None])
    filled = y.at[after].get(mode="fill", fill_value=7.0)
    return (
        clamped,
        jnp.sum(filled),
        jnp.sum(x.reshape(-1)[3 * after + 1]),
        jnp.sum(x[after, after - 1]),
        jnp.sum(y[-after]),
    )


def neighbours_taken(x, y, w):
    after = jnp.arange(len(x)) + 2
    in_row = jnp.take_along_axis(x, after[:, None], axis=0, mode="clip")
    return (
        jnp.sum(in_row),
        jnp.sum(jnp.take(x, after, axis=0, mode="fill", fill_value=3.0)),
        jnp.sum(y[after[:, None] - jnp.arange(3)]),
    )


def reversed_rows(x, y, w):
    return jnp.sum(x * x[::-1])


def rolled(x, y, w):
    return jnp.sum(x * jnp.roll(x, 1, axis=0))


def first_row(x, y, w):
    return x[0]


def last_row(x, y, w):
    return x[-1]


def half(x, y, w):
    return jnp.sum(x[: len(x) // 2])


def half_the_rows(x, y, w):
    return jnp.sum(x) / (len(x) // 2)


def up_to_a_limit(x, y, w):
    return jnp.sum(x) / min(len(x), 4)


def limited_rows(x, y, w):
    return jnp.sum(x) / jnp.sum(jnp.ones(min(len(x), 4)))


def other_code(x, y, w):
    return jnp.sum(x) * (2 if len(x) > 3 else 1)


def some_rows(x, y, w):
    return jnp.sum(x[:2])


def every_other(x, y, w):
    return jnp.sum(x[::2])


def largest(x, y, w):
    return jax.lax.top_k(y, 2)[0]


def sample_variance(x, y, w):
    return jnp.sum(jnp.square(x - x.mean())) / (x.size - 1)


def logarithm(x, y, w):
    import math

    return jnp.sum(x) * math.log(len(x))


def power(x, y, w):
    return jnp.sum(x) ** len(x)


def backwards(x, y, w):
    return jnp.sum(y * np.arange(len(x), 0.0, -1))


def clipped_writes(x, y, w):
    return jnp.sum(x.at[2].add(1.0, mode="clip") * y[:, None])


def transposed(x, y, w):
    return x.T


def table(x, y, w):
    return x @ x.T


def twice(x, y, w):
    return jnp.concatenate([x, x])


def spectrum(x, y, w):
    return jnp.abs(jnp.fft.fft(y)).sum()


def window(x, y, w):
    return jnp.convolve(y, jnp.ones(2)).sum()


def triangle(x, y, w):
    return jnp.linalg.det(x @ x.T)


def called_back(x, y, w):
    return jax.pure_callback(lambda a: a.sum(), jax.ShapeDtypeStruct((), "float32"), x, vmap_method="sequential")


STEPS: dict[str, Callable[..., Any]] = {
    step.__name__: step
    for step in (
        by_global_batch, times_reciprocal, mean_of_rows, mean_by_shape, mean_by_reciprocal, mean_of_pixels, accuracy,
        confusion, confusion_by_scatter, rows_by_scatter, extremes, positions, variance, covariance, normalised, pairs,
        contrastive, contrastive_by_labels, softmax_over_rows, adversarial, concatenated_gradient, sorted_rows, running,
        scanned, mapped, looped, branched, convolved, checkpointed, penalised, picked, activations, quadratic_mean,
        per_row, in_masks, constants,
        neighbours, neighbours_taken, zeros_over_zeros, zeros_times_infinity,
        reversed_rows, rolled, first_row, last_row, half, half_the_rows, some_rows, up_to_a_limit,
        other_code, limited_rows, every_other, largest, sample_variance, logarithm, power,
        backwards, clipped_writes, transposed, table, twice, spectrum, window, triangle, called_back,
    )
}  # fmt: skip
"""Steps `(x, y, w) -> tree`, for `x` of shape `(rows, 3)`, `y` of shape `(rows,)` and weights `(3,)`."""


def _column(v, y):
    return y.reshape((-1, *[1] * (v.ndim - 1)))


LINKS: dict[str, Callable[..., Any]] = {
    "tanh": lambda v, y, w: jnp.tanh(v),
    "scaled": lambda v, y, w: v * w[0],
    "flat": lambda v, y, w: v.reshape(-1),
    "rows": lambda v, y, w: v.reshape(len(y), -1),
    "columns": lambda v, y, w: v.reshape(-1, 1),
    "transposed": lambda v, y, w: v.T,
    "reversed": lambda v, y, w: v[::-1],
    "twice": lambda v, y, w: jnp.concatenate([v, v]),
    "beside": lambda v, y, w: jnp.concatenate([v, v * 2], axis=-1),
    "softmax": lambda v, y, w: jax.nn.softmax(v, axis=0),
    "softmax_inside": lambda v, y, w: jax.nn.softmax(v, axis=-1),
    "running": lambda v, y, w: jnp.cumsum(v, axis=0),
    "running_back": lambda v, y, w: jax.lax.cumsum(v, axis=0, reverse=True),
    "sorted": lambda v, y, w: jnp.sort(v, axis=0),
    "sorted_inside": lambda v, y, w: jnp.sort(v, axis=-1),
    "centred": lambda v, y, w: v - v.mean(0),
    "shared": lambda v, y, w: v / (9 + jnp.sum(jnp.abs(v), axis=0)),
    "pairs": lambda v, y, w: v @ v.T / len(y),
    "covered": lambda v, y, w: v.T @ v / len(v),
    "ordered": lambda v, y, w: v[jnp.argsort(y)],
    "chosen": lambda v, y, w: jnp.where(_column(v, y) > 0, v, 0.5),
    "weighed": lambda v, y, w: v * _column(v, y),
    "rolled": lambda v, y, w: jnp.roll(v, 1, axis=0),
    "two": lambda v, y, w: v[:2],
    "tail": lambda v, y, w: v[1:],
    "half": lambda v, y, w: v[: len(v) // 2],
    "repeated": lambda v, y, w: jnp.repeat(v, 2, axis=0),
    "tiled": lambda v, y, w: jnp.tile(v, 2),
    "added": lambda v, y, w: v + jnp.arange(len(v), dtype="float32").reshape((-1, *[1] * (v.ndim - 1))),
    "stacked": lambda v, y, w: jnp.stack([v, -v], axis=1),
    "deeper": lambda v, y, w: v[:, None],
    "summed": lambda v, y, w: v.sum(-1),
    "summed_rows": lambda v, y, w: v.sum(0, keepdims=True),
    "mean_inside": lambda v, y, w: v.mean(-1, keepdims=True),
    "largest": lambda v, y, w: v.max(0, keepdims=True),
    "over_count": lambda v, y, w: v / len(y),
    "with_ones": lambda v, y, w: jnp.concatenate([v, jnp.ones((len(y), *v.shape[1:]))]),
    "padded": lambda v, y, w: jnp.pad(v, [(1, 0)] + [(0, 0)] * (v.ndim - 1)),
    "scanned": lambda v, y, w: jax.lax.scan(lambda c, r: (jnp.tanh(c + r), c), v.sum(0) * 0, v)[1],
    "carried": lambda v, y, w: jax.lax.scan(lambda c, r: (jnp.tanh(c + r), None), v.sum(0) * 0, v)[0],
    "by_class": lambda v, y, w: jax.ops.segment_sum(v, (y > 0).astype(int), 2),
    "checkpointed": lambda v, y, w: jax.checkpoint(lambda v: jnp.sin(v) * v.sum())(v),
    "branched": lambda v, y, w: jax.lax.cond(y.sum() > 0, lambda v: v * 2, lambda v: v - v.max(), v),
}
"""Operations `(v, y, w) -> v` that make random steps."""


def chained(names: list[str]) -> Callable[..., Any]:
    """Return the step that applies operations one after the other, and reduces what they make in several ways."""

    def step(x, y, w):
        def last(w):
            v = x * w
            for name in names:
                v = LINKS[name](v, y, w)
            return v

        v = last(w)
        slope = jax.grad(lambda w: jnp.sum(jnp.square(last(w))) / GLOBAL_BATCH)(w)
        return jnp.sum(v), jnp.mean(v), jnp.max(v), jnp.sum(v, axis=0), slope

    return step
