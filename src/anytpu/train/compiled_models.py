"""Models compiled in the scope of a strategy: each gets a `Trainer`, unless its steps cannot be compiled.

Idea: `compile` is wrapped. Whether all layers of a model can be compiled is decided for JAX, not for all of Keras's
backends. `step_logs` and `input_shares` read from the trainer of a model.

Rule: some models cannot use the compiled loop: with `run_eagerly`, with `jit_compile=False`, with a layer that computes
on the host, or with their own `make_train_function`. They run in Keras's loop, with one warning.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from anytpu import _keras
from anytpu._calls import check_arguments, explain_arguments
from anytpu.errors import SettingError, StrategyError
from anytpu.sharding import ModelLayout
from anytpu.strategy.current import CURRENT
from anytpu.strategy.scopes import prepare, system_of
from anytpu.train import checks, functions, host_layers
from anytpu.train.trainer import Trainer

_TRAINER = "_anytpu_trainer"
_WARNED = "_anytpu_trainer_warned"
_MADE_IN = "_anytpu_made_in"


def install() -> None:
    """Install the wrappers on Keras's `compile` and on the constructor of models, once."""
    _keras.wrap(_keras.trainer_module().Trainer, "__init__", _constructor)
    _keras.wrap(_keras.trainer_module().Trainer, "compile", _compile)
    _keras.wrap(_keras.trainer_module().Trainer, "compile_from_config", _compile_from_config)
    _keras.wrap(_keras.trainer_module(), "model_supports_jit", _supports_jit)
    host_layers.install()


def was_compiled_in_scope(model: Any) -> bool:
    """Return whether a model was last compiled in the scope of a strategy."""
    return _TRAINER in vars(model)


def trainer_of(model: Any) -> Trainer | None:
    """Return the trainer of a model that was compiled in a scope and can use the compiled loop, or None."""
    trainer = vars(model).get(_TRAINER)
    if trainer is None or (trainer.has_functions and model.jit_compile and not model.run_eagerly):
        return trainer
    return trainer if _can_loop(model) else None


def refuse_other_layout(model: Any, name: str) -> None:
    """Reject a call in the scope of a strategy whose layout the model would not have.

    Args:
        model: a Keras model.
        name: the called method, "fit".

    Raises:
        StrategyError: the model was compiled outside of the scope, or in that of a strategy with another layout or
            system.
    """
    strategy, trainer = CURRENT.get(), vars(model).get(_TRAINER)
    if strategy is None or strategy.layout is None:
        return
    is_elsewhere = trainer and trainer.strategy.system is not strategy.system
    if trainer and not is_elsewhere and _is_same(model, trainer.strategy.layout, strategy.layout):
        return
    where = f"in the scope of {trainer.strategy!r}" if trainer else "outside of its scope"
    raise StrategyError(
        f"{name} of {model.name!r} is called in the scope of {strategy!r}, and the model was compiled {where}, so it "
        f"would not {'run on this system' if is_elsewhere else 'have this layout'}. Make and compile it inside: "
        "with strategy.scope(): model = make_model(); model.compile(...)"
    )


def _is_same(model: Any, first: ModelLayout | None, second: ModelLayout) -> bool:
    """Return whether two layouts split a model in the same way, as those of a notebook cell that ran twice."""
    if first is second or first is None:
        return first is second
    if first.is_open or second.is_open:
        return first.is_open and second.is_open
    return (first.axes, first.row_axes) == (second.axes, second.row_axes) and all(
        first.spec_of(variable.path, tuple(variable.shape)) == second.spec_of(variable.path, tuple(variable.shape))
        for variable in model.variables
    )


def refuse_guard(model: Any, on_nan: Any) -> NoReturn:
    """Reject `on_nan` of `fit` for a model that does not use the compiled loop."""
    raise SettingError(
        f"on_nan={on_nan!r} watches the compiled loop, and {model.name!r} does not use it: {_why_not(model)}. "
        "Remove that, or pass callbacks=[keras.callbacks.TerminateOnNaN()]"
    )


def refuse_folder(model: Any, name: str, folder: Any) -> NoReturn:
    """Reject `checkpoint_dir` or `run_dir` of `fit` for a model that does not use the compiled loop."""
    does, other = {"checkpoint_dir": ("saves", "ModelCheckpoint"), "run_dir": ("records", "CSVLogger")}[name]
    raise SettingError(
        f"{name}={str(folder)!r} {does} the compiled loop, and {model.name!r} does not use it: "
        f"{_why_not(model)}. Remove that, or pass callbacks=[keras.callbacks.{other}(...)]"
    )


def _constructor(original: Callable) -> Callable:
    def wrapper(self: Any) -> None:
        original(self)
        # A model without an Input has no variables yet when it is compiled, so they cannot tell its scope.
        if (strategy := CURRENT.get()) is not None:
            vars(self)[_MADE_IN] = strategy.system

    return wrapper


