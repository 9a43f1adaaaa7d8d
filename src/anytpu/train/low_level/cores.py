"""Choose the cores of a low-level call: those of the strategy in scope, or of the system in use.

Idea: the first low-level programs had to set the number of shards, and ran on one shard by default. Here a call uses
the strategy in scope, or else the system initialised last, or else the system that `tpu.connect()` finds.

Rule: one strategy is kept for each system, so that a function is compiled once for all its calls.
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
        num_shards: number of cores, the first ones of the system; None is all.

    Raises:
        SettingError: `num_shards` is not a positive integer, or exceeds the number of cores.
    """
    if num_shards is not None and (
        isinstance(num_shards, bool) or not isinstance(num_shards, numbers.Integral) or num_shards < 1
    ):
        raise SettingError(f"num_shards must be a positive integer, or None for all cores, not {num_shards!r}")
    strategy = in_use()
    cores = strategy.num_replicas_in_sync
    if num_shards is not None and num_shards > cores:
        raise SettingError(
            f"num_shards is {num_shards}, and {strategy!r} has {cores} core{'s' * (cores > 1)}: leave num_shards out "
            f'to use them all, or start with tpu.connect("virtual", cores={num_shards})'
        )
    return strategy.part(cores if num_shards is None else int(num_shards))


def in_use() -> TPUStrategy:
    """Return the strategy in scope, or else the one kept for the system initialised or used last."""
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
    """Reject a low-level call inside of another one, or inside `strategy.run`.

    Raises:
        StrategyError: the call is nested.
    """
    if current_replica() is not None:
        raise StrategyError(
            f"TPU computations cannot be nested: tpu.{name} was called in a function that already runs on the cores. "
            "Call the inner function directly"
        )


def _forget(system: Any) -> None:
    _KEPT.pop(system, None)
