from __future__ import annotations

import gc
import os
import signal
import weakref

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, SettingError, StrategyError
from anytpu.strategy import kept_steps


@pytest.fixture
def strategy():
    return tpu.connect("virtual", cores=2)


def test_a_step_made_anew_in_each_call_is_compiled_once(strategy):
    total = keras.Variable(0.0, aggregation="sum")

    def train_step(x):
        def step_fn(x):
            total.assign_add(x)

        strategy.run(step_fn, args=(x,))

    for number in range(5):
        train_step(float(number))
    assert strategy.compilations == 1
    assert float(total) == 20.0


CELL = "def step():\n    model.assign_add(rate)\n    return model.value"


def test_a_new_global_model_is_the_one_that_trains(strategy):
    names = {"model": keras.Variable(0.0), "rate": 1.0}
    exec(CELL, names)
    first = names["model"]
    strategy.run(names["step"])
    names["model"] = keras.Variable(10.0)
    strategy.run(names["step"])
    assert (float(first), float(names["model"])) == (1.0, 11.0)
    assert strategy.compilations == 2
    names["model"] = first
    strategy.run(names["step"])
    assert (float(first), strategy.compilations) == (2.0, 2)


def test_a_changed_global_number_compiles_again(strategy):
    names = {"model": keras.Variable(0.0), "rate": 1.0}
    exec(CELL, names)
    for rate, compilations in ((1.0, 1), (2.0, 2), (1.0, 2)):
        names["rate"] = rate
        strategy.run(names["step"])
        assert strategy.compilations == compilations
    assert float(names["model"]) == 4.0


def test_other_shapes_compile_again(strategy):
    for rows, compilations in ((3, 1), (4, 2), (3, 2)):
        strategy.run(jnp.sum, args=(np.ones(rows, "float32"),))
        assert strategy.compilations == compilations


def test_models_in_arguments_count_by_identity(strategy):
    for _ in range(5):  # Else a new layer might get the address of one that is gone.
        layer = keras.layers.Dense(1, kernel_initializer="zeros")
        layer.build((None, 1))
        out = strategy.run(lambda layer: layer(np.ones((1, 1), "float32")) + layer.bias, args=(layer,))
        assert out.values[0].tolist() == [[0.0]]
        layer.bias.assign([2.0])
        del layer
        gc.collect()


def test_the_number_of_steps_that_are_kept(strategy, monkeypatch):
    monkeypatch.setattr(kept_steps, "MOST_STEPS", 3)
    names = {"rate": 0}
    exec("def step(): return rate", names)
    for rate in range(5):
        names["rate"] = rate
        strategy.run(names["step"])
    assert len(strategy._steps) == 3
    assert strategy.compilations == 5
    strategy.run(names["step"])
    assert strategy.compilations == 5


def test_a_strategy_that_is_dropped_frees_its_steps_and_their_models(strategy):
    def used() -> list[weakref.ref]:
        own = tpu.TPUStrategy(strategy.cluster_resolver)
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])

        def step(x):
            return tpu.value_and_grad(lambda: model(x).sum(), model.trainable_variables)()[0]

        own.run(step, args=(np.ones((2, 2), "float32"),))
        return [weakref.ref(one) for one in (own, model, step)]

    gone = used()
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_the_batch_of_the_first_run_is_not_kept(strategy):
    x = jnp.ones(1000)
    ref = weakref.ref(x)
    strategy.run(jnp.sum, args=(x,))
    del x
    gc.collect()
    assert ref() is None


def test_what_is_run_is_a_function(strategy):
    with pytest.raises(SettingError) as caught:
        strategy.run(3.0)
    assert str(caught.value) == "fn must be a function that one replica runs, not 3.0: strategy.run(fn, args=(x,))"


def test_what_a_step_returns(strategy):
    assert strategy.run(lambda: None) is None

    def step():
        return {"loss": 1.0, "name": "loss"}

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step)
    assert str(caught.value) == (
        "step returns 'loss', and what a function that strategy.run runs returns must be arrays, numbers or None, or "
        "lists, tuples and dictionaries of them. Return anything else from outside of it"
    )


