"""Two threads, and one thread inside another call of its own: no weights are lost."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import StrategyError
from estimator_samples import arrays as estimator_arrays
from estimator_samples import estimator, input_fn
from keras_oracle import PLACES, agrees, classifier, close, rows, run, values

X, Y = rows()
FIT: dict[str, Any] = {"epochs": 2, "verbose": 0, "shuffle": False}


class Slow:
    """Batches that stop in the middle until they may go on."""

    def __init__(self) -> None:
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, 48, 8):
            if start == 24:
                self.has_begun.set()
                self.may_go_on.wait()
            yield X[start : start + 8], Y[start : start + 8]


class Aside:
    """A call in another thread: its result, or its error.

    Args:
        call: what is called.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        self.thread = threading.Thread(target=self._run, name="the first")
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def get(self) -> Any:
        self.thread.join()
        if self.error is not None:
            raise self.error
        return self.result


def busy(second: str, first: str) -> str:
    return (
        f"{second} was called in the thread 'MainThread' while {first} runs in the thread 'the first', on the same "
        "variables. One thread at a time can use them: wait for the other one with thread.join(), or give each thread "
        "a model of its own with keras.models.clone_model(model)"
    )


CALLS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda model: model.fit(X, Y, **FIT),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "predict": lambda model: model.predict(X, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X[:8], Y[:8]),
    "test_on_batch": lambda model: model.test_on_batch(X[:8], Y[:8]),
    "predict_on_batch": lambda model: model.predict_on_batch(X[:8]),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_second_thread_is_refused_and_no_weights_are_lost(place: str):
    model, _ = run(classifier, lambda model: None, place)
    slow = Slow()
    first = Aside(lambda: model.fit(iter(slow), shuffle=False, verbose=0))
    slow.has_begun.wait()
    refused = {}
    for name, call in CALLS.items():
        with pytest.raises(StrategyError) as raised:
            call(model)
        refused[name] = str(raised.value)
    slow.may_go_on.set()
    ours = first.get()
    assert refused == {name: busy(f"{name} of {model.name!r}", f"fit of {model.name!r}") for name in CALLS}
    plain, theirs = run(classifier, lambda model: model.fit(X, Y, batch_size=8, shuffle=False, verbose=0), None)
    close(ours, theirs)
    close(values(model), values(plain))
    for call in CALLS.values():
        call(model)


def test_a_converted_model_refuses_a_second_thread_too():
    original = classifier()
    model = tpu.keras_to_tpu_model(original, tpu.TPUDistributionStrategy(tpu.TPUClusterResolver("virtual", cores=2)))
    slow = Slow()
    first = Aside(lambda: model.fit(iter(slow), shuffle=False, verbose=0))
    slow.has_begun.wait()
    with pytest.raises(StrategyError) as raised:
        model.predict(X, verbose=0)
    slow.may_go_on.set()
    first.get()
    assert str(raised.value) == busy(f"predict of {model.name!r}", f"fit of {model.name!r}")


def test_two_models_in_two_threads():
    ours = [run(classifier, lambda model: None, "virtual")[0] for _ in range(2)]
    plain, theirs = run(classifier, lambda model: model.fit(X, Y, **FIT), None)
    threads = [Aside(lambda model=model: model.fit(X, Y, **FIT)) for model in ours]
    for model, thread in zip(ours, threads, strict=True):
        close(thread.get(), theirs)
        close(values(model), values(plain))


