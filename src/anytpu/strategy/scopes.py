"""What the scope of a strategy does to Keras.

Idea: inside a scope, each new variable remembers the system it was made for; inside a replica, `apply_gradients` sums
over the replicas and random seeds differ between them. Front doors on higher floors (the one that adopts
`model.compile`) are found by name and installed with it.

Rule: the wrappers are put on once and stay; outside a scope and outside a replica they do nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

import jax
import keras

from anytpu import _keras
from anytpu.errors import ReplicaError, StrategyError
from anytpu.strategy.current import CURRENT
from anytpu.strategy.gradients import SummedGradient
from anytpu.strategy.replicas import current_replica
from anytpu.strategy.rows import without_pads

_SYSTEM = "_anytpu_system"


@contextlib.contextmanager
def entered(strategy: Any) -> Iterator[Any]:
    """Enter the scope of a strategy.

    Raises:
        StrategyError: inside the scope of a strategy on another system, or after the system was shut down.
    """
    outer = CURRENT.get()
    if outer is not None and outer.system is not strategy.system:
        raise StrategyError(
            f"mixing different strategies: the scope of {strategy!r} was opened inside the scope of {outer!r}. "
            "Close the outer scope first; a model belongs to one strategy"
        )
    _ = strategy.backend
    install()
    token = CURRENT.set(strategy)
    try:
        yield strategy
    finally:
        CURRENT.reset(token)


@functools.cache
def install() -> None:
    """Put the wrappers on Keras, once."""
    _keras.wrap(_keras.variable_class(), "__init__", _remembering)
    _keras.wrap(keras.optimizers.Optimizer, "apply", _summing)
    _keras.wrap(keras.optimizers.LossScaleOptimizer, "apply", _refusing)
    _keras.wrap(keras.random.SeedGenerator, "next", _folding)
    _keras.wrap(keras.losses.Loss, "__call__", _summable)
    # The name that metrics had in TensorFlow 2.
    _keras.add_method(keras.metrics.Metric, "reset_states", _reset_states)
    for entry in entry_points(group="anytpu.scopes"):
        entry.load()()


def system_of(variable: Any) -> Any | None:
    """Return the system in whose scope a variable was made, or None."""
    return vars(variable).get(_SYSTEM)


def claim(variables: Iterable[Any], system: Any) -> None:
    """Let variables that were made in no scope belong to a system: those of a model that its first batch built."""
    for variable in variables:
        vars(variable).setdefault(_SYSTEM, system)


def _remembering(init: Callable) -> Callable:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        strategy = CURRENT.get()
        if strategy is not None:
            vars(self)[_SYSTEM] = strategy.system
        init(self, *args, **kwargs)

    return __init__


def _summing(apply: Callable) -> Callable:
    def summed(gradient: Any) -> Any:
        if isinstance(gradient, SummedGradient):
            return gradient.array
        replica = current_replica()
        return gradient if gradient is None or replica is None else replica.sum(gradient)

    def wrapper(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        return apply(self, [summed(gradient) for gradient in grads], trainable_variables)

    return wrapper


def _refusing(apply: Callable) -> Callable:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        if replica is None or replica.axis is None:
            return apply(self, *args, **kwargs)
        raise ReplicaError(
            "a LossScaleOptimizer cannot apply gradients inside strategy.run: it scales the loss for float16, which no "
            "TPU computes with. Use bfloat16, which needs no scaling: "
            'keras.mixed_precision.set_dtype_policy("mixed_bfloat16"), and the inner optimizer by itself, '
            f"keras.optimizers.{type(self.inner_optimizer).__name__}"
        )

    return wrapper


_MEANS = frozenset({"sum_over_batch_size", "mean", "mean_with_sample_weight"})


def _summable(call: Callable) -> Callable:
    def wrapper(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        replica = current_replica()
        is_alone = replica is None or replica.replicas == 1 or replica.averages_losses
        if not is_alone and self.reduction in _MEANS:
            raise ReplicaError(
                f"the loss {self.name!r} takes the mean over one replica's rows, and gradients are summed over the "
                'replicas: please use reduction="sum" or reduction="none" for a loss inside strategy.run, for example '
                f'tpu.compute_average_loss(keras.losses.{type(self).__name__}(reduction="none")(labels, predictions), '
                "global_batch_size=64)"
            )
        if is_alone or replica is None or replica.shard is None or replica.averages_losses:
            return call(self, y_true, y_pred, sample_weight)
        return _without_pads(functools.partial(call, self, y_true, y_pred, sample_weight), self)

    return wrapper


def _without_pads(call: Callable, loss: Any) -> Any:
    """Return a loss of a batch that does not fill all replicas: 0 for each pad."""
    reduction = loss.reduction
    # Each row's loss, so that the mask has the axes that the losses have, and not those of the predictions.
    loss.reduction = "none"
    try:
        losses = jax.tree.map(without_pads, call())
    finally:
        loss.reduction = reduction
    return jax.tree.map(keras.ops.sum, losses) if reduction == "sum" else losses


def _reset_states(self: Any) -> None:
    """Do what `reset_state` does."""
    self.reset_state()


def _folding(next_seed: Callable) -> Callable:
    def wrapper(self: Any, ordered: bool = True) -> Any:
        seed = next_seed(self, ordered)
        replica = current_replica()
        return seed if replica is None or replica.replicas == 1 else jax.random.fold_in(seed, replica.index)

    return wrapper
