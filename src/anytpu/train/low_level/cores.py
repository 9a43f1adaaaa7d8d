"""Which cores a low-level call runs on: those of the strategy in scope, or of the system in use.

Idea: the first low-level programs had to be told the number of shards, and ran on one when they were not. Here a call
asks: the scope it is in, else the system that was initialised last, else whatever `tpu.connect()` finds.

Rule: one strategy is kept for each system, so that a function is compiled once however often it is called.
"""

from __future__ import annotations

import numbers
from typing import Any

from anytpu.errors import SettingError, StrategyError
from anytpu.strategy.connection import connect
from anytpu.strategy.current import CURRENT
from anytpu.strategy.replicas import current_replica
from anytpu.strategy.strategy import TPUStrategy
from anytpu.system.lifecycle import System, current_system, running_system
from anytpu.system.resolver import TPUClusterResolver

_KEPT: dict[System, TPUStrategy] = {}


def cores_of(num_shards: int | None) -> TPUStrategy:
    """Return the strategy of the cores that a call runs on.

    Args:
        num_shards: how many, the first ones; None is all there are.

    Raises:
        SettingError: `num_shards` is not a positive integer, or there are not so many.
    """
    if num_shards is not None and (
        isinstance(num_shards, bool) or not isinstance(num_shards, numbers.Integral) or num_shards < 1
    ):
        raise SettingError(f"num_shards must be a positive integer, or None for all cores, not {num_shards!r}")
    strategy = in_use()
    cores = strategy.num_replicas_in_sync
    if num_shards is not None and num_shards > cores:
        raise SettingError(
            f"num_shards is {num_shards}, and {strategy!r} has {cores} core{'s' * (cores > 1)}: leave num_shards away "
            f'to use them all, or start with tpu.connect("virtual", cores={num_shards})'
        )
    return strategy.part(cores if num_shards is None else int(num_shards))


def in_use() -> TPUStrategy:
    """Return the strategy in scope, else the one kept for the system that was initialised or used last."""
    strategy = CURRENT.get()
    if strategy is not None:
        return strategy
    system = current_system() or connect().system
    if system not in _KEPT:
        _KEPT[system] = TPUStrategy(TPUClusterResolver.from_address(system.address))
        system.on_shutdown(lambda: _forget(system))
    running_system(system.address)
    return _KEPT[system]


def refuse_nested(name: str) -> None:
    """Raise when a low-level call is made inside of another, or inside `strategy.run`.

    Raises:
        StrategyError: it is.
    """
    if current_replica() is not None:
        raise StrategyError(
            f"TPU computations cannot be nested: tpu.{name} was called in a function that runs on the cores already. "
            "Call the function itself there"
        )


def _forget(system: Any) -> None:
    _KEPT.pop(system, None)
