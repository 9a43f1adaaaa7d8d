"""The scope of a strategy, and its conflicts with `keras.distribution`."""

from __future__ import annotations

import functools
import os
import subprocess

import jax
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError, ReplicaError, StrategyError
from anytpu.program.program_digest import program_digest
from anytpu.strategy.scopes import system_of
from error_texts import error_text
from forked import python


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


X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


@pytest.fixture
def distributed():
    """A function that sets a distribution; it is taken away afterwards."""
    yield lambda: keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=[str(device) for device in jax.devices()[:1]])
    )
    keras.distribution.set_distribution(None)


def said(what: str, name: str = "DataParallel") -> str:
    return (
        f"keras.distribution.{name} is set, and {what} places variables too: two systems cannot place the same ones. "
        "To use the strategy alone, type keras.distribution.set_distribution(None) before the model is made; to use "
        "keras.distribution alone, make and compile the model outside of strategy.scope()"
    )


def compiled():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)], name="small")
    model.compile("sgd", "mse")
    return model


error_of = functools.partial(error_text, kind=StrategyError)


def test_steps_under_a_distribution(strategy, distributed):
    distributed()
    assert error_of(lambda: strategy.run(lambda: 1.0)) == said("strategy.run")
    assert error_of(lambda: strategy.run_steps(lambda batch: batch, iter([X]), 1)) == said("strategy.run_steps")


def test_the_scope_of_a_distribution_counts_too(strategy):
    devices = [str(device) for device in jax.devices()[:1]]
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices)
    layout = keras.distribution.LayoutMap(mesh)
    with keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
        assert error_of(lambda: strategy.run(lambda: 1.0)) == said("strategy.run", "ModelParallel")
    strategy.run(lambda: 1.0)


def test_a_distribution_that_is_set_before_fit(strategy, distributed):
    with strategy.scope():
        model = compiled()
    distributed()
    what = f"{strategy!r}, in whose scope 'small' was compiled,"
    assert error_of(lambda: model.fit(X, Y, verbose=0)) == said(what)
    assert error_of(lambda: model.train_on_batch(X, Y)) == said(what)
    keras.distribution.set_distribution(None)
    model.fit(X, Y, verbose=0)


INSTEAD = (
    "Write the step as a JAX function, and its layout as jax.sharding.NamedSharding on its input_specs. To have each "
    "device hold the whole model, type keras.distribution.set_distribution(None) before the model is made"
)


def test_a_program_under_data_parallelism_is_the_same(distributed):
    before = tpu.program.of(compiled(), batch_size=8)
    distributed()
    after = tpu.program.of(compiled(), batch_size=8)
    assert (program_digest(after), after.layout, after.placement) == (program_digest(before), before.layout, None)


def test_a_program_under_model_parallelism():
    devices = [str(device) for device in jax.devices()[:1]]
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices)
    layout = keras.distribution.LayoutMap(mesh)
    with keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
        model = compiled()
        with pytest.raises(ProgramError) as caught:
            tpu.program.of(model, batch_size=8)
    assert str(caught.value) == (
        f"keras.distribution.ModelParallel is set, and the Program of 'small' would not follow its layout. {INSTEAD}"
    )


def test_a_program_inside_of_a_mesh():
    model = compiled()
    with (
        jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((4, 2), ("data", "model"))),
        pytest.raises(ProgramError) as caught,
    ):
        tpu.program.of(model, batch_size=8)
    assert str(caught.value) == (
        "a mesh is set (data=4, model=2), and the Program of 'small' would not follow it: leave jax.set_mesh out"
    )


SPLIT = """
import anytpu as tpu, jax, keras
devices = [str(device) for device in jax.devices()]
mesh = keras.distribution.DeviceMesh((4, 2), ("batch", "model"), devices)
layout = keras.distribution.LayoutMap(mesh)
layout[".*dense/kernel"] = (None, "model")
with keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch").scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="dense")], name="small")
    model.compile("sgd", "mse")
try:
    tpu.program.of(model, batch_size=8)
except tpu.errors.ProgramError as error:
    print(error)
"""


def test_a_model_that_was_made_under_model_parallelism():
    eight = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PJRT_NPROC": "16"}
    done = subprocess.run(
        [*python(), "-c", SPLIT], env={**os.environ, **eight}, capture_output=True, text=True, check=False
    )
    assert done.stdout == (
        "the variable 'small/dense/kernel' of 'small' is split over 8 devices, and a Program would not follow that. "
        f"{INSTEAD}\n"
    ), done.stderr
