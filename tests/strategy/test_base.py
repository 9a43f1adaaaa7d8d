from __future__ import annotations

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataExhaustedError, SettingError


def test_it_calls_the_function():
    default = tpu.get_strategy()
    assert repr(default) == "<DefaultStrategy: one replica, on the default device of JAX>"
    calls = []
    assert default.run(lambda *args, **kwargs: calls.append((args, kwargs)), (1,), {"two": 2}) is None
    assert calls == [((1,), {"two": 2})]
    with default.scope() as entered:
        assert entered is default


def test_a_step_written_for_replicas_runs():
    default = tpu.get_strategy()
    weight = keras.Variable(2.0)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=1.0)
    dropout = keras.layers.Dropout(0.5, seed=1)

    def step(x):
        loss_fn = lambda: tpu.compute_average_loss(weight * x)  # noqa: E731
        loss, gradients = tpu.value_and_grad(loss_fn, [weight], local=True)()
        dropout(x, training=True)
        return loss, gradients

    loss, (gradient,) = default.run(step, (np.array([1.0, 3.0], "float32"),))
    assert (float(loss), float(gradient)) == (4.0, 2.0)
    assert default.reduce("SUM", loss, axis=None) == 4.0
    assert default.experimental_local_results(loss) == (loss,)
    assert not optimizer.built


def test_many_steps_refuse_what_a_tpu_refuses():
    default = tpu.get_strategy()
    assert default.run_steps(lambda x: x + 1, iter([1, 2]), 2) == 3
    assert default.run_steps(lambda state, x: (state + x, None), iter([1, 2]), 2, state=0) == (3, None)
    with pytest.raises(DataExhaustedError) as ended:
        default.run_steps(lambda x: x, iter([1, 2]), 3)
    assert str(ended.value) == (
        "the data ended after 2 of the 3 steps. The model is at the last finished step. Ask for 2 steps or fewer, "
        "or repeat the data: dataset.repeat()"
    )
    with pytest.raises(SettingError, match="steps must be a positive integer, not 0"):
        default.run_steps(lambda x: x, iter([1]), 0)


def test_its_step_knows_the_strategy():
    default = tpu.get_strategy()

    def step(x):
        return tpu.get_replica_context().merge_call(lambda strategy, x: strategy.reduce("SUM", x), args=(x,))

    assert tpu.get_replica_context().strategy is default
    assert default.run(step, (np.ones(2),)).tolist() == [1, 1]