def _compile(compile_: Callable) -> Callable:
    signature = inspect.signature(compile_)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        strategy = CURRENT.get()
        check_arguments("compile", signature, kwargs)
        steps = signature.bind(self, *args, **kwargs).arguments.get("steps_per_execution", "auto")
        if strategy is None:
            vars(self).pop(_TRAINER, None)
            _warn_outside_scope(self)
            return compile_(self, *args, **kwargs)
        checks.check_steps_per_execution(steps)
        prepare(f"the scope of {strategy!r}")
        _check_home(self, strategy)
        bound = signature.bind(self, *args, **kwargs)
        if steps == "auto":
            bound.arguments["steps_per_execution"] = 1
        compile_(*bound.args, **bound.kwargs)
        if host_layers.is_left_to_keras(self) and bound.arguments.get("jit_compile", "auto") == "auto":
            # A saved True makes Keras warn when it loads the model outside of a scope.
            _keras.compiled_with(self)["jit_compile"] = "auto"
        trainer = vars(self)[_TRAINER] = Trainer(self, strategy, None if steps == "auto" else steps)
        trainer.has_functions = not _overridden(self)

    return wrapper


def _compile_from_config(original: Callable) -> Callable:
    def wrapper(self: Any, config: dict[str, Any]) -> None:
        if CURRENT.get() is not None:
            # A model compiled without steps_per_execution is saved with 1, Keras's default; anytpu's is "auto".
            if config.get("steps_per_execution") == 1:
                config = {**config, "steps_per_execution": "auto"}
            # A model compiled without jit_compile is saved with the value that Keras resolved.
            if config.get("jit_compile") is False and host_layers.is_left_to_keras(self):
                config = {**config, "jit_compile": "auto"}
        original(self, config)

    return wrapper


def _supports_jit(original: Callable) -> Callable:
    """Wrap Keras's `model_supports_jit`: for a model compiled in a scope, decide whether JAX compiles its layers.

    Keras resolves `jit_compile="auto"` with this function, and rejects True where it returns False.
    """

    def wrapper(model: Any) -> bool:
        if CURRENT.get() is None and not was_compiled_in_scope(model):
            return original(model)
        return host_layers.can_compile(model)

    return wrapper


def _warn_outside_scope(model: Any) -> None:
    """Warn that a model made in a scope but compiled outside of it trains as plain Keras."""
    homes = [vars(model).get(_MADE_IN), *map(system_of, model.variables)]
    if any(home is not None and home.is_running for home in homes):
        warnings.warn(
            f"{model.name!r} was made in the scope of a strategy and is compiled outside of it, so it trains as plain "
            "Keras does, on one device. To train on all cores, compile it inside: with strategy.scope(): "
            "model.compile(...)",
            stacklevel=3,
        )


def _check_home(model: Any, strategy: Any) -> None:
    """Reject a model whose variables were made outside the scope, or for a strategy on another system."""
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


def _can_loop(model: Any) -> bool:
    """Return whether a model's steps can be compiled in a loop; warn once if not."""
    reason = _why_not(model)
    if reason is not None and not vars(model).get(_WARNED):
        vars(model)[_WARNED] = True
        warning = f"{model.name!r} runs in Keras's own loop on one device, not on the cores of the strategy: {reason}"
        warnings.warn(". ".join(filter(None, (warning, _advice(model)))), stacklevel=4)
    return reason is None


def _why_not(model: Any) -> str | None:
    """Return why a model's steps cannot be compiled in a loop, or None."""
    if model.run_eagerly:
        return "run_eagerly=True"
    if not model.jit_compile:
        return host_layers.why_on_host(model) or "jit_compile=False"
    overridden = _overridden(model)
    return f"{type(model).__name__} overrides {overridden[0]}" if overridden else None


def _overridden(model: Any) -> list[str]:
    """Return the methods of a model's own class that make the functions of Keras's loops."""
    return [name for name in functions.MAKERS if not _keras.is_wrapped(getattr(type(model), name))]


def _advice(model: Any) -> str:
    """Return how to change a model whose layers prevent the compiled loop, or ""."""
    return "" if model.run_eagerly or model.jit_compile else host_layers.advice(model)


@explain_arguments
def step_logs(model: Any) -> dict[str, np.ndarray]:
    """Return the logs of each step of the last call, as Keras logs them with one step a call.

    A call runs many steps; Keras's callbacks get the logs of the last step. Read the others in `on_train_batch_end` of
    a callback with `takes_many_steps = True`, which does not force one step a call. (A callback with
    `async_safe = True` is called from another thread, perhaps after the next call has run.)

    Args:
        model: a model that trains on a strategy.

    Returns:
        The values of each log by name, `(steps,)`: running means over the epoch, like Keras's metrics.

    Raises:
        StrategyError: the model was not compiled in the scope of a strategy.
    """
    return _trainer(model, "no logs of each step").step_logs()


@explain_arguments
def input_shares(model: Any) -> list[float]:
    """Return, for each epoch of a model's newest fit, the share of time that the device waited for batches.

    It is 0 if all arrays are resident on the device. An epoch that waited for more than a third of its time prints a
    line on stderr, unless the fit is silent, `verbose=0`.

    Args:
        model: a model that trains on a strategy.

    Returns:
        A share from 0 to 1 for each epoch that has ended.

    Raises:
        StrategyError: the model was not compiled in the scope of a strategy.
    """
    return list(_trainer(model, "no input waiting times").input_shares)


def _trainer(model: Any, lacks: str) -> Trainer:
    trainer = trainer_of(model)
    if trainer is None:
        raise StrategyError(
            f"{model.name!r} was not compiled in the scope of a strategy, so it keeps {lacks}: compile "
            "it in with strategy.scope():"
        )
    return trainer
