"""A loss counts once, as a share or as the loss of the batch; a mean over the rows of one replica is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 3)).astype("float32"), RNG.normal(size=(24, 5)).astype("float32")
WEIGHT = jnp.asarray(RNG.normal(size=(3, 5)), "float32")
REPLICAS = 4
INSTEAD = (
    " Return this replica's share, tpu.compute_average_loss(losses), of one loss for each row; or the loss of all "
    'replicas: total, count = jax.lax.psum((jnp.sum(losses), len(losses)), "replica"), and return total / count. '
    "Losses of layers are a share after tpu.scale_regularization_loss(model.losses)"
)
MEAN = (
    "loss_fn returns a mean over this replica's rows, and tpu.value_and_grad sums the gradients of 4 replicas, so they "
    "would be 4 times those of one device." + INSTEAD
)
OWN_DIVISOR = (
    "loss_fn divides by a number of this replica's rows, and tpu.value_and_grad sums the gradients of 4 replicas, so "
    "they would be 4 times those of one device." + INSTEAD
)
ADDED = (
    "loss_fn adds a term that is equal on all replicas to this replica's share of the loss, and tpu.value_and_grad "
    "sums the gradients of 4 replicas, so this term would count 4 times: add tpu.scale_regularization_loss(term), "
    "which counts it once"
)


@pytest.fixture(scope="module")
def four():
    return tpu.connect("virtual", cores=REPLICAS)


def losses(w, x, y):
    return ((x @ w - y) ** 2).sum(1)


def psum(value):
    return jax.lax.psum(value, "replica")


def pmean(value):
    return jax.lax.pmean(value, "replica")


def gathered(value):
    return tpu.get_replica_context().all_gather(value, 0)


def gradient_of(strategy, loss, rows=24):
    def step(w, batch):
        value, gradient = tpu.value_and_grad(loss, w)(*batch)
        return value, gradient

    (batch,) = strategy.distribute_dataset([(X[:rows], Y[:rows])])
    return strategy.run(step, args=(WEIGHT, batch))[1].values[0]


WHOLE = [
    lambda w, x, y: psum(losses(w, x, y).sum()) / 24,
    lambda w, x, y: pmean(losses(w, x, y).mean()),
    lambda w, x, y: tpu.get_replica_context().all_reduce("MEAN", losses(w, x, y).mean()),
    lambda w, x, y: psum(losses(w, x, y).sum()) / psum(len(x)),
    lambda w, x, y: psum(losses(w, x, y).sum()) / psum(jnp.ones(len(x)).sum()),
    lambda w, x, y: losses(w, gathered(x), gathered(y)).mean(),
    lambda w, x, y: gathered(losses(w, x, y)).mean(),
    lambda w, x, y: jnp.where(psum(1.0) > 0, psum(losses(w, x, y).sum()) / 24, 0.0),
    lambda w, x, y: jax.jit(lambda w: psum(losses(w, x, y).sum()) / 24)(w),
    lambda w, x, y: jax.checkpoint(lambda w: psum(losses(w, x, y).sum()) / 24)(w),
    lambda w, x, y: losses(w, X, Y).mean(),
]
SHARES = [
    lambda w, x, y: tpu.compute_average_loss(losses(w, x, y)),
    lambda w, x, y: losses(w, x, y).sum() / 24,
    lambda w, x, y: (losses(w, x, y) * (1 / 24)).sum(),
    lambda w, x, y: jnp.sum((x @ w - y) ** 2) / 24,
    lambda w, x, y: losses(w, x, y).mean() / REPLICAS,
    lambda w, x, y: losses(w, x, y).sum() / psum(len(x)),
    lambda w, x, y: losses(w, x, y).sum() / psum(jnp.ones(len(x)).sum()),
    lambda w, x, y: 5 * ((x @ w - y) ** 2).sum(0).mean() / 24,
    lambda w, x, y: 5 * ((x @ w - y) ** 2).mean(1).sum() / 24,
    lambda w, x, y: (losses(w, x, y).sum() / (x[:, 0] < 99).sum()) / REPLICAS,
]


@pytest.mark.parametrize("loss", [*WHOLE, *SHARES])
def test_the_loss_of_the_batch_counts_once(four, loss):
    expected = jax.grad(lambda w: losses(w, X, Y).mean())(WEIGHT)
    np.testing.assert_allclose(gradient_of(four, loss), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [WHOLE[0], WHOLE[4], SHARES[0], SHARES[6]])
def test_a_batch_that_does_not_fill_the_replicas(four, loss):
    rows = 9
    expected = jax.grad(lambda w: losses(w, X[:rows], Y[:rows]).mean())(WEIGHT)
    scale = 24 / rows if loss is WHOLE[0] else 1
    np.testing.assert_allclose(scale * gradient_of(four, loss, rows), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x, y: psum(losses(w, x, y).sum()) / 24 + 0.1 * (w**2).sum(),
        lambda w, x, y: tpu.compute_average_loss(losses(w, x, y)) + tpu.scale_regularization_loss(0.1 * (w**2).sum()),
        lambda w, x, y: tpu.compute_average_loss(losses(w, x, y)) + 0.1 * (w**2).sum() / REPLICAS,
        lambda w, x, y: (losses(w, x, y).mean() + 0.1 * (w**2).sum()) / REPLICAS,
    ],
)
def test_a_regularizer_counts_once(four, loss):
    expected = jax.grad(lambda w: losses(w, X, Y).mean() + 0.1 * (w**2).sum())(WEIGHT)
    np.testing.assert_allclose(gradient_of(four, loss), expected, rtol=2e-5, atol=1e-6)


def test_a_loss_without_rows_counts_once(four):
    np.testing.assert_allclose(gradient_of(four, lambda w, x, y: (w**2).sum()), 2 * WEIGHT, rtol=1e-6)


def test_the_loss_itself_is_returned_unchanged(four):
    def step(w, batch):
        (value, rows), _ = tpu.value_and_grad(lambda w, x, y: (WHOLE[0](w, x, y), len(x)), w, has_aux=True)(*batch)
        return value, rows

    (batch,) = four.distribute_dataset([(X, Y)])
    value, rows = four.run(step, args=(WEIGHT, batch))
    np.testing.assert_allclose(value.values, [losses(WEIGHT, X, Y).mean()] * REPLICAS, rtol=1e-6)
    assert rows.values == (6,) * REPLICAS


def test_variables_and_several_losses(four):
    with four.scope():
        one, two = keras.Variable(WEIGHT), keras.Variable(WEIGHT)

    def step(batch):
        x, y = batch
        both = lambda: (psum(losses(one.value, x, y).sum()) / 24, tpu.compute_average_loss(losses(two.value, x, y)))  # noqa: E731
        _, (first, second) = tpu.value_and_grad(both, [[one], [two]])()
        return [first[0].array, second[0].array]

    (batch,) = four.distribute_dataset([(X, Y)])
    expected = jax.grad(lambda w: losses(w, X, Y).mean())(WEIGHT)
    for gradient in four.run(step, args=(batch,)):
        np.testing.assert_allclose(gradient.values[0], expected, rtol=2e-5, atol=1e-6)


def test_in_a_compiled_function_and_in_a_loop(four):
    """There no trace shows which arrays differ between the replicas."""
    expected = jax.grad(lambda w: losses(w, X, Y).mean())(WEIGHT)
    (batch,) = four.distribute_dataset([(X, Y)])
    for loss in (WHOLE[0], WHOLE[3], SHARES[0], SHARES[1], SHARES[6]):
        differentiate = jax.jit(lambda w, x, y, loss=loss: tpu.value_and_grad(loss, w)(x, y)[1])

        def looped(w, x, y, differentiate=differentiate):
            return jax.lax.scan(lambda total, _: (total + differentiate(w, x, y), None), jnp.zeros((3, 5)), length=2)[0]

        for step, times in ((differentiate, 1), (looped, 2)):
            gradient = four.run(lambda w, batch, step=step: step(w, *batch), args=(WEIGHT, batch))
            np.testing.assert_allclose(gradient.values[0], times * expected, rtol=2e-5, atol=1e-6)
    with pytest.raises(ReplicaError) as caught:
        four.run(
            lambda w, b: jax.jit(lambda w, x, y: tpu.value_and_grad(MEANS[0], w)(x, y)[1])(w, *b), args=(WEIGHT, batch)
        )
    assert str(caught.value) == MEAN


MEANS = [
    lambda w, x, y: losses(w, x, y).mean(),
    lambda w, x, y: ((x @ w - y) ** 2).mean(),
    lambda w, x, y: -0.3 * losses(w, x, y).mean(),
    lambda w, x, y: losses(w, x, y).sum() / len(x),
    lambda w, x, y: jnp.sum((x @ w - y) ** 2) * (1 / len(x)),
    lambda w, x, y: jnp.sum(losses(w, x, y) / x.shape[0]),
    lambda w, x, y: keras.ops.mean(losses(w, x, y)),
    lambda w, x, y: jnp.average(losses(w, x, y)),
    lambda w, x, y: jnp.sqrt(losses(w, x, y).mean()),
    lambda w, x, y: jax.vmap(lambda x, y: ((x @ w - y) ** 2).sum())(x, y).mean(),
    lambda w, x, y: ((x @ w - y) ** 2).reshape(-1).sum() / len(x),
    lambda w, x, y: jnp.vdot(x @ w - y, x @ w - y) / len(x),
    lambda w, x, y: jax.jit(lambda w: losses(w, x, y).mean())(w),
    lambda w, x, y: losses(w, x, y).mean() + 0.1 * (w**2).sum(),
    lambda w, x, y: jax.lax.cond(x.sum() > -99, lambda: losses(w, x, y).mean(), lambda: 0.0),
    lambda w, x, y: jax.lax.scan(
        lambda t, b: (t + losses(w, *b).mean() / 2, None), 0.0, (x.reshape(2, 3, 3), y.reshape(2, 3, 5))
    )[0],
    lambda w, x, y: x[0, 0] * 0 + 2.0 * losses(w, x, y).mean(),
]
OWN_DIVISORS = [
    lambda w, x, y: losses(w, x, y).sum() / (x[:, 0] < 99).sum(),
    lambda w, x, y: losses(w, x, y).sum() / jnp.maximum((x[:, 0] < 99).sum(), 1),
    lambda w, x, y: losses(w, x, y).sum() * (1 / (x[:, 0] < 99).sum()),
    lambda w, x, y: jnp.nanmean(losses(w, x, y)),
    lambda w, x, y: jnp.average(losses(w, x, y), weights=jnp.abs(x[:, 0])),
]


@pytest.mark.parametrize(
    ("loss", "text"), [*((loss, MEAN) for loss in MEANS), *((loss, OWN_DIVISOR) for loss in OWN_DIVISORS)]
)
def test_a_mean_over_the_rows_of_one_replica_is_refused(four, loss, text):
    with pytest.raises(ReplicaError) as caught:
        gradient_of(four, loss)
    assert str(caught.value) == text


@pytest.mark.parametrize("loss", MEANS[:2])
def test_its_own_gradients_are_not_refused(four, loss):
    (batch,) = four.distribute_dataset([(X, Y)])
    four.run(lambda w, batch: tpu.value_and_grad(loss, w, local=True)(*batch), args=(WEIGHT, batch))
    tpu.value_and_grad(loss, WEIGHT)(X, Y)


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x, y: tpu.compute_average_loss(losses(w, x, y)) + 0.1 * (w**2).sum(),
        lambda w, x, y: losses(w, x, y).sum() / 24 + pmean(losses(w, x, y).mean()),
    ],
)
def test_a_term_that_would_count_once_for_each_replica(four, loss):
    with pytest.raises(ReplicaError) as caught:
        gradient_of(four, loss)
    assert str(caught.value) == ADDED


def test_a_term_that_is_not_differentiated_may_be_anything(four):
    loss = lambda w, x, y: tpu.compute_average_loss(losses(w, x, y)) + x.mean() + pmean(x.mean()) + 3.0  # noqa: E731
    expected = jax.grad(lambda w: losses(w, X, Y).mean())(WEIGHT)
    np.testing.assert_allclose(gradient_of(four, loss), expected, rtol=2e-5, atol=1e-6)


def test_a_scale_that_can_be_read_in_two_ways():
    """On two replicas a half of a mean is the replica's share of the mean, or half the loss."""
    with pytest.raises(ReplicaError) as caught:
        gradient_of(tpu.connect("virtual", cores=2), lambda w, x, y: 0.5 * losses(w, x, y).mean())
    assert str(caught.value) == (
        "loss_fn takes 0.0416667 of a sum over this replica's rows, which may be a mean of theirs, or this replica's "
        "share of the mean of 2 replicas: tpu.value_and_grad cannot tell which." + INSTEAD
    )
