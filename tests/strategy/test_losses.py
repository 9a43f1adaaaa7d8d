from __future__ import annotations

import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, StrategyError

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


def test_a_column_of_weights_counts_as_one_weight_a_row(strategy):
    column = tpu.PerReplica([np.array([[1.0], [0.0]])] * 2)
    assert summed(strategy, LOSSES, column) == 1.0
    with pytest.raises(ReplicaError) as caught:
        summed(strategy, LOSSES, tpu.PerReplica([np.ones((2, 3))] * 2))
    assert str(caught.value) == (
        "sample_weight has the shape (2, 3), and the losses have (2,): pass one weight for each row, (rows,), or one "
        "for each loss"
    )
