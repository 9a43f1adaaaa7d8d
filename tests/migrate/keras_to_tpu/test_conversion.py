"""`keras_to_tpu_model` against plain Keras: what the copy has, what it trains, and what comes back."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import anytpu as tpu
from anytpu.errors import IndivisibleError, SettingError
from keras_oracle import CLASSES, FEATURES, close, compiled, rows

X, Y = rows()


def cores(count: int = 8, **settings: Any) -> tpu.TPUDistributionStrategy:
    return tpu.TPUDistributionStrategy(tpu.TPUClusterResolver("virtual", cores=count), **settings)


def convert(model: Any, count: int = 8) -> Any:
    return tpu.keras_to_tpu_model(model, cores(count))


def dropping() -> Any:
    """Return a built, compiled model with dropout, BatchNorm and an optimizer with slots."""
    keras.utils.set_random_seed(7)
    parts = [
        layers.Dense(8, activation="tanh"),
        layers.Dropout(0.3),
        layers.BatchNormalization(),
        layers.Dense(CLASSES),
    ]
    return compiled(keras.Sequential([keras.Input((FEATURES,)), *parts]), optimizer=keras.optimizers.Adam(0.01))


def state(model: Any) -> list[np.ndarray]:
    """Return the values of a model's weights and seeds and of its optimizer."""
    metrics = {id(variable) for variable in model.metrics_variables}
    kept = [variable for variable in model.variables if id(variable) not in metrics]
    return [np.array(variable.value) for variable in [*kept, *model.optimizer.variables]]


def fit(model: Any, seed: int = 1, **settings: Any) -> Any:
    keras.utils.set_random_seed(seed)
    # Not shuffled: Keras draws one order more for the first fit after a compilation.
    return model.fit(X, Y, batch_size=20, shuffle=False, verbose=0, **settings).history


def test_the_copy_trains_as_the_model_would_and_leaves_it_alone():
    model, plain = dropping(), dropping()
    fit(model), fit(plain)
    before = state(model)

    converted = convert(model)
    history = fit(converted, seed=2, epochs=2, validation_data=(X, Y))

    close(state(model), before, 0)
    close(history, fit(plain, seed=2, epochs=2, validation_data=(X, Y)))
    close(state(converted), state(plain))
    close(converted.evaluate(X, Y, batch_size=1024, verbose=0), plain.evaluate(X, Y, batch_size=1024, verbose=0))
    close(converted.predict(X[:6], verbose=0), plain.predict(X[:6], verbose=0))


def test_what_comes_back_is_the_model_with_slots_step_and_random_numbers():
    model = dropping()
    converted = convert(model)
    fit(converted)
    converted.optimizer.learning_rate = 0.002

    back = converted.sync_to_cpu()

    assert back is model
    assert type(back) is keras.Sequential
    assert int(np.array(back.optimizer.iterations.value)) == 3
    close(back.predict(X, verbose=0), converted.predict(X, verbose=0))
    # Slots, step, learning rate and dropout masks: the next epoch of both is the same.
    close(fit(back, seed=3), fit(converted, seed=3))
    close(state(back), state(converted))


def test_both_train_on_after_a_sync():
    converted = convert(dropping())
    fit(converted)
    back = converted.sync_to_cpu()
    kept = state(back)
    fit(converted, seed=2)
    close(state(back), kept, 0)
    close(state(converted.sync_to_cpu()), state(converted), 0)


def test_a_model_that_is_compiled_after_conversion():
    model, plain = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES)]), None
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    converted = convert(model)

    close(fit(compiled(converted)), fit(compiled(plain)))
    assert not model.compiled
    close(fit(converted.sync_to_cpu()), fit(plain))
    assert model.compiled


def test_another_compilation_comes_back_too():
    model = dropping()
    converted = convert(model)
    converted.compile(keras.optimizers.RMSprop(0.01), "mse", metrics=[keras.metrics.MeanAbsoluteError(name="off")])
    ones = np.ones((48, CLASSES), "float32")
    converted.fit(X, ones, verbose=0)

    back = converted.sync_to_cpu()

    assert type(back.optimizer) is keras.optimizers.RMSprop
    close(back.evaluate(X, ones, verbose=0), converted.evaluate(X, ones, verbose=0))
    assert back.metrics_names == ["loss", "compile_metrics"]


def test_a_model_that_its_first_batch_builds():
    model = compiled(keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(CLASSES)]))
    converted = convert(model)
    fit(converted)
    assert not model.built
    close(converted.sync_to_cpu().predict(X, verbose=0), converted.predict(X, verbose=0))


