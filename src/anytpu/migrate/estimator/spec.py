"""`TPUEstimatorSpec`: the result of a model_fn. `SessionRunHook`: host code between the loops of an estimator.

Rule: tensors that leave the cores (for `eval_metrics` and `host_call`) keep their batch axis. Their functions run on
the host, on the rows of all cores. A loop of many steps takes the role of one `session.run`: `before_run` and
`after_run` of a hook are called around it. There is no session and no graph, so `session` and `coord` are None.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any, final

import jax.numpy as jnp

from anytpu._calls import explain_methods
from anytpu.errors import EstimatorError

HostPair = tuple[Callable, Any]
"""A host function, and the list or dictionary of its tensor arguments."""


@explain_methods
@dataclasses.dataclass(frozen=True, eq=False)
class TPUEstimatorSpec:
    """The result of a model_fn for one mode.

    Attributes:
        mode: one of `tpu.ModeKeys`.
        predictions: a dictionary of tensors, `(rows, ...)` each; for mode PREDICT.
        loss: the mean loss of the shard, a scalar; for TRAIN and EVAL.
        train_op: the result of `optimizer.minimize(loss)`; for TRAIN.
        eval_metrics: the pair (metric_fn, tensors); for EVAL. metric_fn is called on the host, once an evaluation, with
            the rows of all its steps. It returns a dictionary of Keras metrics or numbers.
        export_outputs: has no effect: a prediction's outputs are its `predictions`.
        scaffold_fn: has no effect.
        host_call: the pair (function, tensors); called on the host for the training steps.
        training_hooks: hooks for `train`.
        evaluation_hooks: hooks for `evaluate`.
        prediction_hooks: hooks for `predict`.

    Raises:
        EstimatorError: a field that the mode needs is missing or invalid.
    """

    mode: str
    predictions: dict[str, Any] | None = None
    loss: Any = None
    train_op: Any = None
    eval_metrics: HostPair | None = None
    export_outputs: Any = None
    scaffold_fn: Any = None
    host_call: HostPair | None = None
    training_hooks: tuple[Any, ...] | list[Any] | None = None
    evaluation_hooks: tuple[Any, ...] | list[Any] | None = None
    prediction_hooks: tuple[Any, ...] | list[Any] | None = None

    def __post_init__(self) -> None:
        for name in ("eval_metrics", "host_call"):
            pair = getattr(self, name)
            if pair is not None:
                _check_pair(name, pair)
        if self.mode not in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise EstimatorError(f"mode must be one of tpu.ModeKeys ('train', 'eval', 'infer'), not {self.mode!r}")
        if self.mode != ModeKeys.PREDICT:
            _check_loss(self.mode, self.loss)
        if self.mode == ModeKeys.TRAIN and self.train_op is None:
            raise EstimatorError(
                "Missing train_op: for mode 'train' a model_fn returns "
                "TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))"
            )
        if self.mode == ModeKeys.PREDICT and (not isinstance(self.predictions, dict) or not self.predictions):
            raise EstimatorError(
                f"TPUEstimatorSpec.predictions must be dict of Tensors, not {self.predictions!r}: for mode 'infer' a "
                'model_fn returns TPUEstimatorSpec(mode, predictions={"probabilities": probabilities})'
            )


def check_batch_axis(name: str, tensors: Any) -> None:
    """Check that each tensor that leaves the cores has a batch axis.

    Args:
        name: name of the spec's field.
        tensors: the field's list or dictionary of tensors.

    Raises:
        EstimatorError: a tensor is a scalar.
    """
    items = tensors.items() if isinstance(tensors, dict) else enumerate(tensors)
    for key, tensor in items:
        if jnp.ndim(tensor) == 0:
            raise EstimatorError(
                "All tensors outfed from TPU should preserve batch size dimension, but got scalar "
                f"{key!r} in TPUEstimatorSpec.{name}: give it one, for example keras.ops.reshape(loss, [1])"
            )


def call_on_host(name: str, pair: HostPair, tensors: Any) -> Any:
    """Call the function of a pair on the host.

    Args:
        name: name of the spec's field, for the error.
        pair: the function, and the tensors of one core.
        tensors: the arrays to pass, nested like the pair's tensors: a list by position, a dictionary by name.

    Raises:
        EstimatorError: the names of the tensors differ from those of the function's arguments.
    """
    function = pair[0]
    if not isinstance(tensors, dict):
        return function(*tensors)
    try:
        inspect.signature(function).bind(**tensors)
    except TypeError as error:
        raise EstimatorError(
            f"the tensors of TPUEstimatorSpec.{name} are named {sorted(tensors)}, and {name_of(function)} takes "
            f"{inspect.signature(function)}: the names of the dictionary must be those of its arguments"
        ) from error
    return function(**tensors)


def _check_pair(name: str, pair: Any) -> None:
    shape = f"TPUEstimatorSpec(mode, {name}=(function, [tensor, ...]))"
    if not isinstance(pair, tuple | list):
        raise EstimatorError(f"{name} should be tuple or list, not {pair!r}: {shape}")
    if len(pair) != 2:
        raise EstimatorError(f"{name} should have two elements, not {len(pair)}: {shape}")
    function, tensors = pair
    if not callable(function):
        raise EstimatorError(f"{name}[0] should be callable, not {function!r}: {shape}")
    if not isinstance(tensors, tuple | list | dict):
        raise EstimatorError(f"{name}[1] should be tuple or list, or dict, not {type(tensors).__name__}: {shape}")
    if not isinstance(tensors, dict):
        _check_count(name, function, len(tensors))


def _check_count(name: str, function: Callable, count: int) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = sum(parameter.kind in positional for parameter in parameters)
    if takes != count:
        raise EstimatorError(
            f"In TPUEstimatorSpec.{name}, length of tensors {count} does not match method args of the function, which "
            f"takes {takes}: {name_of(function)}{inspect.signature(function)}"
        )


def _check_loss(mode: str, loss: Any) -> None:
    if loss is None:
        raise EstimatorError(
            f"Missing loss: for mode {mode!r} a model_fn returns TPUEstimatorSpec(mode, loss=loss, ...)"
        )
    if jnp.shape(loss) not in ((), (1,)):
        raise EstimatorError(
            f"Loss must be scalar, and it has the shape {jnp.shape(loss)}: take keras.ops.mean(losses)"
        )


def name_of(function: Callable) -> str:
    """Return the name of a function, or of the class of a callable object."""
    return getattr(function, "__name__", type(function).__name__)


@final
class ModeKeys:
    """The modes of a model_fn: plain strings, as in TensorFlow."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class SessionRunHook:
    """A hook whose methods do nothing; override those you need.

    Any object with these methods can be a hook.
    """

    def begin(self) -> None:
        """Run at the beginning of a train, evaluate or predict."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run once before the first loop, after everything is compiled."""

    def before_run(self, run_context: RunContext) -> Any:
        """Run before a loop; the return value has no effect."""

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Run after a loop; `run_context.request_stop()` makes it the last loop."""

    def end(self, session: Any) -> None:
        """Run at the end; not called after an error."""


class RunContext:
    """The interface through which a hook controls the run.

    Attributes:
        session: None.
        original_args: None.
        stop_requested: whether a hook has requested a stop.
    """

    session: Any = None
    original_args: Any = None

    def __init__(self) -> None:
        self.stop_requested = False

    def request_stop(self) -> None:
        """Stop after the current loop."""
        self.stop_requested = True


@dataclasses.dataclass(frozen=True)
class RunValues:
    """The results of a loop.

    Attributes:
        results: "global_step" after the loop, and "loss" of its last step, if the mode has them.
    """

    results: dict[str, Any]


class Hooks:
    """The hooks of one run, called in order.

    Args:
        hooks: objects with the methods of `SessionRunHook`.
    """

    def __init__(self, hooks: Iterable[Any]) -> None:
        self._hooks = list(hooks)
        self.context = RunContext()

    def begin(self) -> None:
        """Call the hooks at the beginning of a run."""
        for hook in self._hooks:
            hook.begin()

    def ready(self) -> None:
        """Call the hooks once before the first loop."""
        for hook in self._hooks:
            hook.after_create_session(None, None)

    def before(self) -> None:
        """Call the hooks before a loop."""
        for hook in self._hooks:
            hook.before_run(self.context)

    def after(self, **results: Any) -> bool:
        """Call the hooks after a loop, and return whether a hook has requested a stop."""
        values = RunValues(results)
        for hook in self._hooks:
            hook.after_run(self.context, values)
        return self.context.stop_requested

    def end(self) -> None:
        """Call the hooks at the end of a run."""
        for hook in self._hooks:
            hook.end(None)
