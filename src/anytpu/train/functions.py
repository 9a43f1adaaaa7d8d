"""The functions that Keras's loops call, made by a model's trainer: run the steps of a call, get and sync the state.

Idea: `train_on_batch`, `test_on_batch` and `predict_on_batch` have a fast path. In each call Keras's own methods search
the model for unbuilt parts, copy the batch to the device twice, and assign each variable. Only the first call uses
them. After it everything is built, and a call does this: reset the metrics, run one step, return the logs in Keras's
form.

Rule: a call on a batch that needs more, such as a new optimizer or an error to raise, uses Keras's own method.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.engine.feeds import one_batch
from anytpu.train.epochs import PastSteps, narrow
from anytpu.train.keras_program import PARTS
from anytpu.train.trainer import Trainer

MAKERS = ("make_train_function", "make_test_function", "make_predict_function")
"""The public methods with which a Keras model makes the functions that its loops call."""

_MADE: weakref.WeakSet[Callable] = weakref.WeakSet()

TrainerOf = Callable[[Any], Trainer | None]


def install(trainer_class: Any, trainer_of: TrainerOf) -> None:
    """Wrap Keras's methods so that a model with a trainer gets its functions and its state from the trainer."""
    for name, make in zip(MAKERS, (_logging("train"), _logging("test"), _predict), strict=True):
        _keras.wrap(trainer_class, name, _maker(name.split("_")[1] + "_function", make, trainer_of))
    _keras.wrap(trainer_class, "_get_jax_state", _getter(trainer_of))
    _keras.wrap(trainer_class, "jax_state_sync", _syncer(trainer_of))
    _keras.wrap(trainer_class, "_get_metrics_result_or_logs", _results(trainer_of))


def _maker(attribute: str, make: Callable[[Trainer], Callable], trainer_of: TrainerOf) -> Callable:
    def wrap(original: Callable) -> Callable:
        def wrapper(self: Any, force: bool = False) -> Any:
            trainer = trainer_of(self)
            if trainer is None:
                # The model may have left its trainer since; Keras's own path cannot use a function that a trainer made.
                return original(self, force or getattr(self, attribute) in _MADE)
            trainer.resolve()
            function = make(trainer)
            _MADE.add(function)
            setattr(self, attribute, function)
            return None

        return wrapper

    return wrap


def _logging(mode: str) -> Callable[[Trainer], Callable]:
    """Return the maker of the train or the test function, which returns the logs of the last step."""

    def make(trainer: Trainer) -> Callable:
        def step_function(state: Any, group: Any) -> Any:
            if isinstance(group, PastSteps):
                trainer.newest_logs = group.logs
                return group.logs, state
            return trainer.later(mode, trainer.run(mode, group)[-1].last), state

        return step_function

    return make


def _predict(trainer: Trainer) -> Callable:
    def predict_function(state: Any, group: Any) -> Any:
        segments = trainer.run("predict", group)
        parts = [_rows(trainer.backend.get(segment.every), segment.count) for segment in segments]
        return jax.tree.map(_concatenate, *parts), state

    return predict_function


def _concatenate(first: np.ndarray, *others: np.ndarray) -> np.ndarray:
    return np.concatenate([first, *others]) if others else first


def _rows(outputs: Any, count: int) -> Any:
    """Return the predictions `(capacity, rows, ...)` of the first `count` steps as `(count * rows, ...)`."""

    def flatten(leaf: Any) -> np.ndarray:
        host = np.asarray(leaf)[:count]
        return host.reshape(host.shape[0] * host.shape[1], *host.shape[2:]) if host.ndim > 1 else host

    return jax.tree.map(flatten, outputs)


def _getter(trainer_of: TrainerOf) -> Callable:
    def wrap(original: Callable) -> Callable:
        def wrapper(self: Any, **wanted: Any) -> Any:
            trainer = trainer_of(self)
            if trainer is None:
                return original(self, **wanted)
            if wanted.get("optimizer_variables"):
                mode = "train"
            else:
                mode = "test" if wanted.get("metrics_variables") else "predict"
            # Keras unpacks its own lists.
            return trainer.state(mode)[: len(PARTS[mode])]

        return wrapper

    return wrap