def test_the_reviews_of_2018(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    # Of 32 bits: from jax 0.11 on, Keras's own loops warn of labels of 64.
    x, y = rng.integers(0, 50, (70, 12), "int32"), rng.integers(0, 2, 70, "int32")
    model = keras.Sequential()
    model.add(layers.Embedding(50, 8))  # Keras 3 has no input_length: the first batch tells.
    model.add(layers.LSTM(10))
    model.add(layers.Dense(1, activation="sigmoid"))
    model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])

    model = convert(model)
    model.fit(x, y, epochs=2, batch_size=64, validation_data=(x, y), verbose=0)
    model.save_weights("./tpu_model.h5", overwrite=True)
    loss, accuracy = model.evaluate(x, y, batch_size=128 * 8, verbose=0)
    on_the_tpu = model.predict(x[:6], verbose=0)
    model = model.sync_to_cpu()

    close(model.predict(x[:6], verbose=0), on_the_tpu)
    close(model.evaluate(x, y, verbose=0), [loss, accuracy])
    assert (tmp_path / "tpu_model.h5").stat().st_size > 0


class Own(keras.Model):
    """A functional model with a training step of its own."""

    def train_step(self, state: Any, batch: Any) -> Any:
        logs, state = super().train_step(state, batch)
        return {**logs, "twice": 2 * logs["loss"]}, state


