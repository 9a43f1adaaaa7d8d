"""How many steps a call runs, what the logs of each step are, and where a pass over the data ends."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import SettingError
from keras_oracle import CLASSES, FEATURES, PLACES, EveryLog, agrees, classifier, close, compiled, rows, run, values

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


def in_groups(steps: Any) -> Any:
    def make():
        model = keras.Sequential(
            [keras.Input((FEATURES,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES)]
        )
        return compiled(model, steps_per_execution=steps)

    return make


@pytest.mark.parametrize(("steps", "size"), [(1, 43), (4, 48), (6, 43), (50, 48)])
def test_callbacks_come_once_a_call(steps: int, size: int):
    def train(model):
        calls = Calls()
        model.fit(X[:size], Y[:size], batch_size=8, epochs=2, callbacks=[calls], verbose=0)
        return [call[-1] for call in calls.calls if call[0] == "end"], [call[:2] for call in calls.calls]

    _, (theirs, their_calls) = run(in_groups(steps), train, None)
    for place in PLACES:
        _, (ours, our_calls) = run(in_groups(steps), train, place)
        close(ours, theirs)
        assert our_calls == their_calls


@pytest.mark.parametrize("size", [48, 43])
def test_the_logs_of_every_step_of_a_call(size: int):
    def train(model):
        calls, every = Calls(), EveryLog()
        callbacks = [calls] if "_anytpu_trainer" in vars(model) else [every]
        model.fit(X[:size], Y[:size], batch_size=8, epochs=6, callbacks=callbacks, verbose=0)
        return calls.every, every.logs

    _, (_, theirs) = run(classifier, train, None)
    for steps, place in zip((4, "auto"), PLACES if size == 48 else PLACES[::-1], strict=True):
        _, (ours, _) = run(in_groups(steps), train, place)
        ours = {name: np.concatenate([logs[name] for logs in ours]) for name in ours[0]}
        close(ours, {name: np.array([logs[name] for logs in theirs], "float32") for name in theirs[0]})


def test_auto_never_crosses_an_epoch():
    calls = Calls()
    run(in_groups("auto"), lambda m: m.fit(X, Y, batch_size=8, epochs=40, callbacks=[calls], verbose=0), "virtual")
    ends = [call[1] for call in calls.calls if call[0] == "end"]
    begins = [call[1] for call in calls.calls if call[0] == "begin"]
    assert ends.count(5) == 40
    assert begins.count(0) == 40
    assert max(len(logs["loss"]) for logs in calls.every) == 6


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
    assert [str(warning.message) for warning in told] == [
        "the data ended after 2 of the 4 steps of epoch 2: a pass has 6 batches, which steps_per_epoch does not "
        "divide. The next epoch starts a new pass"
    ]


class Heard(keras.callbacks.Callback):
    """Keeps the names of the methods that were called, with the epoch or the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []
        for name in dir(keras.callbacks.Callback):
            if name.startswith("on_") and "_batch_" not in name.replace("on_train_batch_", "").replace(
                "on_test_batch_", ""
            ):
                setattr(self, name, self._keeper(name))

    def _keeper(self, name: str) -> Any:
        return lambda number=None, logs=None: self.heard.append((name, number if isinstance(number, int) else None))


def once(batches: int = 6):
    for start in range(0, 8 * batches, 8):
        yield X[start : start + 8], Y[start : start + 8]


