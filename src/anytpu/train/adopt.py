"""Run Keras's loops on the cores of the strategy in whose scope a model was compiled.

Idea: the user still calls Keras's `fit`, `evaluate` and `predict`. A few methods of Keras are overridden for each of
its backends: make a train function, get the state, put it back. These methods call the model's trainer, which `compile`
made.

Rule: the wrappers are installed once. A model without a trainer runs as in plain Keras; see `compiled_models`.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from anytpu import _keras, summary
from anytpu._calls import check_arguments
from anytpu._contexts import value_within
from anytpu.engine.interrupts import deferred_interrupts, immediate_interrupts
from anytpu.strategy.scopes import claim, prepare, warn_of_unused
from anytpu.train import checks, compiled_models, functions, host_files
from anytpu.train.compiled_models import trainer_of
from anytpu.train.epochs import Epochs
from anytpu.train.fit_checkpoints import FitRun, checkpointed
from anytpu.train.fit_record import recorded
from anytpu.train.host_callbacks import set_for_host
from anytpu.train.trainer import Trainer

_ACTIVE: contextvars.ContextVar[_Running | None] = contextvars.ContextVar("trainer", default=None)
_MODES = {"fit": "train", "evaluate": "test", "predict": "predict"}


@dataclasses.dataclass
class _Running:
    """The Keras loop that is running.

    Attributes:
        trainer: the trainer of the loop's model.
        mode: mode of the next epoch iterator: "train", "test" or "predict".
        passes: closes the passes over the loop's data when the loop ends.
        run: the checkpoints of a fit, or None.
        is_single_pass: whether the loop reads its data once.
    """

    trainer: Trainer
    mode: str
    passes: contextlib.ExitStack
    run: FitRun | None
    is_single_pass: bool


@functools.cache
def install() -> None:
    """Install the wrappers on Keras, once."""
    module = _keras.jax_trainer_module()
    trainer = module.JAXTrainer
    compiled_models.install()
    for name in _MODES:
        _keras.wrap(trainer, name, functools.partial(_loop, name))
    for name in ("train_on_batch", "test_on_batch", "predict_on_batch"):
        _keras.wrap(trainer, name, functools.partial(_on_batch, name))
    functions.install(trainer, trainer_of)
    host_files.install()
    _keras.set_summaries(summary)
    _keras.wrap(module, "JAXEpochIterator", _epochs)


def _loop(name: str, original: Callable) -> Callable:
    signature = inspect.signature(original)
    # Keras's `evaluate` has a `**` argument, for its own calls; a user's unknown argument gets the nearest name.
    named = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    users_signature = signature.replace(parameters=named)
    known = frozenset(users_signature.parameters)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        # 1. Take the arguments that only our `fit` has.
        compiled_models.refuse_other_layout(self, name)
        is_ours = name == "fit" and compiled_models.was_compiled_in_scope(self)
        on_nan = kwargs.pop("on_nan", None) if is_ours else None
        checkpoint_dir = kwargs.pop("checkpoint_dir", None) if is_ours else None
        run_dir = kwargs.pop("run_dir", None) if is_ours else None
        checks.check_on_nan(on_nan)
        # 2. A model that does not use the compiled loop runs in Keras's own.
        trainer = trainer_of(self)
        if trainer is None:
            if on_nan is not None:
                compiled_models.refuse_guard(self, on_nan)
            for folder_name, folder in (("checkpoint_dir", checkpoint_dir), ("run_dir", run_dir)):
                if folder is not None:
                    compiled_models.refuse_folder(self, folder_name, folder)
            if name == "fit":
                warn_of_unused(self)
            with value_within(_ACTIVE, None):
                return original(self, *args, **kwargs)
        # 3. Check and complete the arguments. Keras's `fit` calls `evaluate` with arguments that are checked already.
        trainer.resolve()
        is_users = "_use_cached_eval_dataset" not in kwargs
        if is_users:
            if not known.issuperset(kwargs):
                check_arguments(name, users_signature, kwargs)
            _check_forms(trainer, signature.bind(self, *args, **kwargs).arguments)
        bound = signature.bind(self, *args, **kwargs)
        arguments = bound.arguments = checks.with_plain_integers(trainer.padding.with_filled_rows(bound.arguments))
        if is_users:
            checks.check_call(arguments)
            checks.check_callbacks(arguments.get("callbacks"), name == "fit")
            if name == "fit" and trainer.extension is not None:
                trainer.extension.check_callbacks(arguments.get("callbacks"))
        hosts = trainer.backend.hosts
        if is_users and not hosts.is_alone:
            set_for_host(arguments, hosts, name == "fit", trainer.strategy.splits_weights)
        if name != "fit" and arguments.get("callbacks") is None and arguments.get("verbose", "auto") == 0:
            arguments["callbacks"] = _keras.no_callbacks()
        # 4. Run Keras's loop. It makes its epoch iterators by the wrapper of `_epochs`.
        with (
            contextlib.nullcontext()
            if checkpoint_dir is None
            else checkpointed(trainer, checkpoint_dir, arguments) as run,
            recorded(trainer, run_dir, checkpoint_dir, arguments, run),
            _running(trainer, name, arguments, run),
            trainer.record.evaluating() if name == "evaluate" and trainer.record else contextlib.nullcontext(),
        ):
            if name == "fit":
                is_silent = arguments.get("verbose", "auto") == 0
                trainer.begin_fit(arguments.get("initial_epoch", 0), on_nan, is_silent)
            result = original(*bound.args, **bound.kwargs)
        if name == "fit":
            checks.warn_of_nan(result.history.get("loss"), arguments, on_nan)
        return result

    return wrapper


def _check_forms(trainer: Trainer, arguments: dict[str, Any]) -> None:
    """Check the inputs of layers with a state of their own before other checks, whose advice is for other arrays."""
    if trainer.extension is None:
        return
    validation = arguments.get("validation_data")
    trainer.extension.check_forms(arguments.get("x"))
    if isinstance(validation, tuple | list) and len(validation) > 1:
        trainer.extension.check_forms(validation[0])


def _on_batch(name: str, original: Callable) -> Callable:
    signature = inspect.signature(original)

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled_models.refuse_other_layout(self, name)
        trainer = trainer_of(self)
        if trainer is None:
            return original(self, *args, **kwargs)
        check_arguments(name, signature, kwargs)
        bound = signature.bind(self, *args, **kwargs)
        arguments = bound.arguments
        trainer.resolve()
        _check_forms(trainer, arguments)
        checks.check_call(arguments, is_batch=True)
        if trainer.extension is not None:
            arguments["x"] = trainer.extension.checked(arguments.get("x"))
        if name != "predict_on_batch":
            trainer.labels.check(tuple(map(arguments.get, ("x", "y", "sample_weight"))))
        trainer.backend.hosts.count_call()
        with deferred_interrupts(), _adopting(trainer, name), immediate_interrupts():
            if functions.can_run_batch(trainer, name, arguments):
                return functions.run_batch(trainer, name, arguments)
            return original(*bound.args, **bound.kwargs)

    return wrapper


@contextlib.contextmanager
def _adopting(trainer: Trainer, name: str) -> Iterator[None]:
    """Return the variables to the model however a Keras call ends, and claim the variables that the call built."""
    _ = trainer.backend
    prepare(trainer.place)
    known, is_whole = trainer.compilations, False
    with trainer.occupancy.by(f"{name} of {trainer.model.name!r}"):
        try:
            yield
            is_whole = True
        finally:
            trainer.give_back()
            # Nothing was built in a call that compiled nothing.
            if not is_whole or known != trainer.compilations:
                claim(trainer.model.variables, trainer.strategy.system)


@contextlib.contextmanager
def _running(trainer: Trainer, name: str, arguments: dict[str, Any], run: FitRun | None) -> Iterator[None]:
    """Return a context in which a Keras loop ("fit", "evaluate" or "predict") runs on a trainer.

    Args:
        trainer: the trainer.
        name: name of the loop.
        arguments: arguments of the call, by name.
        run: the checkpoints of a fit, or None.
    """
    mode, callbacks = _MODES[name], arguments.get("callbacks")
    is_single_pass = name != "fit" or arguments.get("epochs", 1) - arguments.get("initial_epoch", 0) <= 1
    running = _Running(trainer, mode, contextlib.ExitStack(), run, is_single_pass)
    with value_within(_ACTIVE, running), deferred_interrupts(), _adopting(trainer, name):
        previous, trainer.one_step_calls = trainer.one_step_calls, checks.wants_every_step(callbacks, mode)
        if mode == "train":
            trainer.checkpoints = run
        try:
            with immediate_interrupts(), running.passes:
                yield
                trainer.wait_for_logs()
        finally:
            trainer.one_step_calls = previous
            if mode == "train":
                trainer.end_fit()


def _epochs(original: Any) -> Callable:
    """Wrap the epoch iterator class: `Epochs` for the model whose loop is running, Keras's for any other."""
    signature = inspect.signature(original)

    def make(*args: Any, **kwargs: Any) -> Any:
        running = _ACTIVE.get()
        if running is None:
            return original(*args, **kwargs)
        # The second iterator that fit makes is for its validation data.
        mode, running.mode = running.mode, "test" if running.mode == "train" else running.mode
        keras_arguments = signature.bind(*args, **kwargs).arguments
        epochs = Epochs(running.trainer, mode, keras_arguments, running.is_single_pass)
        if running.run is not None:
            running.run.adopt(mode, epochs)
        running.passes.push(lambda kind, *_: epochs.close(waits=kind is not KeyboardInterrupt))
        return epochs

    return make
