"""What goes wrong during training leaves the model whole, and the next fit works."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, NaNLossError, SettingError
from keras_oracle import PLACES, classifier, close, compiled, rows, run, values

X, Y = rows()
FIT = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}


def raiser(method: str, at: int) -> keras.callbacks.Callback:
    """Return a callback that raises in a method."""

    def call(self, number=None, logs=None):
        if at == (number if isinstance(number, int) else 0):
            raise RuntimeError("broken callback")

    return type("Raises", (keras.callbacks.Callback,), {method: call})()


FIT_METHODS = ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"]
TEST_METHODS = ["on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end"]


def still_works(model: Any) -> None:
    """Assert that a model trains on from where its variables say it stands, as plain Keras does."""
    keras.utils.set_random_seed(4)
    plain = classifier()
    for trained in (plain, model):
        trained.optimizer.build(trained.trainable_variables)
    plain.set_weights(model.get_weights())
    for mine, others in zip(plain.optimizer.variables, model.optimizer.variables, strict=True):
        mine.assign(np.array(others.value))
    close(model.fit(X, Y, **FIT), plain.fit(X, Y, **FIT))
    close(model.evaluate(X, Y, verbose=0), plain.evaluate(X, Y, verbose=0))
    close(model.predict(X, verbose=0), plain.predict(X, verbose=0))
    close(values(model), values(plain))


@pytest.mark.parametrize(("method", "place"), [*zip(FIT_METHODS, (*PLACES, *PLACES, PLACES[0]), strict=True)])
def test_a_callback_that_raises_in_fit(method: str, place: str):
    model, _ = run(classifier, lambda model: None, place)
    at = {"on_train_batch_begin": 3, "on_train_batch_end": 3}.get(method, 0)
    with pytest.raises(RuntimeError, match="broken callback"):
        model.fit(X, Y, callbacks=[raiser(method, at)], **FIT)
    done = {"on_train_batch_begin": 3, "on_train_batch_end": 4, "on_epoch_end": 6}.get(method, 0)
    assert int(model.optimizer.iterations.numpy()) == done
    still_works(model)


@pytest.mark.parametrize("method", TEST_METHODS)
def test_a_callback_that_raises_in_an_evaluation_or_a_validation(method: str):
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(RuntimeError, match="broken callback"):
        model.evaluate(X, Y, batch_size=8, callbacks=[raiser(method, 0)], verbose=0)
    with pytest.raises(RuntimeError, match="broken callback"):
        model.fit(X, Y, validation_data=(X, Y), callbacks=[raiser(method, 0)], **FIT)
    assert int(model.optimizer.iterations.numpy()) == 6
    still_works(model)


def test_a_callback_that_raises_in_a_prediction():
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(RuntimeError, match="broken callback"):
        model.predict(X, batch_size=8, callbacks=[raiser("on_predict_batch_end", 1)], verbose=0)
    still_works(model)


def broken():
    for start in range(0, 32, 8):
        yield X[start : start + 8], Y[start : start + 8]
    raise OSError("disk gone")


@pytest.mark.parametrize("place", PLACES)
def test_a_generator_that_raises(place: str):
    model, _ = run(classifier, lambda model: None, place)
    with pytest.raises(OSError, match="disk gone"):
        model.fit(broken(), shuffle=False, verbose=0)
    with pytest.raises(OSError, match="disk gone"):
        model.evaluate(broken(), verbose=0)
    with pytest.raises(OSError, match="disk gone"):
        model.predict(broken(), verbose=0)
    assert int(model.optimizer.iterations.numpy()) <= 4
    still_works(model)


class Broken(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 4:
            raise OSError("disk gone")
        return X[:8], Y[:8]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_data_set_that_raises(workers: int):
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(OSError, match="disk gone"):
        model.fit(Broken(workers=workers), shuffle=False, verbose=0)
    still_works(model)


def test_a_step_that_raises_while_it_is_traced():
    class Picky(keras.layers.Layer):
        def call(self, x, training=False):
            if training and x.shape[0] == 3:
                raise ZeroDivisionError("three rows")
            return x

    def make():
        parts = [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), Picky(), keras.layers.Dense(3)]
        return compiled(keras.Sequential(parts))

    model, _ = run(make, lambda model: None, "twin")
    with pytest.raises(ZeroDivisionError, match="three rows"):
        model.fit(X[:43], Y[:43], **FIT)
    assert int(model.optimizer.iterations.numpy()) == 5
    still_works(model)


def test_wrong_shapes_then_right_ones():
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(ValueError, match="incompatible"):
        model.fit(X[:, :4], Y, **FIT)
    still_works(model)


@pytest.mark.parametrize(("place", "steps"), [("twin", 1), ("virtual", 4), ("twin", "auto")])
def test_nan_raises_and_names_step_and_epoch(place: str, steps: Any):
    spoiled = X.copy()
    spoiled[19] = np.nan

    def make():
        return compiled(classifier(), steps_per_execution=steps)

    model, _ = run(make, lambda model: model.fit(X, Y, **FIT), place)
    with pytest.raises(NaNLossError) as raised:
        model.fit(spoiled, Y, initial_epoch=3, **{**FIT, "epochs": 5}, on_nan="raise")
    assert str(raised.value) == (
        "the loss or a new weight is not finite at step 3 of epoch 4. The model stands as it was before that step. "
        "Lower the learning rate, clip the gradients (clipnorm=1.0), or look for NaN in the data"
    )
    assert int(model.optimizer.iterations.numpy()) == 14
    assert all(np.isfinite(value).all() for value in values(model))
    still_works(model)


def test_nan_in_a_later_epoch():
    def make():
        return compiled(classifier(), optimizer=keras.optimizers.SGD(0.1))

    class Spoil(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.layers[0].bias.assign(np.full(8, np.nan, "float32"))

    model, _ = run(make, lambda model: None, "virtual")
    with pytest.raises(NaNLossError, match="at step 1 of epoch 2"):
        model.fit(X, Y, callbacks=[Spoil()], **FIT, on_nan="raise")


@pytest.mark.parametrize("steps", [1, 4, "auto"])
def test_a_step_with_nan_is_skipped(steps: Any, caplog: pytest.LogCaptureFixture):
    """The weights equal those of a fit without the batch, the last of its epoch; so does the loss of the epoch."""
    spoiled = np.concatenate([X[:32], np.full((8, X.shape[1]), np.nan, "float32")])

    def fit(x: Any, on_nan: Any) -> Any:
        keras.utils.set_random_seed(4)
        layers = keras.layers
        with tpu.connect("virtual", cores=2).scope():
            parts = [keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dropout(0.5), layers.Dense(3)]
            model = compiled(keras.Sequential(parts), steps_per_execution=steps)
        settings = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
        history = model.fit(x, Y[: len(x)], **settings, on_nan=on_nan).history
        return history, [value.tobytes() for value in values(model)]

    assert fit(spoiled, "skip") == fit(X[:32], "raise")
    lines = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    said = "1 of the 5 steps of epoch {} were skipped: the loss or a new weight was not finite"
    assert lines == [said.format(epoch) for epoch in (1, 2, 3)]


@pytest.mark.parametrize("on_nan", ["raise", "skip"])
def test_a_finite_loss_with_nan_gradients(on_nan: str):
    """The gradient of sqrt at 0 is infinite, and 0 times infinity is NaN."""

    class Root(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.sqrt(keras.ops.sum(keras.ops.square(y_pred - y_true), axis=-1))

    with tpu.connect("virtual", cores=2).scope():
        model: Any = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.1), Root())
    data = np.ones((200, 2), "float32"), np.zeros((200, 1), "float32")
    message = (
        "the loss or a new weight is not finite at step 1 of epoch 1. The model stands as it was before that step."
        if on_nan == "raise"
        else 'on_nan="skip" skipped the last 100 steps, in epoch 2: the loss or a new weight was not finite in each. '
        "The model stands as it was before them."
    )
    with pytest.raises(NaNLossError) as raised:
        model.fit(*data, batch_size=4, epochs=5, verbose=0, on_nan=on_nan)
    assert str(raised.value).startswith(message)
    assert all(np.isfinite(value).all() for value in model.get_weights())


def test_without_on_nan_it_trains_on_as_keras_does():
    spoiled = X.copy()
    spoiled[19] = np.nan
    with pytest.warns(UserWarning) as warned:
        _, ours = run(classifier, lambda model: model.fit(spoiled, Y, **FIT), "virtual")
    assert np.isnan(ours.history["loss"]).all()
    assert [(str(each.message), each.filename) for each in warned] == [
        (
            "the loss is nan, and x has NaN or infinity, first in row 19. Remove or fill such rows, and make the model "
            'anew; fit(on_nan="raise") keeps its last finite weights',
            __file__,
        )
    ]


def test_nan_that_was_skipped_is_told_too():
    model, seen = run(classifier, lambda model: model.get_weights(), "virtual")
    text = "the loss is nan, and x has NaN or infinity, first in row 0. Remove or fill such rows"
    with pytest.warns(UserWarning) as warned:
        model.fit(X * np.nan, Y, **FIT, on_nan="skip")
    assert [str(each.message) for each in warned] == [f"{text}: the steps with them were skipped"]
    assert all(map(np.array_equal, model.get_weights(), seen))
    with pytest.warns(UserWarning) as warned:
        model.fit(jnp.asarray(X * np.nan, "bfloat16"), Y, **FIT)
    assert str(warned[0].message).startswith(f"{text}, and make the model anew; ")


@pytest.mark.filterwarnings("ignore:the loss is nan")
def test_on_nan_forgets_itself():
    spoiled = X.copy()
    spoiled[19] = np.nan
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(NaNLossError):
        model.fit(spoiled, Y, **FIT, on_nan="raise")
    assert np.isnan(model.fit(spoiled, Y, **FIT).history["loss"]).all()


@pytest.mark.parametrize("value", ["stop", True, 0])
def test_on_nan_that_is_not_known(value: Any):
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(SettingError) as raised:
        model.fit(X, Y, on_nan=value)
    assert str(raised.value) == f'on_nan must be "raise", "skip", or None to train on as Keras does, not {value!r}'


def test_a_fit_inside_a_callback_of_another():
    inner, _ = run(classifier, lambda model: None, "twin")

    class Nested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            inner.fit(X, Y, **FIT)

    model, _ = run(classifier, lambda model: model.fit(X, Y, callbacks=[Nested()], **FIT), "twin")
    assert int(inner.optimizer.iterations.numpy()) == 24
    assert int(model.optimizer.iterations.numpy()) == 12
    plain, _ = run(classifier, lambda model: model.fit(X, Y, **FIT), None)
    close(values(model)[:4], values(plain)[:4])


def test_data_larger_than_memory_travels_in_batches(monkeypatch: pytest.MonkeyPatch):
    def train(model):
        return model.fit(X[:43], Y[:43], batch_size=8, epochs=3, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0)

    _, theirs = run(classifier, train, None)
    monkeypatch.setattr("anytpu.train.trainer.Trainer.fits", lambda self, arrays: False)
    for place in PLACES:
        close(run(classifier, train, place)[1], theirs)
    assert tpu.get_strategy().num_replicas_in_sync == 1


class Batches(keras.utils.PyDataset):
    """Batches of these numbers of rows."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return X[: self.sizes[index]], Y[: self.sizes[index]]


@pytest.mark.parametrize("sizes", [(0, 8), (8, 0, 8), (8, 0)])
def test_a_batch_without_rows(sizes: tuple[int, ...]):
    with tpu.connect("virtual", cores=2).scope():
        model = compiled(classifier())
    text = (
        "the data yielded a batch of 0 rows, and a step has no loss for it. Leave empty batches out, for example in "
        "the generator: if len(x): yield x, y"
    )
    for call in (model.fit, model.evaluate):
        with pytest.raises(DataError) as caught:
            call(Batches(*sizes), verbose=0)
        assert str(caught.value) == text
    assert len(model.predict(Batches(*sizes), verbose=0)) == sum(sizes)
    still_works(model)