def test_a_step_that_makes_a_new_layer_each_time(strategy):
    def step(x):
        return keras.layers.Dense(1, name="fresh")(x)

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step, args=(np.ones((2, 2), "float32"),))
    assert str(caught.value) == (
        "step makes the variable 'fresh/kernel' anew each time it runs. Make layers, optimizers and metrics once, "
        "outside the function, and use them in it"
    )


def test_after_a_step_that_raises_the_next_one_runs(strategy):
    total = keras.Variable(0.0, aggregation="sum")

    def step(x, fails):
        total.assign_add(x)
        if fails:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        strategy.run(step, args=(1.0, True))
    strategy.run(step, args=(1.0, False))
    assert float(total) == 2.0


def test_what_the_user_assigns_between_two_runs_counts(strategy):
    weight = keras.Variable(np.zeros(3, "float32"))
    for _ in range(2):
        strategy.run(lambda: weight.assign_add(jnp.ones(3)))
    held = np.array(weight.value)
    weight.assign([5.0, 6.0, 7.0])
    strategy.run(lambda: weight.assign_add(jnp.ones(3)))
    assert held.tolist() == [2.0, 2.0, 2.0]
    assert np.array(weight.value).tolist() == [6.0, 7.0, 8.0]


def test_arrays_taken_from_a_variable_stay_what_they_were(strategy):
    weight = keras.Variable(np.zeros(300, "float32"))
    strategy.run(lambda: weight.assign_add(jnp.ones(300)))
    seen = np.asarray(weight.value)
    for _ in range(3):
        strategy.run(lambda: weight.assign_add(jnp.ones(300)))
    assert set(seen.tolist()) == {1.0}


def test_an_interrupt_leaves_the_variables_whole(strategy, capsys):
    weight = keras.Variable(0.0)

    def step():
        weight.assign_add(1.0)

    strategy.run(step)
    executable = next(iter(strategy._steps._steps.values()))[0].executable

    class Interrupted(type(executable)):
        def step(self, state, batch):
            done = super().step(state, batch)
            os.kill(os.getpid(), signal.SIGINT)
            return done

    executable.__class__ = Interrupted
    with pytest.raises(KeyboardInterrupt):
        strategy.run(step)
    assert float(weight) == 2.0
    assert "stopping after the call that runs now" in capsys.readouterr().err


def test_variables_of_another_system(strategy):
    other = tpu.connect("virtual", cores=3)
    with other.scope():
        weight = keras.Variable(0.0, name="level")
    with pytest.raises(StrategyError) as caught:
        strategy.run(lambda: weight.assign_add(1.0))
    assert str(caught.value) == (
        "mixing different strategies: the variable 'level' was made in the scope of a strategy on another system than "
        "<TPUStrategy: 2 virtual cores>. Run the function with the strategy that the variable was "
        "made with, or make the model again in this one's scope"
    )


def test_loss_scaling_is_refused(strategy):
    weight = keras.Variable(1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([weight])

    def step():
        _, gradients = tpu.value_and_grad(lambda: optimizer.scale_loss(weight * 2.0), [weight])()
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step)
    assert str(caught.value) == (
        "a LossScaleOptimizer cannot apply gradients inside strategy.run: it scales the loss for float16, which no TPU "
        "computes with. Use bfloat16, which needs no scaling: "
        'keras.mixed_precision.set_dtype_policy("mixed_bfloat16"), and '
        "the inner optimizer by itself, keras.optimizers.SGD"
    )


def test_a_model_makes_predictions_by_itself(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    rows = strategy.run(model, args=(tpu.PerReplica([np.ones((1, 2), "float32"), np.zeros((1, 2), "float32")]),))
    assert strategy.gather(rows, axis=0).tolist() == [[2.0], [0.0]]
    assert strategy.compilations == 1
    assert isinstance(jax.tree.leaves(rows)[0], tpu.PerReplica)
