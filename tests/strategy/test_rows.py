"""Batches that do not fill all replicas: what is masked, and what cannot be."""

from __future__ import annotations

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
    sums = strategy.run(lambda x: loss(jnp.zeros((3, 1)), x[:, None]), args=(batch,))
    assert [float(one) for one in sums.values] == [6.0, 9.0]


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
            self.largest = self.add_variable((), "zeros", name="value")

        def update_state(self, values):
            self.largest.assign(jnp.max(values))

        def result(self):
            return self.largest

    with strategy.scope():
        metric = Largest()
    with pytest.raises(ReplicaError) as error:
        strategy.run(lambda x: metric.update_state(x), args=(batch,))
    assert str(error.value) == (
        "the metric 'largest' cannot leave out the pads of a batch that does not fill all replicas: its update_state "
        "takes no sample_weight. Add that argument, or make batches of a size that the replicas divide"
    )


def test_a_metric_over_numbers_of_no_columns(strategy, batch):
    with strategy.scope():
        metric = keras.metrics.MeanAbsoluteError()
    with pytest.raises(ReplicaError) as error:
        strategy.run(lambda x: metric.update_state(x, x), args=(batch,))
    assert str(error.value).startswith(
        "the metric 'mean_absolute_error' cannot weigh the rows of a batch that does not fill all replicas, which "
        "leaves its pads out. Where labels and predictions are one number a row, pass them as columns, (rows, 1). "
        "Keras says: "
    )


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


def test_statistics_of_a_partly_filled_replica_are_approximate(strategy):
    with strategy.scope():
        norm = keras.layers.BatchNormalization()
        norm.build((None, 2))
    batch = next(iter(strategy.distribute_dataset([np.zeros((3, 2), "float32")])))

    def normalise(x):
        return norm(x, training=True)

    with pytest.warns(UserWarning) as told:
        strategy.run(normalise, args=(batch,))
    assert [str(one.message) for one in told] == [
        "normalise was given a batch that does not fill all replicas, and updates the statistics of BatchNorm: those "
        "of a replica that got some of its rows only are approximate. Leave the last batch out, for example with "
        "batch(rows, drop_remainder=True), or use fit, whose BatchNorm sees the whole batch"
    ]
    strategy.run(normalise, args=(batch,))


def test_outside_of_a_step():
    with pytest.raises(StrategyError) as error:
        tpu.row_mask(np.zeros(3))
    assert str(error.value) == (
        "row_mask tells the real rows of one replica's batch: call it inside a function that you pass to strategy.run. "
        "Outside, the parts of a PerReplica have no pads"
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


def test_outputs_of_a_step_for_one_number_of_rows_lose_their_pads(strategy, batch):
    rows = strategy.run(lambda x: x.reshape(3, 1) * 2, args=(batch,))
    assert strategy.gather(rows, axis=0).tolist() == [[2], [4], [6], [8], [10]]
