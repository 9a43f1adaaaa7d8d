"""How many steps a call runs, what the logs of each step are, and where a pass over the data ends."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataExhaustedError, SettingError
from keras_oracle import CLASSES, FEATURES, PLACES, agrees, classifier, close, compiled, rows, run, values

X, Y = rows()


class Calls(keras.callbacks.Callback):
    """Keeps the step and the logs of each call, and the logs of every step of it where there are such."""

    takes_many_steps = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.every: list[Any] = []

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch, {name: float(value) for name, value in logs.items()}))
        if "_anytpu_trainer" in vars(self.model):
            self.every.append(tpu.step_logs(self.model))


class EveryLog(keras.callbacks.Callback):
    """Keeps the logs of every step, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[Any] = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append({name: float(value) for name, value in logs.items()})


def in_groups(steps: Any) -> Any:
    def make():
        model = keras.Sequential(
            [keras.Input((FEATURES,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES)]
        )
        return compiled(model, steps_per_execution=steps)

    return make


@pytest.mark.parametrize("size", [48, 43])
@pytest.mark.parametrize("steps", [1, 4, 6, 50])
def test_callbacks_come_once_a_call(steps: int, size: int):
    def train(model):
        calls = Calls()
        model.fit(X[:size], Y[:size], batch_size=8, epochs=2, callbacks=[calls], verbose=0)
        return [call[-1] for call in calls.calls if call[0] == "end"], [call[:2] for call in calls.calls]

    _, (theirs, their_calls) = run(in_groups(steps), train, None)
    for place in PLACES:
        _, (ours, our_calls) = run(in_groups(steps), train, place)
        close(ours, theirs)
        # Keras counts the steps of a call to k even where the epoch is over before.
        assert our_calls == [(name, min(step, 5)) for name, step in their_calls]


@pytest.mark.parametrize("steps", [4, "auto"])
@pytest.mark.parametrize("size", [48, 43])
@pytest.mark.parametrize("place", PLACES)
def test_the_logs_of_every_step_of_a_call(place: str, size: int, steps: Any):
    def train(model):
        calls, every = Calls(), EveryLog()
        callbacks = [calls] if "_anytpu_trainer" in vars(model) else [every]
        model.fit(X[:size], Y[:size], batch_size=8, epochs=6, callbacks=callbacks, verbose=0)
        return calls.every, every.logs

    _, (_, theirs) = run(classifier, train, None)
    _, (ours, _) = run(in_groups(steps), train, place)
    ours = {name: np.concatenate([one[name] for one in ours]) for name in ours[0]}
    close(ours, {name: np.array([one[name] for one in theirs], "float32") for name in theirs[0]})


def test_auto_never_crosses_an_epoch():
    calls = Calls()
    run(in_groups("auto"), lambda m: m.fit(X, Y, batch_size=8, epochs=40, callbacks=[calls], verbose=0), "virtual")
    ends = [call[1] for call in calls.calls if call[0] == "end"]
    begins = [call[1] for call in calls.calls if call[0] == "begin"]
    assert ends.count(5) == 40
    assert begins.count(0) == 40
    assert max(len(one["loss"]) for one in calls.every) == 6


def test_a_callback_on_batches_forces_one_step_a_call_of_auto_only():
    for steps, expected in (("auto", 6 * 20), (4, 2 * 20)):
        every = EveryLog()
        run(
            in_groups(steps),
            lambda m, e=every: m.fit(X, Y, batch_size=8, epochs=20, callbacks=[e], verbose=0),
            "virtual",
        )
        assert len(every.logs) == expected


def endless():
    while True:
        for start in range(0, 48, 8):
            yield X[start : start + 8], Y[start : start + 8]


@pytest.mark.parametrize("steps", [1, 4, 50])
def test_a_generator_in_groups_loses_no_batch(steps: int):
    """Also when its first batch builds the model."""

    def unbuilt(steps=steps):
        model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES)])
        return compiled(model, steps_per_execution=steps)

    def train(model):
        return (
            model.fit(endless(), steps_per_epoch=7, epochs=3, shuffle=False, verbose=0),
            model.evaluate(endless(), steps=7, verbose=0),
            model.predict(endless(), steps=7, verbose=0),
        )

    _, theirs = run(lambda: unbuilt(1), train, None)
    for place in PLACES:
        close(run(unbuilt, train, place)[1], theirs)


def test_auto_after_a_first_fit_loses_no_batch_of_a_generator():
    def train(model):
        first = model.fit(X, Y, batch_size=8, epochs=10, verbose=0).history
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss=model.loss, metrics=["accuracy"])
        return first, model.fit(endless(), steps_per_epoch=7, epochs=3, shuffle=False, verbose=0)

    def train_in_scope(model):
        with tpu.connect("virtual").scope():
            return train(model)

    _, theirs = run(classifier, train, None)
    close(run(classifier, train_in_scope, "virtual")[1], theirs)