def _syncer(trainer_of: TrainerOf) -> Callable:
    def wrap(original: Callable) -> Callable:
        def wrapper(self: Any) -> None:
            if trainer_of(self) is None:
                return original(self)
            # Each variable's value is fetched when it is read.
            self._jax_state_synced = True
            return None

        return wrapper

    return wrap


def _results(trainer_of: TrainerOf) -> Callable:
    """Wrap Keras's choice of the logs of an epoch: the results of the metrics, if these have the names of the logs.

    Keras computes each result from the metric's variables, with transfers and calls of its own. If the last step has
    returned the same results, its logs are taken. All are fetched together.

    A step may return a log with the name of a mean that it has not updated, such as "loss". The mean is 0 then, and the
    log is what the step returned.
    """

    def wrap(original: Callable) -> Callable:
        def wrapper(self: Any, logs: Any) -> Any:
            trainer = trainer_of(self)
            if trainer is None:
                return original(self, logs)
            results = logs if trainer.are_newest(logs) and _are_results(self) else original(self, logs)
            if results is not logs:
                means = [metric for metric in self.metrics if isinstance(metric, keras.metrics.Mean)]
                unused = [mean.name for mean in means if mean.name in logs and not np.asarray(mean.count.value)]
                results = {**results, **{name: logs[name] for name in unused}}
            return trainer.fetched(results)

        return wrapper

    return wrap


_STEPS = ("train_step", "test_step", "compute_metrics", "get_metrics_result", "_update_metrics_variables")
_EXACT = tuple(
    owner.result for owner in (keras.metrics.Mean, keras.metrics.Precision, keras.metrics.Recall, keras.metrics.Sum)
)
"""Results of at most an addition and a division: they have the same bits within a compiled step and outside of it."""


def _are_results(model: Any) -> bool:
    """Return whether the logs of a step are the results of the metrics after it: the model's class leaves both."""
    base = _keras.jax_trainer_module().JAXTrainer
    if any(name in vars(model) or getattr(type(model), name) is not getattr(base, name) for name in _STEPS):
        return False
    compiled = _keras.compiled_metrics(model)
    parts = [part for metric in model.metrics for part in (metric.metrics if metric is compiled else [metric])]
    return all(type(part).result in _EXACT and "result" not in vars(part) for part in parts)


_MODES = {"train_on_batch": "train", "test_on_batch": "test", "predict_on_batch": "predict"}


def can_run_batch(trainer: Trainer, name: str, arguments: dict[str, Any]) -> bool:
    """Return whether `run_batch` can run a call of a method such as "train_on_batch", given its arguments by name."""
    has_both = arguments.get("class_weight") is not None and arguments.get("sample_weight") is not None
    return not has_both and trainer.is_ready(_MODES[name])


def run_batch(trainer: Trainer, name: str, arguments: dict[str, Any]) -> Any:
    """Run one step, and return the result in the form of Keras's method.

    Args:
        trainer: the trainer of the model.
        name: "train_on_batch", "test_on_batch" or "predict_on_batch".
        arguments: arguments of the method, by name.
    """
    model, mode = trainer.model, _MODES[name]
    x, y, weight, class_weight = map(arguments.get, ("x", "y", "sample_weight", "class_weight"))
    if class_weight is not None:
        weight = _keras.class_weights(y, class_weight)
    batch = jax.tree.map(narrow, (x,) if mode == "predict" else (x, y, weight))
    if mode != "predict":
        model.reset_metrics()
    batch = trainer.padding.padded(batch)
    group = one_batch(trainer.backend, batch, trainer.layout_of(mode))
    outputs, _ = getattr(model, f"{mode}_function")(trainer.state(mode), group)
    if mode == "predict":
        return jax.tree.map(np.array, outputs)
    return _keras.returned_logs(model, outputs, arguments.get("return_dict", False))
