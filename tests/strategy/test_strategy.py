"""`TPUStrategy` and `connect`, and the habits of notebooks: a cell is run again, a system is shut down."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import SettingError, StrategyError
from anytpu.strategy import DefaultStrategy

X, Y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")


def made_and_compiled(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def test_connect():
    strategy = tpu.connect("virtual", cores=3)
    assert strategy.num_replicas_in_sync == 3
    assert repr(strategy) == "<TPUStrategy: 3 virtual cores>"
    assert repr(tpu.connect("v2-8")) == "<TPUStrategy: v2-8, 8 virtual cores>"
    assert tpu.connect("v2-8", strict=True).strict


def test_the_seeds_three_lines():
    resolver = tpu.TPUClusterResolver("v2-8")
    tpu.initialize_tpu_system(resolver)
    strategy = tpu.TPUStrategy(resolver)
    assert strategy.cluster_resolver is resolver
    assert strategy.num_replicas_in_sync == 8


def test_a_strategy_is_made_of_a_resolver():
    with pytest.raises(SettingError) as caught:
        tpu.TPUStrategy("v2-8")
    assert str(caught.value) == (
        "tpu_cluster_resolver must be a TPUClusterResolver, not 'v2-8': type tpu.connect('v2-8')"
    )
    with pytest.raises(SettingError) as caught:
        tpu.TPUStrategy(8)
    assert str(caught.value) == (
        'tpu_cluster_resolver must be a TPUClusterResolver, not 8: type TPUStrategy(tpu.TPUClusterResolver(""))'
    )


def test_get_strategy_is_the_one_in_scope():
    strategy = tpu.connect("virtual", cores=3)
    assert isinstance(tpu.get_strategy(), DefaultStrategy)
    with strategy.scope() as entered:
        assert entered is strategy
        assert tpu.get_strategy() is strategy
    assert tpu.get_strategy().num_replicas_in_sync == 1


def test_strategies_on_one_system_are_interchangeable():
    first, second = tpu.connect("virtual", cores=2), tpu.connect("virtual", cores=2)
    assert first.system is second.system
    model = made_and_compiled(first)
    with second.scope(), first.scope():
        model.fit(X, Y, verbose=0)
    loss = second.run(lambda: model.trainable_variables[0].assign_add([[1.0], [1.0]]))
    assert len(loss.values) == 2
    with second.scope():
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


def test_scopes_of_different_systems_do_not_mix():
    outer, inner = tpu.connect("virtual", cores=2), tpu.connect("virtual", cores=3)
    with outer.scope(), pytest.raises(StrategyError) as caught, inner.scope():
        pass
    assert str(caught.value) == (
        "mixing different strategies: the scope of <TPUStrategy: 3 virtual cores> was opened inside "
        "the scope of <TPUStrategy: 2 virtual cores>. Close the outer scope first; a model belongs to "
        "one strategy"
    )


def test_after_shutdown():
    strategy = tpu.connect("virtual", cores=5)
    model = made_and_compiled(strategy)
    model.fit(X, Y, verbose=0)
    strategy.run(lambda: model.trainable_variables[1].assign([4.0]))
    weights = [np.array(weight.value) for weight in model.weights]
    tpu.shutdown_tpu_system(strategy.cluster_resolver)

    def enter():
        with strategy.scope():
            pass

    for use in (enter, lambda: strategy.run(lambda: None)):
        with pytest.raises(StrategyError) as caught:
            use()
        assert str(caught.value) == (
            "the TPU system of <TPUStrategy: 5 virtual cores> was shut down. Make a new strategy with "
            "tpu.connect() and compile the model again in its scope; the model keeps its weights"
        )
    again = tpu.connect("virtual", cores=5)
    assert again.system is not strategy.system
    with again.scope():
        model.compile("sgd", "mse")
    for weight, before in zip(model.weights, weights, strict=True):
        assert np.array_equal(weight.value, before)
    again.run(lambda: model.trainable_variables[1].assign_add([1.0]))
    assert np.array(model.trainable_variables[1].value).tolist() == [5.0]
    model.fit(X, Y, verbose=0)


def test_numerics_of_a_tpu():
    as_on_a_tpu, here = tpu.connect("virtual", cores=2, numerics="tpu"), tpu.connect("virtual", cores=2)
    assert as_on_a_tpu.system is not here.system
    assert repr(as_on_a_tpu) == "<TPUStrategy: 2 virtual cores, products rounded as on a TPU>"
    assert repr(as_on_a_tpu.part(1)) == "<TPUStrategy: 1 of 2 virtual cores, products rounded as on a TPU>"
    near = np.full((1, 1), 1 + 2**-10, "float32")

    def squared(strategy):
        return float(strategy.reduce("MEAN", strategy.run(lambda x: (x @ x)[0, 0], args=(near,)), axis=None))

    assert squared(as_on_a_tpu) == squared(as_on_a_tpu.part(1)) == 1
    assert squared(here) > 1.001


def test_numerics_in_fit():
    weights = {}
    for numerics in ("machine", "tpu"):
        model = made_and_compiled(tpu.connect("virtual", cores=2, numerics=numerics))
        model.set_weights([np.array([[1.0], [-1.0]]), np.zeros(1)])
        # As far as a TPU can see the two columns are the same, so its first step changes nothing.
        model.fit(np.float32([[1.001, 1.0]] * 8), Y, batch_size=8, epochs=1, verbose=0)
        weights[numerics] = np.array(model.trainable_variables[0].value)
    assert weights["tpu"].ravel().tolist() == [1, -1]
    assert np.all(weights["machine"] != [[1], [-1]])


def test_a_part_is_the_first_cores_and_is_kept():
    strategy = tpu.connect("v2-8")
    part = strategy.part(2)
    assert part.num_replicas_in_sync == 2
    assert part.backend.cores == strategy.backend.cores[:2]
    assert strategy.part(2) is part
    assert strategy.part(8) is strategy
    assert repr(part) == "<TPUStrategy: 2 of v2-8, 8 virtual cores>"
    assert repr(tpu.connect("virtual", cores=3).part(1)) == "<TPUStrategy: 1 of 3 virtual cores>"


def test_strategies_of_one_system_share_the_backends_of_their_parts():
    parts = [tpu.connect("virtual", cores=3).part(2) for _ in range(3)]
    assert parts[0] is not parts[1]
    assert len({id(part.backend) for part in parts}) == 1
    callbacks = len(parts[0].system._callbacks)
    tpu.connect("virtual", cores=3).part(2)
    assert len(parts[0].system._callbacks) == callbacks


def test_a_part_compiles_and_counts_by_itself(strategy):
    part, before = strategy.part(1), strategy.compilations
    assert int(part.run(lambda: jnp.int32(tpu.get_strategy().num_replicas_in_sync))) == 1
    assert (part.compilations, strategy.compilations) == (1, before)


@pytest.mark.parametrize("cores", [0, 3])
def test_there_are_not_so_many(cores, strategy):
    with pytest.raises(SettingError) as caught:
        strategy.part(cores)
    assert str(caught.value) == f"a part of <TPUStrategy: 2 virtual cores> has from 1 to 2 cores, not {cores}"


def test_variables_of_the_whole_belong_to_the_part(strategy):
    with strategy.scope():
        variable = keras.Variable(np.ones(2, "float32"))
    strategy.part(1).run(lambda: variable.assign_add([1.0, 2.0]))
    strategy.run(lambda: variable.assign_add([1.0, 2.0]))
    assert np.array(variable.value).tolist() == [3.0, 5.0]


def test_a_part_stops_with_the_system():
    strategy = tpu.connect("virtual", cores=5)
    part = strategy.part(1)
    tpu.shutdown_tpu_system(strategy.cluster_resolver)
    with pytest.raises(StrategyError, match="was shut down"):
        part.run(lambda: 1)