def test_predict_in_groups():
    def use(model):
        return model.predict(X[:43], batch_size=8, verbose=0), model.evaluate(X[:43], Y[:43], batch_size=8, verbose=0)

    _, theirs = run(classifier, use, None)
    for place in PLACES:
        close(run(in_groups(4), use, place)[1], theirs)


@pytest.mark.parametrize("steps", [4, 5])
def test_a_pass_that_steps_do_not_divide(steps: int):
    def train(model):
        return model.fit(X, Y, batch_size=8, steps_per_epoch=steps, epochs=4, verbose=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(classifier, train, places=PLACES)


def test_it_warns_where_a_pass_ends_inside_an_epoch():
    with pytest.warns(UserWarning) as told:
        run(classifier, lambda m: m.fit(X, Y, batch_size=8, steps_per_epoch=4, epochs=2, verbose=0), "virtual")
    assert [str(one.message) for one in told] == [
        "the data ended after 2 of the 4 steps of epoch 2: a pass has 6 batches, which steps_per_epoch does not "
        "divide. The next epoch starts a new pass"
    ]


@pytest.mark.parametrize("data", ["arrays", "generator"])
def test_a_pass_too_short_for_an_epoch(data: str):
    model, _ = run(classifier, lambda model: None, "virtual")
    given = {"x": X, "y": Y, "batch_size": 8} if data == "arrays" else {"x": once(), "shuffle": False}
    with pytest.raises(DataExhaustedError) as raised:
        model.fit(steps_per_epoch=9, verbose=0, **given)
    assert str(raised.value) == (
        "the data ended after 6 of the 9 steps of epoch 1. The model stands at the last finished step. Pass "
        "steps_per_epoch=6 or fewer, or data that goes on, such as a generator with an endless loop"
    )
    assert int(model.optimizer.iterations.numpy()) == 6
    assert len(model.fit(X, Y, verbose=0).epoch) == 1


def once():
    for start in range(0, 48, 8):
        yield X[start : start + 8], Y[start : start + 8]


def test_a_generator_that_is_used_up_in_the_second_epoch():
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(DataExhaustedError) as raised:
        model.fit(once(), epochs=2, shuffle=False, verbose=0)
    assert str(raised.value) == (
        "the data is used up: a generator can be walked over once only. Pass epochs=1, or steps_per_epoch (for "
        "validation, validation_steps) with a generator that goes on, or a data set that starts again, such as a "
        "keras.utils.PyDataset"
    )
    assert int(model.optimizer.iterations.numpy()) == 6


def test_validation_data_that_is_used_up():
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(DataExhaustedError, match="the data is used up"):
        model.fit(X, Y, validation_data=once(), epochs=2, verbose=0)
    assert len(model.fit(X, Y, validation_data=once(), verbose=0).epoch) == 1


class Shrinking:
    """A data set of unknown length whose second pass is shorter than its first."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        for start in range(0, 48 // self.passes, 8):
            yield X[start : start + 8], Y[start : start + 8]


def test_a_pass_may_be_shorter_than_the_one_before():
    grain = pytest.importorskip("grain")

    class Source(grain.IterDataset):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __iter__(self):
            return Walk(iter(self.inner))

    class Walk(grain.DatasetIterator):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __next__(self):
            return next(self.inner)

        def get_state(self):
            return {}

        def set_state(self, state):
            pass

    def train(model):
        model.fit(Source(Shrinking()), epochs=3, shuffle=False, verbose=0)
        return int(model.optimizer.iterations.numpy())

    # Keras walks over a data set once more to see its shapes.
    assert run(classifier, train, "virtual")[1] == run(classifier, train, None)[1] < 18


def test_a_generator_that_is_used_up_in_a_second_fit():
    model, _ = run(classifier, lambda model: None, "virtual")
    generator = once()
    model.fit(generator, shuffle=False, verbose=0)
    with pytest.raises(ValueError, match="Received an empty generator"):
        model.fit(generator, shuffle=False, verbose=0)
    assert len(model.fit(X, Y, verbose=0).epoch) == 1


@pytest.mark.parametrize("steps", [0, -1, 1.5, "fast", True, None])
def test_steps_per_execution_that_cannot_be(steps: Any):
    with tpu.connect("virtual").scope(), pytest.raises(SettingError) as raised:
        in_groups(steps)()
    assert str(raised.value) == (
        'steps_per_execution must be a positive integer, or "auto" to choose by the clock (the default), not '
        + repr(steps)
    )


def test_step_logs_of_a_plain_model():
    model = classifier()
    with pytest.raises(tpu.errors.StrategyError) as raised:
        tpu.step_logs(model)
    assert str(raised.value) == (
        f"{model.name!r} was not compiled in the scope of a strategy, so it keeps no logs of each step: compile it in "
        "with strategy.scope():"
    )


def test_step_logs_before_a_first_step():
    model, _ = run(classifier, lambda model: None, "virtual")
    assert tpu.step_logs(model) == {}


def test_the_state_is_that_of_plain_keras_between_groups():
    def train(model):
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
        return [value for value in values(model) if value.ndim]

    _, theirs = run(classifier, train, None)
    for steps in (3, 5):
        close(run(in_groups(steps), train, "twin")[1], theirs)
