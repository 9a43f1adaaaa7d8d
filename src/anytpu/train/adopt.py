"""How a Keras model that is compiled in the scope of a strategy comes to train on its cores.

Idea: Keras's `compile`, `fit`, `evaluate` and `predict` stay what the user calls. `compile` inside a scope gives the model a
`Trainer`; from then on the few methods that Keras itself overrides for each of its backends (make a train function, get and
put back the state) ask that trainer. A model without one is Keras's as ever.

Rule: the wrappers are put on once. What cannot go through the compiled loop (`run_eagerly`, `jit_compile=False`, a model
that overrides `make_train_function`) takes Keras's own path, and says so once.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras

from anytpu import _keras
from anytpu.engine.interrupts import deferred_interrupts
from anytpu.errors import StrategyError
from anytpu.strategy.current import CURRENT
from anytpu.strategy.scopes import system_of
from anytpu.train import checks, functions
from anytpu.train.epochs import Epochs
from anytpu.train.trainer import Trainer

_TRAINER = "_anytpu_trainer"
_ACTIVE: contextvars.ContextVar[_Running | None] = contextvars.ContextVar("trainer", default=None)
_MODES = {"fit": "train", "evaluate": "test", "predict": "predict"}


@dataclasses.dataclass
class _Running:
    """The Keras loop that runs: whose it is, and the mode of the next epoch iterator that it makes."""

    trainer: Trainer
    mode: str


@functools.cache
def install() -> None:
    """Put the wrappers on Keras, once."""
    module = _keras.jax_trainer_module()
    trainer = module.JAXTrainer
    _keras.wrap(_keras.trainer_class(), "compile", _compile)
    for name in _MODES:
        _keras.wrap(trainer, name, functools.partial(_loop, name))
    for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
        _keras.wrap(trainer, name, _on_batch)
    functions.install(trainer, trainer_of)
    _keras.wrap(module, "JAXEpochIterator", _epochs)


def trainer_of(model: Any) -> Trainer | None:
    """Return the trainer of a model that was compiled in a scope and can go through the loop, or None."""
    trainer = vars(model).get(_TRAINER)
    return trainer if trainer is not None and _can_loop(model) else None


def _compile(compile_: Callable) -> Callable:
    signature = inspect.signature(compile_)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        strategy = CURRENT.get()
        steps = signature.bind(self, *args, **kwargs).arguments.get("steps_per_execution", "auto")
        if strategy is None:
            vars(self).pop(_TRAINER, None)
            return compile_(self, *args, **kwargs)
        checks.check_steps_per_execution(steps)
        _check_home(self, strategy)
        bound = signature.bind(self, *args, **kwargs)
        if steps == "auto":
            bound.arguments["steps_per_execution"] = 1
        compile_(*bound.args, **bound.kwargs)
        vars(self)[_TRAINER] = Trainer(self, strategy, None if steps == "auto" else steps)
        return None

    return wrapper


def _check_home(model: Any, strategy: Any) -> None:
    """Refuse a model whose variables were made outside the scope, or for a strategy on another system."""
    for variable in model.variables:
        home = system_of(variable)
        if home is None:
            raise StrategyError(
                f"the variable {variable.path!r} was made outside the scope of {strategy!r}. Build the model inside: "
                "with strategy.scope(): model = make_model(); model.compile(...)"
            )
        if home is not strategy.system and home.is_running:
            raise StrategyError(
                f"mixing different strategies: the variable {variable.path!r} was made in the scope of a strategy on another "
                f"system than {strategy!r}. Build the model again in this scope, or compile it in the scope it was made in"
            )


def _loop(name: str, original: Callable) -> Callable:
    signature = inspect.signature(original)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = trainer_of(self)
        if trainer is None:
            with _active(None):
                return original(self, *args, **kwargs)
        on_nan = kwargs.pop("on_nan", None) if name == "fit" else None
        given = signature.bind(self, *args, **kwargs).arguments
        if name == "fit":
            checks.check_on_nan(on_nan)
            trainer.begin_fit(given.get("initial_epoch", 0), "loss" if on_nan == "raise" else None)
        with _running(trainer, _MODES[name], given.get("callbacks")):
            return original(self, *args, **kwargs)

    return wrapper


def _on_batch(original: Callable) -> Callable:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = trainer_of(self)
        if trainer is None:
            return original(self, *args, **kwargs)
        _ = trainer.backend
        with deferred_interrupts():
            try:
                return original(self, *args, **kwargs)
            finally:
                trainer.attach()

    return wrapper


@contextlib.contextmanager
def _running(trainer: Trainer, mode: str, callbacks: Any) -> Iterator[None]:
    """Run one of Keras's loops on a trainer, and leave the model whole however it ends."""
    _ = trainer.backend
    before = trainer.one_step_calls
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        trainer.one_step_calls = checks.wants_every_step(callbacks, mode)
    with _active(_Running(trainer, mode)), deferred_interrupts():
        try:
            yield
        finally:
            trainer.attach()
            trainer.one_step_calls = before


@contextlib.contextmanager
def _active(running: _Running | None) -> Iterator[None]:
    token = _ACTIVE.set(running)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def _epochs(original: Any) -> Callable:
    """Return what makes epoch iterators: ours for the model whose loop runs, Keras's for any other."""
    signature = inspect.signature(original)

    def make(*args: Any, **kwargs: Any) -> Any:
        running = _ACTIVE.get()
        if running is None:
            return original(*args, **kwargs)
        # The second iterator that fit makes is for its validation data.
        mode, running.mode = running.mode, "test" if running.mode == "train" else running.mode
        return Epochs(running.trainer, mode, signature.bind(*args, **kwargs).arguments)

    return make


def _can_loop(model: Any) -> bool:
    """Say whether a model's steps can be compiled in a loop; if not, say so once."""
    cls = type(model)
    own = [name for name in functions.MAKERS if not _keras.is_wrapped(getattr(cls, name))]
    if model.run_eagerly:
        reason = "run_eagerly=True"
    elif not model.jit_compile:
        reason = "jit_compile=False"
    elif own:
        reason = f"{cls.__name__} overrides {own[0]}"
    else:
        return True
    if not vars(model).get(_TRAINER + "_told"):
        vars(model)[_TRAINER + "_told"] = True
        warnings.warn(
            f"{model.name!r} runs in Keras's own loop on one device, not on the cores of the strategy: {reason}",
            stacklevel=4,
        )
    return False
