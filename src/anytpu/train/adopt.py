"""How a Keras model that is compiled in the scope of a strategy comes to train on its cores.

Idea: Keras's `compile`, `fit`, `evaluate` and `predict` stay what the user calls. `compile` inside a scope gives the
model a `Trainer`; from then on the few methods that Keras itself overrides for each of its backends (make a train
function, get and put back the state) ask that trainer. A model without one is Keras's as ever.

Rule: the wrappers are put on once. What cannot go through the compiled loop (`run_eagerly`, `jit_compile=False`, a
model that overrides `make_train_function`) takes Keras's own path, and says so once.
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

from anytpu import _keras
from anytpu.engine.interrupts import deferred_interrupts, immediate_interrupts
from anytpu.errors import SettingError, StrategyError
from anytpu.strategy.current import CURRENT
from anytpu.strategy.scopes import claim, prepare, system_of
from anytpu.train import checks, functions
from anytpu.train.epochs import Epochs
from anytpu.train.ragged import with_batches
from anytpu.train.trainer import Trainer

_TRAINER = "_anytpu_trainer"
_ACTIVE: contextvars.ContextVar[_Running | None] = contextvars.ContextVar("trainer", default=None)
_MODES = {"fit": "train", "evaluate": "test", "predict": "predict"}


@dataclasses.dataclass
class _Running:
    """The Keras loop that runs.

    Attributes:
        trainer: of its model.
        mode: of the next epoch iterator that it makes.
        passes: closes the passes over its data when the loop ends.
    """

    trainer: Trainer
    mode: str
    passes: contextlib.ExitStack


@functools.cache
def install() -> None:
    """Put the wrappers on Keras, once."""
    module = _keras.jax_trainer_module()
    trainer = module.JAXTrainer
    _keras.wrap(_keras.trainer_class(), "compile", _compile)
    _keras.wrap(_keras.trainer_class(), "compile_from_config", _compile_from_config)
    for name in _MODES:
        _keras.wrap(trainer, name, functools.partial(_loop, name))
    for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
        _keras.wrap(trainer, name, functools.partial(_on_batch, name))
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
            _tell_of_scope(self)
            return compile_(self, *args, **kwargs)
        checks.check_steps_per_execution(steps)
        prepare(f"the scope of {strategy!r}")
        _check_home(self, strategy)
        bound = signature.bind(self, *args, **kwargs)
        if steps == "auto":
            bound.arguments["steps_per_execution"] = 1
        compile_(*bound.args, **bound.kwargs)
        vars(self)[_TRAINER] = Trainer(self, strategy, None if steps == "auto" else steps)
        return None

    return wrapper


def _compile_from_config(original: Callable) -> Callable:
    def wrapper(self: Any, config: dict[str, Any]) -> None:
        # What was compiled without steps_per_execution is saved as 1, Keras's default; ours is "auto".
        ours = CURRENT.get() is not None and config.get("steps_per_execution") == 1
        original(self, {**config, "steps_per_execution": "auto"} if ours else config)

    return wrapper


def _tell_of_scope(model: Any) -> None:
    """Say that a model that was made in a scope, and is compiled outside of it, is left to Keras."""
    home = next((home for home in map(system_of, model.variables) if home is not None and home.is_running), None)
    if home is not None:
        warnings.warn(
            f"{model.name!r} was made in the scope of a strategy and is compiled outside of it, so it trains as plain "
            "Keras does, on one device. To train on all cores, compile it inside: with strategy.scope(): "
            "model.compile(...)",
            stacklevel=3,
        )


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
                f"mixing different strategies: the variable {variable.path!r} was made in the scope of a strategy on "
                f"another system than {strategy!r}. Build the model again in this scope, or compile it in the scope it "
                "was made in"
            )


def _loop(name: str, original: Callable) -> Callable:
    signature = inspect.signature(original)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        on_nan = kwargs.pop("on_nan", None) if name == "fit" and _TRAINER in vars(self) else None
        checks.check_on_nan(on_nan)
        trainer = trainer_of(self)
        if trainer is None:
            if on_nan is not None:
                raise SettingError(_no_guard(self, on_nan))
            with _active(None):
                return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments = with_batches(self, bound.arguments)
        if "_use_cached_eval_dataset" not in kwargs:
            checks.check_call(given)
        with _running(trainer, name, given.get("callbacks")):
            if name == "fit":
                is_silent = given.get("verbose", "auto") == 0
                trainer.begin_fit(given.get("initial_epoch", 0), "loss" if on_nan == "raise" else None, is_silent)
            return original(*bound.args, **bound.kwargs)

    return wrapper


def _on_batch(name: str, original: Callable) -> Callable:
    signature = inspect.signature(original)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = trainer_of(self)
        if trainer is None:
            return original(self, *args, **kwargs)
        checks.check_call(signature.bind(self, *args, **kwargs).arguments)
        with deferred_interrupts(), _adopting(trainer, name), immediate_interrupts():
            return original(self, *args, **kwargs)

    return wrapper


def _no_guard(model: Any, on_nan: Any) -> str:
    return (
        f"on_nan={on_nan!r} watches the compiled loop, and {model.name!r} does not go through it: {_why_not(model)}. "
        "Take that away, or pass callbacks=[keras.callbacks.TerminateOnNaN()]"
    )


@contextlib.contextmanager
def _adopting(trainer: Trainer, name: str) -> Iterator[None]:
    """Leave the model whole however a call of Keras's ends; what it built, or found built, is at home here."""
    _ = trainer.backend
    prepare(f"{trainer.strategy!r}, in whose scope {trainer.model.name!r} was compiled,")
    with trainer.occupancy.by(f"{name} of {trainer.model.name!r}"):
        try:
            yield
        finally:
            trainer.attach()
            claim(trainer.model.variables, trainer.strategy.system)


@contextlib.contextmanager
def _running(trainer: Trainer, name: str, callbacks: Any) -> Iterator[None]:
    """Run one of Keras's loops, "fit", "evaluate" or "predict", on a trainer."""
    mode = _MODES[name]
    running = _Running(trainer, mode, contextlib.ExitStack())
    with _active(running), deferred_interrupts(), _adopting(trainer, name):
        before, trainer.one_step_calls = trainer.one_step_calls, checks.wants_every_step(callbacks, mode)
        try:
            with immediate_interrupts(), running.passes:
                yield
        finally:
            trainer.one_step_calls = before
            if mode == "train":
                trainer.guard = None
                trainer.print_notices()


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
        epochs = Epochs(running.trainer, mode, signature.bind(*args, **kwargs).arguments)
        running.passes.push(lambda kind, *_: epochs.close(waits=kind is not KeyboardInterrupt))
        return epochs

    return make


def _can_loop(model: Any) -> bool:
    """Say whether a model's steps can be compiled in a loop; if not, say so once."""
    reason = _why_not(model)
    if reason is not None and not vars(model).get(_TRAINER + "_told"):
        vars(model)[_TRAINER + "_told"] = True
        warnings.warn(
            f"{model.name!r} runs in Keras's own loop on one device, not on the cores of the strategy: {reason}",
            stacklevel=4,
        )
    return reason is None


def _why_not(model: Any) -> str | None:
    """Return why a model's steps cannot be compiled in a loop, or None."""
    cls = type(model)
    if model.run_eagerly:
        return "run_eagerly=True"
    if not model.jit_compile:
        return "jit_compile=False"
    own = [name for name in functions.MAKERS if not _keras.is_wrapped(getattr(cls, name))]
    return f"{cls.__name__} overrides {own[0]}" if own else None