class Short(keras.utils.PyDataset):
    """A data set that says how long it is."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]


def arrays() -> dict[str, Any]:
    return {"x": X, "y": Y, "batch_size": 8}


# What is given, and what is asked of it, where the data end before.
ENDS = {
    "arrays": (arrays, {"steps_per_epoch": 9, "epochs": 3}),
    "a data set": (lambda: {"x": Short()}, {"steps_per_epoch": 9, "epochs": 3}),
    "a generator": (lambda: {"x": once()}, {"steps_per_epoch": 9}),
    "a generator, then again": (lambda: {"x": once()}, {"steps_per_epoch": 4, "epochs": 4}),
    "a generator at the end of an epoch": (lambda: {"x": once()}, {"steps_per_epoch": 2, "epochs": 5}),
    "a generator of unknown length": (lambda: {"x": once()}, {"epochs": 3}),
    "the validation": (lambda: {**arrays(), "validation_data": once()}, {"epochs": 3}),
    "the steps of the validation": (
        lambda: {**arrays(), "validation_data": once()},
        {"epochs": 2, "validation_steps": 4},
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("case", "places"), [*zip(ENDS, 4 * (PLACES, PLACES[::-1]), strict=True)], ids=ENDS)
def test_data_that_end_before_end_the_epoch_as_in_keras(case: str, places: tuple[str, str]):
    """The History, the callbacks and the weights are those of plain Keras."""
    make, asked = ENDS[case]

    def train(model):
        heard = Heard()
        history = model.fit(**make(), **asked, callbacks=[heard], shuffle=False, verbose=0)
        return history, heard.heard, values(model)

    plain = {steps: run(in_groups(steps), train, None)[1] for steps in (1, 2)}
    for steps, place in ((1, places[0]), (2, places[1]), ("auto", places[0])):
        theirs, their_calls, their_values = plain[1 if steps == "auto" else steps]
        _, (ours, our_calls, our_values) = run(in_groups(steps), train, place)
        close(ours, theirs)
        assert ours.epoch == theirs.epoch
        assert our_calls == their_calls
        close(our_values, their_values)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("data", ["arrays", "a generator"])
def test_data_that_end_before_the_steps_of_evaluate_and_predict(data: str):
    def use(model):
        given = ENDS[data][0]
        alone = {name: value for name, value in given().items() if name != "y"}
        return model.evaluate(**given(), steps=9, verbose=0), model.predict(**alone, steps=9, verbose=0)

    agrees(classifier, use, places=PLACES)


@pytest.mark.parametrize("data", ["arrays", "a generator"])
def test_it_warns_where_the_data_end_before(data: str):
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.warns(UserWarning) as told:
        model.fit(steps_per_epoch=9, shuffle=False, verbose=0, **ENDS[data][0]())
    assert [str(warning.message) for warning in told] == [
        "the data ended after 6 of the 9 steps of epoch 1, and the epoch ends there, as in Keras. Pass "
        "steps_per_epoch=6 or fewer, or data that does not end, such as a generator with an endless loop"
    ]


def test_it_warns_where_the_data_end_before_the_steps_of_an_evaluation():
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.warns(UserWarning) as told:
        model.evaluate(X, Y, batch_size=8, steps=9, verbose=0)
    assert [str(warning.message) for warning in told] == [
        "the data ended after 6 of the 9 steps, and the epoch ends there, as in Keras. Pass steps=6 or fewer, or data "
        "that does not end, such as a generator with an endless loop"
    ]


EXHAUSTED = (
    "the data is exhausted: a generator can be iterated over only once. This epoch had 2 batches, which Keras kept "
    "from the first epoch. Pass epochs=1, or steps_per_epoch (for validation, validation_steps) with a generator that "
    "does not end, or a data set that starts again, such as a keras.utils.PyDataset"
)


@pytest.mark.parametrize("given", [{"x": "once"}, {"validation_data": "once"}])
def test_it_warns_where_a_generator_is_used_up(given: dict):
    model, _ = run(classifier, lambda model: None, "virtual")
    data = {**arrays(), "validation_data": once()} if "validation_data" in given else {"x": once()}
    with pytest.warns(UserWarning) as told:
        model.fit(**data, epochs=2, shuffle=False, verbose=0)
    assert [str(warning.message) for warning in told] == [EXHAUSTED]


def test_a_last_save_is_kept_where_the_data_end_before(tmp_path):
    model, _ = run(classifier, lambda model: None, "virtual")
    save = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True)
    with pytest.warns(UserWarning, match="the data ended after 6 of the 9 steps of epoch 1"):
        model.fit(once(), steps_per_epoch=9, callbacks=[save], shuffle=False, verbose=0)
    assert [path.name for path in tmp_path.iterdir()] == ["1.weights.h5"]


def test_a_callback_that_raises_stop_iteration_ends_the_epoch_as_in_keras():
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise StopIteration

    def train(model):
        with pytest.warns(UserWarning, match=r"^Your input ran out of data; interrupting training"):
            return model.fit(X, Y, batch_size=8, epochs=2, callbacks=[Stops()], shuffle=False, verbose=0)

    agrees(classifier, train, places=PLACES)


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