class Written(keras.Model):
    """A model written as a class, which says what it was made with."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units
        self.hidden, self.out = layers.Dense(units, activation="tanh"), layers.Dense(CLASSES)

    def get_config(self):
        return {"units": self.units}

    def call(self, x):
        return self.out(self.hidden(x))


class Bare(keras.Sequential):
    """A Sequential with a name for itself."""


def own() -> Any:
    inputs = keras.Input((FEATURES,))
    hidden = layers.Dense(8, activation="tanh")(inputs)
    return compiled(Own(inputs, layers.Dense(CLASSES)(hidden)))


def written() -> Any:
    model = compiled(Written(5))
    model(X[:2])
    return model


def shared() -> Any:
    inputs, twice = keras.Input((FEATURES,)), layers.Dense(FEATURES, activation="tanh")
    inner = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(4)])
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(inner(twice(twice(inputs))))))


def frozen() -> Any:
    model = dropping()
    fit(model)
    model.layers[0].trainable = False
    return compiled(model)


def refrozen() -> Any:
    """Return a model of which a layer was frozen after its optimizer had slots for it."""
    model = dropping()
    fit(model)
    model.layers[0].trainable = False
    return model


def normalised() -> Any:
    adapted = layers.Normalization()
    adapted.adapt(X * 3 + 1)
    return compiled(keras.Sequential([keras.Input((FEATURES,)), adapted, layers.Dense(CLASSES)]))


def bare() -> Any:
    return compiled(Bare([keras.Input((FEATURES,)), layers.Dense(CLASSES)]))


@pytest.mark.parametrize("make", [own, written, shared, frozen, normalised, bare])
def test_models_of_every_form(make: Any):
    model = make()
    converted = convert(model, 2)
    assert type(converted).__mro__[2] is type(model)
    history = fit(converted)
    close(history, fit(model))
    close(state(converted), state(model))


def test_a_layer_that_was_frozen_after_compiling():
    model = refrozen()
    converted = convert(model, 2)
    assert len(converted.optimizer.variables) == len(model.optimizer.variables)
    close(state(converted), state(model), 0)


def test_a_metric_and_a_loss_of_ones_own():
    def off(y, p):
        return keras.ops.mean(keras.ops.abs(keras.ops.cast(y, p.dtype) - p[:, 0]))

    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(1)])
    model.compile("sgd", off, metrics=[keras.metrics.MeanAbsoluteError(), off])
    converted = convert(model)
    close(fit(converted), fit(model))


def test_converting_again_goes_on_from_there():
    model = dropping()
    first = convert(model)
    fit(first)
    second = convert(first, 2)
    close(state(second), state(first), 0)
    close(fit(second), fit(first))
    assert second.sync_to_cpu() is model
    close(state(model), state(second), 0)
    assert type(second).__mro__ == type(first).__mro__


def test_one_core_and_the_repr():
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES)], name="small")
    assert repr(tpu.keras_to_tpu_model(model, cores(using_single_core=True))) == (
        "<TPU model of Sequential name=small, built=True, on <TPUStrategy: 1 of v2-8, 8 virtual cores>>"
    )
    assert repr(cores()) == "TPUDistributionStrategy(<TPUStrategy: v2-8, 8 virtual cores>)"


def test_no_strategy_is_the_one_in_scope_or_the_one_that_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TPU_NAME", "v2-8")
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES)], name="small")
    assert repr(tpu.keras_to_tpu_model(model)).endswith("on <TPUStrategy: v2-8, 8 virtual cores>>")
    assert repr(tpu.TPUDistributionStrategy(None)) == "TPUDistributionStrategy(<TPUStrategy: v2-8, 8 virtual cores>)"
    with tpu.connect("virtual", cores=3).scope():
        assert repr(tpu.keras_to_tpu_model(model)).endswith("on <TPUStrategy: 3 virtual cores>>")


def test_a_strategy_of_another_type():
    with pytest.raises(TypeError) as caught:
        tpu.keras_to_tpu_model(dropping(), strategy="grpc://10.0.0.2:8470")
    assert isinstance(caught.value, SettingError)
    assert str(caught.value) == (
        "`strategy` must have type `tpu.TPUDistributionStrategy` or `tpu.TPUStrategy`, or be None. Got: "
        "'grpc://10.0.0.2:8470'. Type tpu.keras_to_tpu_model(model, "
        "strategy=tpu.TPUDistributionStrategy(tpu.TPUClusterResolver(tpu='')))"
    )


def test_what_cannot_be_converted():
    with pytest.raises(SettingError) as caught:
        tpu.keras_to_tpu_model(layers.Dense(3), cores())
    assert str(caught.value).startswith("model must be a Keras model, not <Dense name=dense")

    class Closed(keras.Model):
        def __init__(self, table: Any) -> None:
            super().__init__()
            self.table = table

    with pytest.raises(SettingError) as caught:
        tpu.keras_to_tpu_model(Closed(object()), cores())
    assert str(caught.value).startswith("the model 'closed' cannot be copied to the TPU: ")
    assert str(caught.value).endswith(
        "Give Closed a get_config() and a from_config(), or make it on the TPU from the start: with "
        "tpu.connect().scope(): model = ...; model.compile(...)"
    )


def test_a_stateful_model_runs_on_one_core():
    parts = [layers.LSTM(4, stateful=True, name="going_on"), layers.Dense(CLASSES)]
    model = compiled(keras.Sequential([keras.Input(batch_shape=(4, 3, 2)), *parts]))
    with pytest.warns(UserWarning) as caught:
        converted = convert(model)
    assert [str(warning.message) for warning in caught if warning.category is UserWarning] == [
        "the layer 'going_on' is stateful: row n continues from the state of row n in the previous batch, which "
        "another core may hold. The model runs on a single core"
    ]
    assert repr(converted).endswith("on <TPUStrategy: 1 of v2-8, 8 virtual cores>>")
    x, y = X[:12].reshape(12, 3, 2), Y[:12]
    # Keras's own fit on JAX begins each batch with zeros. A call outside of fit goes on, and so does TensorFlow's fit.
    losses = [float(model.loss(y[start : start + 4], model(x[start : start + 4]))) for start in (0, 4, 8)]
    found = converted.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)["loss"]
    assert found == pytest.approx(np.mean(losses), abs=1e-5)


def test_strict_is_an_assertion():
    converted = tpu.keras_to_tpu_model(dropping(), cores(strict=True))
    with pytest.raises(AssertionError) as caught:
        converted.predict(X[:6], verbose=0)
    assert isinstance(caught.value, IndivisibleError)
    assert str(caught.value) == (
        "a batch of 6 rows is not divisible by the number of TPU cores in use (6 vs 8): pass a batch_size of 8 and a "
        "number of examples that it divides, or a strategy without strict=True, which computes any size exactly"
    )
    assert converted.predict(X[:8], verbose=0).shape == (8, CLASSES)


def test_a_callback_that_saves_the_model(tmp_path: Any):
    converted = convert(dropping())
    saver = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss", save_best_only=True)
    fit(converted, callbacks=[saver])
    loaded = keras.models.load_model(tmp_path / "best.keras")
    assert type(loaded) is keras.Sequential
    close(loaded.predict(X, verbose=0), converted.predict(X, verbose=0))
    close(state(loaded)[-4:], state(converted)[-4:], 0)


def test_a_lambda_layer_shares_its_function_with_the_copy():
    scale = np.float32(3)
    inputs = keras.Input((FEATURES,))
    outputs = layers.Dense(CLASSES)(layers.Lambda(lambda x, power: scale * x**power, arguments={"power": 2})(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    expected = model.predict(X[:8], verbose=0)
    close(convert(model).predict(X[:8], verbose=0), expected)
