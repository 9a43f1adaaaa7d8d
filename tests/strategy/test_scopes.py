from __future__ import annotations

import keras
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError
from anytpu.strategy.scopes import system_of


def test_a_variable_knows_the_system_it_was_made_for(strategy):
    assert system_of(keras.Variable(0.0)) is None
    with strategy.scope():
        assert system_of(keras.Variable(0.0)) is strategy.system


def test_variables_made_in_a_step_belong_to_its_system(strategy):
    layer = keras.layers.Dense(1)
    strategy.run(layer, args=(keras.ops.ones((2, 3)),))
    assert system_of(layer.kernel) is strategy.system


def test_a_first_value_that_the_step_computes(strategy):
    made = []

    def step(x):
        made.append(keras.Variable(x * 2))

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step, args=(tpu.PerReplica([[1.0] * 3] * 2),))
    assert str(caught.value) == (
        "a variable is made inside strategy.run with a first value that the step computes, an array of shape (3,). A "
        "variable is made once, before the first step, so give it a value that is known then: a number, a NumPy array, "
        'or an initializer with a shape, such as keras.Variable("zeros", shape=(3,)); or make it outside of the step'
    )


def test_an_initializer_that_raises_raises_once(strategy):
    made = []

    def first(shape, dtype):
        if made and tpu.get_replica_context().num_replicas_in_sync == 1:
            raise ValueError("mine")
        return keras.ops.ones(shape, dtype)

    def step():
        made.append(keras.Variable(first, shape=()))
        return made[0].value

    with pytest.raises(ValueError, match=r"^mine$"):
        strategy.run(step)
    assert float(strategy.run(lambda: 1.0).values[0]) == 1.0


def test_keras_by_itself_is_as_ever(strategy):
    with strategy.scope():
        pass
    seed = keras.random.SeedGenerator(7)
    first = keras.random.uniform((3,), seed=seed).tolist()
    assert first == keras.random.uniform((3,), seed=keras.random.SeedGenerator(7)).tolist()
    weight = keras.Variable(1.0)
    keras.optimizers.SGD(1.0).apply([keras.ops.convert_to_tensor(0.25)], [weight])
    assert float(weight) == 0.75


def test_an_exception_leaves_the_scope(strategy):
    with pytest.raises(RuntimeError, match="mine"), strategy.scope():
        raise RuntimeError("mine")
    assert tpu.get_strategy() is not strategy