class Looks(keras.callbacks.Callback):
    """Evaluates and predicts within fit, after every epoch and after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.seen.append(self.model.predict(X[:8], verbose=0))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(self.model.evaluate(X, Y, verbose=0, return_dict=True))
        self.seen.append(self.model.predict_on_batch(X[:8]))


def test_a_callback_may_evaluate_and_predict():
    def train(model):
        looks = Looks()
        return model.fit(X, Y, batch_size=8, callbacks=[looks], **FIT), looks.seen

    agrees(classifier, train, places=PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_a_generator_may_predict(place: str):
    model, _ = run(classifier, lambda model: None, place)

    def batches() -> Iterator[Any]:
        for start in range(0, 48, 8):
            assert np.isfinite(model.predict(X[:8], verbose=0)).all()
            yield X[start : start + 8], Y[start : start + 8]

    ours = model.fit(batches(), shuffle=False, verbose=0)
    plain, theirs = run(classifier, lambda model: model.fit(X, Y, batch_size=8, shuffle=False, verbose=0), None)
    close(ours, theirs)
    close(values(model), values(plain))


def test_a_callback_may_run_the_variables_in_the_middle_of_an_epoch():
    strategy = tpu.connect("virtual", cores=2)

    class Looks(keras.callbacks.Callback):
        takes_many_steps = True
        seen: list[Any]

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append(strategy.reduce("SUM", strategy.run(lambda: bias.value.sum()), axis=None))

    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = classifier()
    bias, looks = model.layers[0].bias, Looks()
    looks.seen = []
    model.fit(X, Y, batch_size=8, callbacks=[looks], **FIT)
    keras.utils.set_random_seed(4)
    plain = classifier()
    plain.fit(X, Y, batch_size=8, **FIT)
    close(values(model), values(plain))
    assert float(looks.seen[-1]) == pytest.approx(2 * float(np.sum(bias.value)), rel=1e-5)


def counted(strategy: Any) -> tuple[Any, Callable[..., Any]]:
    with strategy.scope():
        count = keras.Variable(np.zeros((), "float32"), name="count", aggregation="only_first_replica")

    def step(batch: Any = None) -> Any:
        count.assign_add(1.0)
        return count.value

    return count, step


def test_steps_of_two_threads_on_the_same_variables_all_count():
    strategy = tpu.connect("virtual", cores=2)
    count, step = counted(strategy)

    def often() -> None:
        for _ in range(100):
            strategy.run(step)

    often()
    threads = [Aside(often) for _ in range(2)]
    for thread in threads:
        thread.get()
    assert float(count.value) == 300


def test_a_loop_of_steps_keeps_its_variables_to_itself():
    strategy = tpu.connect("virtual", cores=2)
    count, step = counted(strategy)
    has_begun, may_go_on = threading.Event(), threading.Event()

    def batches() -> Iterator[Any]:
        for index in range(20):
            if index == 19:
                has_begun.set()
                may_go_on.wait()
            yield np.zeros(2, "float32")

    dealt = iter(strategy.distribute_dataset(batches()))
    first = Aside(lambda: [strategy.run_steps(step, dealt, steps=1), strategy.run_steps(step, dealt, steps=19)])
    has_begun.wait()
    with pytest.raises(StrategyError) as raised:
        strategy.run(step)
    may_go_on.set()
    first.get()
    assert str(raised.value) == busy("strategy.run", "strategy.run_steps")
    strategy.run(step)
    assert float(count.value) == 21


def test_an_estimator_refuses_a_second_thread(tmp_path: Any):
    one = estimator(tmp_path)
    x, y = estimator_arrays()
    has_begun, may_go_on = threading.Event(), threading.Event()

    def slow(params: dict[str, Any]) -> Iterator[Any]:
        for index in range(4):
            if index == 2:
                has_begun.set()
                may_go_on.wait()
            yield x[:16], y[:16]

    first = Aside(lambda: one.train(slow, steps=4))
    has_begun.wait()
    said = []
    for call in (
        lambda: one.train(input_fn, steps=1),
        lambda: one.evaluate(input_fn, steps=1),
        lambda: next(one.predict(input_fn)),
    ):
        with pytest.raises(StrategyError) as raised:
            call()
        said.append(str(raised.value))
    may_go_on.set()
    first.get()
    name = f"of the estimator of {one.model_dir!r}"
    assert said == [busy(f"{verb} {name}", f"train {name}") for verb in ("train", "evaluate", "predict")]
    assert one.evaluate(input_fn, steps=1)["global_step"] == 4


def test_an_exit_in_a_generator_or_a_callback_leaves_the_model_whole():
    def leaves() -> Iterator[Any]:
        yield X[:8], Y[:8]
        yield X[8:16], Y[8:16]
        raise SystemExit(3)

    class Leaves(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise SystemExit(4)

    for place in PLACES:
        model, _ = run(classifier, lambda model: None, place)
        with pytest.raises(SystemExit, match="3"):
            # Keras looks at two batches before it begins.
            model.fit(leaves(), shuffle=False, verbose=0)
        with pytest.raises(SystemExit, match="4"):
            model.fit(X, Y, callbacks=[Leaves()], **FIT)
        assert all(np.isfinite(value).all() for value in values(model))
        model.fit(X, Y, **FIT)


def test_what_stops_a_fit_leaves_no_thread_of_the_data_set():
    before = set(threading.enumerate())
    model, _ = run(classifier, lambda model: None, "virtual")

    class Raises(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("broken callback")

    def broken(index: int) -> Any:
        if index == 5:
            raise OSError("disk gone")
        return X[:8], Y[:8]

    data = tpu.pipeline.Dataset.from_source(list(range(8))).map(broken).prefetch(1, threads=2)
    endless = tpu.pipeline.Dataset.from_generator(lambda: iter(lambda: (X[:8], Y[:8]), None))
    with pytest.raises(OSError, match="disk gone") as kept:
        model.fit(data, shuffle=False, verbose=0)
    with pytest.raises(RuntimeError, match="broken callback") as kept_too:
        model.fit(endless, steps_per_epoch=20, callbacks=[Raises()], shuffle=False, verbose=0)
    # Those that end them end too. A kept error keeps the frame of Keras's fit on Python 3.13, and so its idle thread
    # for callbacks.
    of_keras = {
        thread
        for callbacks in gc.get_objects()
        if isinstance(callbacks, keras.callbacks.CallbackList) and callbacks._executor is not None
        for thread in callbacks._executor._threads
    }
    others = before | of_keras
    while left := [
        thread for thread in threading.enumerate() if thread not in others and not thread.name.startswith("jax")
    ]:
        left[0].join()
    assert kept.value is not kept_too.value
    model.fit(X, Y, **FIT)
