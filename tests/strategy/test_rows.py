"""Batches that do not fill all replicas: their mask, their losses, and errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, StrategyError


@pytest.fixture
def batch(strategy):
    """Five rows on two replicas: three and two."""
    return next(iter(strategy.distribute_dataset([np.arange(1.0, 6.0, dtype="float32")])))


def test_the_mask_of_each_replica(strategy, batch):
    masks = strategy.run(tpu.row_mask, args=(batch,))
    assert [mask.tolist() for mask in masks.values] == [[True, True, True], [True, True]]
    full = strategy.run(tpu.row_mask, args=(tpu.PerReplica([np.zeros(2), np.zeros(2)]),))
    assert [mask.tolist() for mask in full.values] == [[True, True]] * 2


def test_outputs_lose_their_pads_where_they_have_rows(strategy, batch):
    rows, total, fixed = strategy.run(lambda x: (x * 2, x.sum(), jnp.zeros(3)), args=(batch,))
    assert [part.tolist() for part in rows.values] == [[2, 4, 6], [8, 10]]
    assert strategy.gather(rows, axis=0).tolist() == [2, 4, 6, 8, 10]
    assert strategy.reduce("MEAN", rows, axis=0) == 6
    assert total.values[0] == 6
    assert [len(part) for part in fixed.values] == [3, 3]
    again = strategy.run(lambda x: x + 1, args=(rows,))
    assert strategy.gather(again, axis=0).tolist() == [3, 5, 7, 9, 11]


def test_losses_leave_pads_out(strategy, batch):
    shares = strategy.run(lambda x: tpu.compute_average_loss(x), args=(batch,))
    assert strategy.reduce("SUM", shares) == pytest.approx(3.0)
    weighted = strategy.run(lambda x: tpu.compute_average_loss(x, sample_weight=x, global_batch_size=5), args=(batch,))
    assert strategy.reduce("SUM", weighted) == pytest.approx(11.0)
    loss = keras.losses.MeanAbsoluteError(reduction="sum")
    sums = strategy.run(lambda x: loss(jnp.zeros((len(x), 1)), x[:, None]), args=(batch,))
    assert [float(value) for value in sums.values] == [6.0, 9.0]


def test_metrics_leave_pads_out(strategy, batch):
    with strategy.scope():
        metrics = [keras.metrics.Mean(), keras.metrics.MeanAbsoluteError(), keras.metrics.AUC()]
        count = keras.metrics.Sum()

    def step(x):
        metrics[0].update_state(x)
        metrics[1].update_state(jnp.zeros_like(x)[:, None], x[:, None], sample_weight=x)
        metrics[2].update_state(x > 2, x / 10)
        count.update_state(1.0)

    strategy.run(step, args=(batch,))
    assert float(metrics[0].result()) == pytest.approx(3.0)
    assert float(metrics[1].result()) == pytest.approx(55 / 15)
    assert float(metrics[2].result()) == pytest.approx(1.0)
    assert float(count.result()) == 2.0
    metrics[0].reset_states()
    assert float(metrics[0].result()) == 0.0


def test_a_metric_that_takes_no_weights(strategy, batch):
    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.largest = keras.Variable(0.0, aggregation="mean")

        def update_state(self, values):
            self.largest.assign(jnp.max(-values))

        def result(self):
            return self.largest

    with strategy.scope():
        metric = Largest()
    strategy.run(lambda x: metric.update_state(x), args=(batch,))
    assert float(metric.result()) == (-1.0 - 4.0) / 2


METRICS = {
    "mean": (keras.metrics.MeanAbsoluteError, "columns"),
    "columns": (keras.metrics.MeanSquaredError, "columns"),
    "auc": (keras.metrics.AUC, "scores"),
    "auc_of_columns": (lambda: keras.metrics.AUC(multi_label=True, num_labels=3), "columns_of_scores"),
    "precision": (keras.metrics.Precision, "scores"),
    "recall_of_the_best": (lambda: keras.metrics.Recall(top_k=1), "columns_of_scores"),
    "f1": (lambda: keras.metrics.F1Score(threshold=0.5), "columns_of_scores"),
    "r2": (keras.metrics.R2Score, "columns"),
    "accuracy": (keras.metrics.SparseCategoricalAccuracy, "classes"),
    "accuracy_of_two": (lambda: keras.metrics.SparseTopKCategoricalAccuracy(k=2), "classes"),
    "iou": (lambda: keras.metrics.MeanIoU(num_classes=3), "images"),
    "cosine": (keras.metrics.CosineSimilarity, "columns"),
    "entropy": (keras.metrics.BinaryCrossentropy, "columns_of_scores"),
}


def _rows_for(kind, count):
    random = np.random.default_rng(0)
    scores = random.uniform(0.05, 0.95, (count, 3)).astype("float32")
    hits = random.integers(0, 2, (count, 3)).astype("float32")
    hits[0], hits[-1] = [0, 1, 0], [1, 0, 1]
    classes = random.integers(0, 3, count)
    return {
        "columns": (hits, scores),
        "scores": (hits[:, :1], scores[:, :1]),
        "columns_of_scores": (hits, scores),
        "classes": (classes, scores),
        "images": (random.integers(0, 3, (count, 2, 2)), random.integers(0, 3, (count, 2, 2))),
    }[kind]


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_keras_see_the_real_rows(strategy, name):
    make, kind = METRICS[name]
    labels, made = _rows_for(kind, 9)
    with strategy.scope():
        metric = make()
    batch = next(iter(strategy.distribute_dataset([(labels, made)])))
    strategy.run(lambda y, p: metric.update_state(y, p), args=batch)
    alone = make()
    alone.update_state(labels, made)
    assert np.allclose(metric.result(), alone.result(), atol=1e-5)


def test_a_mean_loss_is_refused_in_a_step(strategy, batch):
    loss = keras.losses.MeanSquaredError()
    with pytest.raises(ReplicaError) as error:
        strategy.run(lambda x: loss(x, x), args=(batch,))
    assert str(error.value) == (
        "the loss 'mean_squared_error' takes the mean over one replica's rows, and gradients are summed over the "
        'replicas: please use reduction="sum" or reduction="none" for a loss inside strategy.run, for example '
        'tpu.compute_average_loss(keras.losses.MeanSquaredError(reduction="none")(labels, predictions), '
        "global_batch_size=64)"
    )
    assert float(tpu.connect("virtual", cores=1).run(lambda: loss(np.zeros(2), np.ones(2)))) == 1.0


def test_two_batches_that_do_not_fit_together(strategy, batch):
    other = next(iter(strategy.distribute_dataset([np.zeros(1)])))
    with pytest.raises(ReplicaError) as error:
        strategy.run(lambda x, y: x, args=(batch, other))
    assert str(error.value) == (
        "two batches that do not fill all replicas are passed together, with [3, 2] and [1, 0] rows on the replicas: "
        "pass the parts of one batch, as one next(iterator) returns them"
    )


def test_batch_norm_sees_the_real_rows_of_each_replica(strategy):
    with strategy.scope():
        norm = keras.layers.BatchNormalization()
        norm.build((None, 2))
    rows = np.arange(10, dtype="float32").reshape(5, 2) ** 2
    batch = next(iter(strategy.distribute_dataset([rows])))
    made = strategy.run(lambda x: norm(x, training=True), args=(batch,))
    halves = rows[:3], rows[3:]
    for got, real in zip(made.values, halves, strict=True):
        assert np.allclose(got, (real - real.mean(0)) / np.sqrt(real.var(0) + norm.epsilon), atol=1e-4)
    mean = (3 * halves[0].mean(0) + 2 * halves[1].mean(0)) / 5
    assert np.allclose(np.asarray(norm.moving_mean.value), 0.01 * mean, rtol=1e-5)
    variance = (3 * halves[0].var(0) + 2 * halves[1].var(0)) / 5
    assert np.allclose(np.asarray(norm.moving_variance.value), 0.99 + 0.01 * variance, rtol=1e-5)


def test_batch_norm_of_a_replica_without_rows(strategy):
    with strategy.scope():
        norm = keras.layers.BatchNormalization()
        norm.build((None, 2))
    batch = next(iter(strategy.distribute_dataset([np.ones((1, 2), "float32")])))

    def step(x):
        loss, gradients = tpu.value_and_grad(
            lambda: keras.ops.sum(norm(x, training=True) * 3), norm.trainable_variables
        )()
        return loss, [gradient.array for gradient in gradients]

    loss, gradients = strategy.run(step, args=(batch,))
    assert [float(value) for value in loss.values] == [0.0, 0.0]
    assert [gradient.values[0].tolist() for gradient in gradients] == [[0.0, 0.0], [3.0, 3.0]]
    assert np.allclose(np.asarray(norm.moving_mean.value), 0.01)


def test_outside_of_a_step():
    with pytest.raises(StrategyError) as error:
        tpu.row_mask(np.zeros(3))
    assert str(error.value) == (
        "row_mask returns the real rows of one replica's batch: call it inside a function that you pass to "
        "strategy.run. Outside, the parts of a PerReplica have no pads"
    )
    with pytest.raises(StrategyError) as error:
        tpu.scale_regularization_loss(1.0)
    assert str(error.value) == (
        "scale_regularization_loss is for one replica's share: call it inside a function that you pass to "
        "strategy.run. Outside, take the sum of the losses"
    )


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_losses_of_keras_are_zero_for_pads_whatever_axes_they_have(strategy, reduction):
    # As many columns as a replica has rows: a mask along the wrong axis would fit as well.
    images = np.arange(5 * 3 * 3 * 2, dtype="float32").reshape(5, 3, 3, 2)
    batch = next(iter(strategy.distribute_dataset([images])))
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    shares = strategy.run(lambda x: keras.ops.sum(loss(jnp.zeros_like(x), x)), args=(batch,))
    assert float(strategy.reduce("SUM", shares)) == pytest.approx((images**2).mean(-1).sum())
    assert loss.reduction == reduction


def test_what_is_as_long_as_the_rows_has_no_pads(strategy, batch):
    target, weights = np.zeros((3, 2), "float32"), np.arange(6, dtype="float32").reshape(3, 2)
    loss = keras.losses.MeanSquaredError(reduction="sum")

    def step(x):
        return (
            loss(jnp.asarray(target), weights),
            tpu.compute_average_loss(jnp.ones(3), global_batch_size=3),
            tpu.compute_average_loss(jnp.ones(3)),
            jnp.sum(tpu.row_mask(jnp.ones(3))),
            jnp.sum(x),
        )

    results = strategy.run(step, args=(batch,))
    assert [[float(value) for value in result.values] for result in results] == [
        [27.5, 27.5],
        [1.0, 1.0],
        [0.5, 0.5],
        [3.0, 3.0],
        [6.0, 9.0],
    ]


def test_the_mask_of_what_is_computed_from_rows(strategy, batch):
    def step(x):
        columns = jnp.stack([x, 2 * x], axis=1)
        return (
            jnp.sum(tpu.row_mask(jnp.concatenate([x, x]))),
            jnp.sum(tpu.row_mask(jnp.ones(len(x)))),
            jnp.sum(jax.vmap(lambda c: jnp.sum(jnp.where(tpu.row_mask(c), c, 0)), in_axes=1)(columns)),
            jax.grad(lambda v: jnp.sum(jnp.where(tpu.row_mask(v * x), v * x, 0)))(2.0),
        )

    results = strategy.run(step, args=(batch,))
    assert [[float(value) for value in result.values] for result in results] == [[6, 4], [3, 2], [18, 27], [6, 9]]


def test_a_gather_of_what_is_as_long_as_the_rows(strategy, batch):
    def gathered(value):
        return tpu.get_replica_context().all_gather(value, 0)

    def step(x):
        return gathered(jnp.arange(3.0))

    assert strategy.run(step, args=(batch,)).values[0].tolist() == [0, 1, 2, 0, 1, 2]
    whole = strategy.run(lambda x: gathered(jnp.arange(3.0)[None]).reshape(-1), args=(batch,))
    assert whole.values[0].tolist() == [0, 1, 2, 0, 1, 2]


LOSSES = tpu.PerReplica([np.array([1.0, 2.0]), np.array([3.0, 4.0])])


def summed(strategy, *args, **kwargs):
    def step(losses, weights=None, global_batch_size=None):
        return tpu.compute_average_loss(losses, weights, global_batch_size)

    return float(strategy.reduce("SUM", strategy.run(step, args, kwargs), axis=None))


def test_the_sum_over_the_replicas_is_the_mean_over_the_batch(strategy):
    assert summed(strategy, LOSSES) == 2.5
    assert summed(strategy, LOSSES, global_batch_size=20) == 0.5
    assert summed(strategy, LOSSES, tpu.PerReplica([np.array([1.0, 0.0])] * 2)) == 1.0
    assert summed(strategy, np.ones((2, 3), "float32"), np.array([1.0, 0.0])) == 1.5


def test_an_empty_batch_has_no_loss(strategy):
    assert summed(strategy, np.zeros(0, "float32")) == 0.0
    assert summed(strategy, LOSSES, global_batch_size=0) == 10.0


def test_not_outside_a_replica():
    with pytest.raises(StrategyError) as caught:
        tpu.compute_average_loss(np.ones(3))
    assert str(caught.value) == (
        "compute_average_loss is for one replica's losses: call it inside a function that you pass to strategy.run. "
        "Outside, take the mean of the losses"
    )


def test_not_of_a_scalar(strategy):
    with pytest.raises(ReplicaError) as caught:
        strategy.run(lambda: tpu.compute_average_loss(1.0))
    assert str(caught.value) == (
        "compute_average_loss needs one loss for each row, not a scalar: pass the losses before they are averaged, for "
        'example from a Keras loss made with reduction="none"'
    )


@pytest.mark.parametrize("rows", [-1, np.int32(-8), 2.5, 16.0, True, "16"])
def test_rows_that_are_no_number_of_rows(strategy, rows):
    with pytest.raises(TypeError) as caught:
        strategy.run(lambda: tpu.compute_average_loss(np.ones(3, "float32"), global_batch_size=rows))
    assert str(caught.value) == (
        f"global_batch_size must be a number of rows, an integer of 0 or more, not {rows!r}. Leave it out to count the "
        "real rows of all replicas"
    )


def test_a_column_of_weights_counts_as_one_weight_a_row(strategy):
    column = tpu.PerReplica([np.array([[1.0], [0.0]])] * 2)
    assert summed(strategy, LOSSES, column) == 1.0
    with pytest.raises(ReplicaError) as caught:
        summed(strategy, LOSSES, tpu.PerReplica([np.ones((2, 3))] * 2))
    assert str(caught.value) == (
        "sample_weight has the shape (2, 3), and the losses have (2,): pass one weight for each row, (rows,), or one "
        "for each loss"
    )
