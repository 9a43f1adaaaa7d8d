"""What the scope of a strategy does to Keras.

Idea: inside a scope, each new variable remembers the system it was made for; inside a replica, `apply_gradients` sums over
the replicas and random seeds differ between them. Front doors on higher floors (the one that adopts `model.compile`) are
found by name and installed with it.

Rule: the wrappers are put on once and stay; outside a scope and outside a replica they do nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import jax
import keras

from anytpu import _keras
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.current import CURRENT
from anytpu.strategy.gradients import SummedGradient
from anytpu.strategy.replicas import current_replica

_SYSTEM = "_anytpu_system"


@functools.cache
def install() -> None:
    """Put the wrappers on Keras, once."""
    _keras.wrap(_keras.variable_class(), "__init__", _remembering)
    _keras.wrap(keras.optimizers.Optimizer, "apply", _summing)
    _keras.wrap(keras.random.SeedGenerator, "next", _folding)
    for entry in entry_points(group="anytpu.scopes"):
        entry.load()()


def system_of(variable: Any) -> Any | None:
    """Return the system in whose scope a variable was made, or None."""
    return vars(variable).get(_SYSTEM)


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
        return gradient if gradient is None or current_replica() is None else jax.lax.psum(gradient, REPLICA_AXIS)

    def wrapper(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        return apply(self, [summed(gradient) for gradient in grads], trainable_variables)

    return wrapper


def _folding(next_seed: Callable) -> Callable:
    def wrapper(self: Any, ordered: bool = True) -> Any:
        seed = next_seed(self, ordered)
        replica = current_replica()
        return seed if replica is None or replica.replicas == 1 else jax.random.fold_in(seed, replica.index)

    return wrapper
