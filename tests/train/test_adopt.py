"""Which models train on a strategy, which stay Keras's, and what belongs to which."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import SettingError, StrategyError
from anytpu.train.compiled_models import trainer_of
from keras_oracle import CLASSES, FEATURES, PLACES, agrees, classifier, close, compiled, rows, run, values

X, Y = rows()
FIT = {"batch_size": 8, "epochs": 2, "verbose": 0}


def unbuilt() -> Any:
    return compiled(keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES)]))


def test_a_model_compiled_outside_any_scope_stays_keras():
    tpu.connect("virtual")
    model = classifier()
    assert trainer_of(model) is None
    before = model.train_function
    model.fit(X, Y, **FIT)
    assert before is None
    assert model.train_function.__module__.startswith("keras.")
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_nan'"):
        model.fit(X, Y, on_nan="raise")


@pytest.mark.filterwarnings("ignore:.* is compiled outside of it")
def test_compiled_again_outside_it_goes_back_to_keras():
    def train(model):
        first = model.fit(X, Y, **FIT).history
        compiled(model)
        assert trainer_of(model) is None
        return first, model.fit(X, Y, **FIT), model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0)

    agrees(classifier, train, places=PLACES)


@pytest.mark.parametrize("first", [[keras.layers.Input((4,))], []], ids=["built", "not built"])
def test_what_was_made_in_a_scope_and_is_compiled_outside_is_said(first: list):
    with tpu.connect("virtual", cores=2).scope():
        model = keras.Sequential([*first, keras.layers.Dense(1)], name="lost")
    with pytest.warns(UserWarning) as told:
        model.compile("sgd", "mse")
    assert [str(warning.message) for warning in told] == [
        "'lost' was made in the scope of a strategy and is compiled outside of it, so it trains as plain Keras does, "
        "on one device. To train on all cores, compile it inside: with strategy.scope(): model.compile(...)"
    ]
    assert trainer_of(model) is None


@pytest.mark.parametrize(
    ("setting", "reason"), [("run_eagerly", "run_eagerly=True"), ("jit_compile", "jit_compile=False")]
)
def test_what_cannot_be_compiled_takes_keras_own_path_and_says_so_once(setting: str, reason: str):
    def make():
        value = setting == "run_eagerly"
        return compiled(classifier(), **{setting: value})

    def train(model):
        return model.fit(X, Y, **FIT), model.evaluate(X, Y, verbose=0), model.train_on_batch(X, Y)

    with pytest.warns(UserWarning) as told:
        model, ours = run(make, train, "virtual")
    assert [str(warning.message) for warning in told] == [
        f"{model.name!r} runs in Keras's own loop on one device, not on the cores of the strategy: {reason}"
    ]
    assert told[0].filename == __file__
    close(ours, run(make, train, None)[1])
    with pytest.raises(SettingError) as raised:
        model.fit(X, Y, on_nan="raise")
    assert str(raised.value) == (
        f"on_nan='raise' watches the compiled loop, and {model.name!r} does not use it: {reason}. Remove that, "
        "or pass callbacks=[keras.callbacks.TerminateOnNaN()]"
    )


def test_run_eagerly_set_after_compile():
    model, _ = run(classifier, lambda model: model.fit(X, Y, **FIT), "virtual")
    model.run_eagerly = True
    with pytest.warns(UserWarning, match="run_eagerly=True"):
        model.fit(X, Y, **FIT)
    assert int(model.optimizer.iterations.numpy()) == 24
    model.run_eagerly = False
    model.fit(X, Y, **FIT)
    assert int(model.optimizer.iterations.numpy()) == 36


class OwnFunction(keras.Sequential):
    """A model that makes its own train function."""

    def make_train_function(self, force=False):
        super().make_train_function(force)


def test_a_model_that_makes_its_own_train_function():
    def make():
        return compiled(OwnFunction([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)]))

    with pytest.warns(UserWarning) as told:
        model, ours = run(make, lambda model: model.fit(X, Y, **FIT), "virtual")
    assert [str(warning.message) for warning in told] == [
        f"{model.name!r} runs in Keras's own loop on one device, not on the cores of the strategy: OwnFunction "
        "overrides make_train_function"
    ]
    close(ours, run(make, lambda model: model.fit(X, Y, **FIT), None)[1])


def test_a_model_built_outside_the_scope():
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, name="out")], name="late")
    strategy = tpu.connect("virtual")
    with strategy.scope(), pytest.raises(StrategyError) as raised:
        compiled(model)
    assert str(raised.value) == (
        "the variable 'late/out/kernel' was made outside the scope of <TPUStrategy: v2-8, 8 virtual cores>. Build the "
        "model inside: with strategy.scope(): model = make_model(); model.compile(...)"
    )


def test_a_model_that_fit_has_built_may_be_compiled_again():
    def train(model):
        first = model.fit(X, Y, **FIT).history
        with tpu.connect("virtual").scope() if trainer_of(model) else contextlib.nullcontext():
            model.layers[0].trainable = False
            compiled(model)
        return first, model.fit(X, Y, **FIT), model.predict(X, verbose=0)

    agrees(unbuilt, train)


def test_two_strategies_mixed():
    with tpu.connect("virtual", cores=2).scope():
        model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, name="mixed")], name="two")
    other = tpu.connect("virtual", cores=3)
    with other.scope(), pytest.raises(StrategyError) as raised:
        compiled(model)
    assert str(raised.value) == (
        "mixing different strategies: the variable 'two/mixed/kernel' was made in the scope of a strategy on another "
        f"system than {other!r}. Build the model again in this scope, or compile it in the scope it was made in"
    )


def test_two_strategies_on_one_system_are_one():
    with tpu.connect("virtual").scope():
        model = classifier()
    with tpu.connect("virtual").scope():
        compiled(model)
    assert len(model.fit(X, Y, **FIT).epoch) == 2


def test_a_scope_inside_another():
    outer, inner = tpu.connect("virtual", cores=2), tpu.connect("virtual", cores=3)
    with outer.scope(), pytest.raises(StrategyError) as raised, inner.scope():
        pass
    assert str(raised.value) == (
        f"mixing different strategies: the scope of {inner!r} was opened inside the scope of {outer!r}. Close the "
        "outer scope first; a model belongs to one strategy"
    )


def test_a_strategy_after_shutdown():
    strategy = tpu.connect("virtual", cores=5)
    with strategy.scope():
        model = classifier()
    model.fit(X, Y, **FIT)
    before = model.get_weights()
    tpu.shutdown_tpu_system(strategy.cluster_resolver)
    text = (
        f"the TPU system of {strategy!r} was shut down. Make a new strategy with tpu.connect() and compile the model "
        "again in its scope; the model keeps its weights"
    )
    uses = (
        lambda: model.fit(X, Y, **FIT),
        lambda: model.evaluate(X, Y, verbose=0),
        lambda: model.predict(X, verbose=0),
        lambda: model.train_on_batch(X, Y),
        lambda: strategy.run(lambda: None),
        lambda: strategy.scope().__enter__(),
    )
    for use in uses:
        with pytest.raises(StrategyError) as raised:
            use()
        assert str(raised.value) == text
    close(model.get_weights(), before)
    with tpu.connect("virtual", cores=5).scope():
        compiled(model)
    assert len(model.fit(X, Y, **FIT).epoch) == 2


@pytest.mark.parametrize(("inside", "place"), [(True, "virtual"), (False, "twin")])
def test_saved_models_load_inside_and_outside_a_scope(tmp_path: Path, inside: bool, place: str):
    model, _ = run(classifier, lambda model: model.fit(X, Y, **FIT), place)
    model.save(tmp_path / "model.keras")
    with tpu.connect(place).scope() if inside else contextlib.nullcontext():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (trainer_of(loaded) is not None) is inside
    close(values(loaded)[: len(model.variables)], values(model)[: len(model.variables)])
    plain = keras.models.load_model(tmp_path / "model.keras")
    close(loaded.fit(X, Y, shuffle=False, **FIT), plain.fit(X, Y, shuffle=False, **FIT))
    close(values(loaded), values(plain))
    if inside:
        assert trainer_of(loaded).steps_per_execution is None


def test_steps_per_execution_is_saved(tmp_path: Path):
    model, _ = run(
        lambda: compiled(classifier(), steps_per_execution=4), lambda model: model.fit(X, Y, **FIT), "virtual"
    )
    model.save(tmp_path / "model.keras")
    with tpu.connect("virtual").scope():
        assert trainer_of(keras.models.load_model(tmp_path / "model.keras")).steps_per_execution == 4


def test_saved_weights_load(tmp_path: Path):
    model, _ = run(classifier, lambda model: model.fit(X, Y, **FIT), "twin")
    model.save_weights(tmp_path / "model.weights.h5")
    fresh, _ = run(classifier, lambda model: model.optimizer.build(model.trainable_variables), "twin")
    fresh.load_weights(tmp_path / "model.weights.h5")
    close(fresh.predict(X, verbose=0), model.predict(X, verbose=0))
    close(fresh.fit(X, Y, shuffle=False, **FIT), model.fit(X, Y, shuffle=False, **FIT))


@pytest.mark.parametrize("take", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, keras.models.clone_model])
def test_a_copy_of_a_model(take: Any):
    model, _ = run(classifier, lambda model: model.fit(X, Y, **FIT), "virtual")
    other = take(model)
    other.set_weights(model.get_weights())
    if not other.compiled:
        compiled(other)
    other.fit(X, Y, **FIT)
    close(model.predict(X, verbose=0), model.predict(X, verbose=0))


def test_two_models_that_share_layers_train_in_turn():
    """A generator and a critic, as an adversarial network trains them."""

    def make():
        maker = keras.Sequential([keras.Input((2,)), keras.layers.Dense(FEATURES)])
        critic = keras.Sequential(
            [keras.Input((FEATURES,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
        )
        critic.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.BinaryCrossentropy(from_logits=True))
        critic.trainable = False
        both = keras.Sequential([keras.Input((2,)), maker, critic])
        both.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.BinaryCrossentropy(from_logits=True))
        both.maker, both.critic = maker, critic
        return both

    def train(both):
        noise, ones, logs = X[:, :2], np.ones((48, 1), "float32"), []
        for _ in range(3):
            made = np.array(both.maker(noise[:16]))
            # Keras takes the layers' `trainable` of now, not of compile: it is set here.
            both.critic.trainable = True
            logs.append(both.critic.train_on_batch(np.concatenate([X[:16], made]), ones[:32]))
            both.critic.trainable = False
            logs.append(both.train_on_batch(noise, ones))
        logs.append(both.fit(noise, ones, **FIT).history)
        return logs

    agrees(make, train, places=PLACES)


@pytest.mark.filterwarnings("ignore:.* is compiled outside of it")
def test_a_plain_model_and_ours_share_weights():
    model, _ = run(classifier, lambda model: model.fit(X, Y, **FIT), "twin")
    plain = keras.Model(model.inputs, model.outputs)
    compiled(plain)
    close(plain.predict(X, verbose=0), model.predict(X, verbose=0))
    plain.fit(X, Y, **FIT)
    close(plain.predict(X, verbose=0), model.predict(X, verbose=0))
    model.fit(X, Y, **FIT)
    close(plain.predict(X, verbose=0), model.predict(X, verbose=0))


def test_writing_weights_between_calls():
    def train(model):
        logs = [model.train_on_batch(X, Y)]
        model.set_weights([0.5 * weight for weight in model.get_weights()])
        logs.append(model.train_on_batch(X, Y))
        model.layers[0].kernel.assign_add(np.ones((FEATURES, 8), "float32"))
        model.optimizer.learning_rate = 0.01
        logs.append(model.evaluate(X, Y, verbose=0))
        logs.append(model.fit(X, Y, **FIT))
        model.optimizer.iterations.assign(0)
        return logs, model.fit(X, Y, **FIT)

    agrees(classifier, train, places=PLACES)


def test_a_new_backend_after_a_reset_brings_the_weights_along():
    with tpu.connect("twin", cores=4).scope():
        model = classifier()
    model.fit(X, Y, **FIT)
    before = model.predict(X, verbose=0)
    tpu.initialize_tpu_system(tpu.TPUClusterResolver("twin", cores=4), reset=True)
    with tpu.connect("twin", cores=4).scope():
        compiled(model)
    close(model.predict(X, verbose=0), before)
    assert len(model.fit(X, Y, **FIT).epoch) == 2


def test_a_strict_strategy_names_what_divides():
    with tpu.connect("virtual", strict=True).scope():
        model = classifier()
    with pytest.raises(tpu.errors.DataError) as raised:
        model.fit(X, Y, batch_size=12, verbose=0)
    text = (
        "a batch of {} rows is not divisible by the number of TPU cores in use ({} vs 8): pass a batch_size of {} and "
        "a number of examples that it divides, or a strategy without strict=True, which computes any size exactly"
    )
    assert str(raised.value) == text.format(12, 12, "8 or 16")
    with pytest.raises(tpu.errors.DataError) as raised:
        model.fit(X[:43], Y[:43], batch_size=8, verbose=0)
    assert str(raised.value) == text.format(3, 3, "8")
    with pytest.raises(tpu.errors.DataError) as raised:
        model.train_on_batch(X[:9], Y[:9])
    assert str(raised.value) == text.format(9, 9, "8 or 16")
    assert len(model.fit(X, Y, **FIT).epoch) == 2


def test_nothing_warns_in_a_usual_program():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(unbuilt, lambda model: model.fit(X, Y, validation_split=0.25, **FIT), "virtual")
    assert [str(warning.message) for warning in told] == []
