from __future__ import annotations

import keras
import numpy as np
import optax
import pytest

import anytpu as tpu
from anytpu.errors import SettingError, SettingTypeError
from anytpu.migrate.low_level.cross_shard import _OUTSIDE, Minimization
from error_texts import error_text

KEY_PHRASE = (
    "CrossShardOptimizer should be used within a tpu_shard_context, but got unset number_of_shards. Assuming 1."
)


def sgd(**kwargs):
    return tpu.CrossShardOptimizer(optax.sgd(0.5), **kwargs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sgd(reduction="max"), 'unsupported reduction: \'max\'. It must be "mean" or "sum"'),
        (lambda: sgd(reduction=None), 'unsupported reduction: None. It must be "mean" or "sum"'),
        (
            lambda: tpu.CrossShardOptimizer("sgd"),
            "CrossShardOptimizer works with an optax or Keras optimizer, not with 'sgd': for example "
            "tpu.CrossShardOptimizer(optax.sgd(0.01))",
        ),
        (
            lambda: tpu.CrossShardOptimizer(sgd()),
            "CrossShardOptimizer(GradientTransformationExtraArgs, reduction='mean') sums over the shards already: wrap "
            "an optimizer once",
        ),
        (
            lambda: sgd(group_assignment=[0, 1]),
            "group_assignment must be a list of list of replica numbers, such as [[0, 1], [2, 3]], not [0, 1]",
        ),
        (
            lambda: sgd(group_assignment=[[0, 1], [2]]),
            "the size of each subgroup in group_assignment must be equal, and [[0, 1], [2]] has groups of 2, 1 "
            "replicas",
        ),
        (
            lambda: sgd(group_assignment=[[0, 1], [1, 2]]),
            "group_assignment must be a permutation of range(4), each replica's number once, not [[0, 1], [1, 2]]",
        ),
    ],
)
def test_what_no_optimizer_is_made_of(make, message):
    assert error_text(lambda: make(), kind=SettingError) == message


def test_a_wrong_type_is_a_type_error_and_a_wrong_value_a_value_error():
    with pytest.raises(TypeError) as caught:
        tpu.CrossShardOptimizer(3)
    assert isinstance(caught.value, SettingTypeError)
    with pytest.raises(ValueError):
        sgd(reduction="max")


def test_groups_must_be_all_replicas(strategy):
    assert error_text(
        lambda: tpu.batch_parallel(lambda x: tpu.cross_replica_sum(x, [[0, 1]]), [np.ones(4)]), kind=SettingError
    ) == ("group_assignment must be a permutation of range(4), each replica's number once, not [[0, 1]]")


def test_the_names_of_old_reductions():
    assert repr(sgd(reduction="weighted_mean")) == repr(sgd(reduction="Mean"))
    assert repr(sgd()) == "CrossShardOptimizer(GradientTransformationExtraArgs, reduction='mean')"
    assert repr(sgd(reduction=tpu.ReduceOp.SUM, group_assignment=[[0], [1]])) == (
        "CrossShardOptimizer(GradientTransformationExtraArgs, reduction='sum', group_assignment=[[0], [1]])"
    )


def test_outside_it_warns_and_assumes_one_shard(strategy, nothing_set):
    optimizer, weight = sgd(), np.float32(3)
    state = optimizer.init(weight)
    with pytest.warns(UserWarning) as caught:
        updates, _ = optimizer.update(np.float32(1), state)
        gradient = optimizer.compute_gradients(lambda w: w * w, weight)
        new, _ = optimizer.apply_gradients(gradient, state, weight)
    assert [str(warning.message) for warning in caught] == [_OUTSIDE] * 3
    assert _OUTSIDE.startswith(KEY_PHRASE)
    assert {warning.filename for warning in caught} == {__file__}
    assert (float(updates), float(gradient), float(new)) == (-0.5, 6.0, 0.0)


def test_setting_the_number_silences_the_warning_and_is_checked(strategy, nothing_set):
    context = tpu.get_tpu_context()
    assert error_text(lambda: context.set_number_of_shards(8), kind=SettingError) == (
        "number_of_shards is 8, and 4 cores run: remove the call, the number of shards is right without it"
    )
    with pytest.raises(SettingError, match="number_of_shards must be a positive integer, not 0"):
        context.set_number_of_shards(0)
    context.set_number_of_shards(4)
    assert context.number_of_shards == 4
    assert float(sgd().update(np.float32(1), sgd().init(np.float32(1)))[0]) == -0.5


def test_a_single_core_needs_no_warning(strategy):
    def train(weight):
        optimizer = sgd()
        return optimizer.update(weight, optimizer.init(weight))[0]

    assert float(tpu.rewrite(train, [2.0])[0]) == -1.0
    assert float(tpu.get_strategy().run(train, (np.float32(2),))) == -1.0


def test_marked_gradients_are_neither_summed_nor_scaled(strategy):
    weight = keras.Variable(1.0)

    def step(x):
        _, (marked,) = tpu.value_and_grad(lambda: weight * x.sum(), [weight])()
        optimizer = sgd()
        return optimizer.update(marked, optimizer.init(1.0))[0]

    assert np.asarray(tpu.batch_parallel(step, [np.arange(4.0)])[0]).tolist() == [-3.0] * 4


def test_what_else_is_asked_is_asked_of_the_optimizer_inside():
    inner = keras.optimizers.SGD(0.25)
    wrapped = tpu.CrossShardOptimizer(inner)
    assert float(wrapped.learning_rate) == 0.25
    assert wrapped.variables is not None
    with pytest.raises(AttributeError):
        _ = wrapped.no_such_thing


def test_the_two_kinds_are_not_mixed_up(strategy):
    assert error_text(
        lambda: tpu.CrossShardOptimizer(keras.optimizers.SGD(0.25)).update(1.0, None), kind=SettingError
    ) == (
        "update is for an optax optimizer, and this one wraps SGD of Keras: type "
        "optimizer.apply_gradients(zip(gradients, variables))"
    )
    assert error_text(lambda: tpu.rewrite(lambda: sgd().apply_gradients(1.0)), kind=SettingError) == (
        "an optax optimizer needs its state and the parameters: params, state = "
        "optimizer.apply_gradients(gradients, state, params)"
    )


def test_minimize_records_the_wish():
    optimizer, weight = tpu.CrossShardOptimizer(keras.optimizers.SGD(0.25)), keras.Variable(1.0)
    wish = optimizer.minimize(2.0, global_step=None, var_list=[weight])
    assert type(wish) is Minimization
    assert (wish.optimizer, wish.loss, wish.variables) == (optimizer, 2.0, (weight,))
    assert optimizer.minimize(2.0).variables is None
