"""Programs written for `keras.distribution` in the scope of a strategy: its mesh is over the cores, its layout is read.

Idea: such a program lists the devices, makes a `DeviceMesh` of them, and sets a distribution. In a scope the devices
are the cores of the strategy, and the distribution becomes its layout. Keras itself never places a variable there.

Rule: outside of every scope Keras's own functions stay as they are. The layout stays for the life of the strategy: its
models run in it after the scope, and after `set_distribution(None)`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras

from anytpu import _keras
from anytpu.errors import StrategyError
from anytpu.sharding import resolve
from anytpu.strategy.current import CURRENT

_READ: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The distribution that the layout of a strategy was read from."""


def install() -> None:
    """Install the wrappers of `keras.distribution`; outside of a scope they do nothing."""
    for module in (keras.distribution, _keras.distribution_module()):
        _keras.wrap(module, "list_devices", _wrap_list_devices)
        _keras.wrap(module, "set_distribution", _wrap_set_distribution)


def read_distribution(strategy: Any) -> None:
    """Make the distribution that was set before a scope the layout of the strategy, and unset it.

    Raises:
        SettingError: its mesh has another number of devices than the strategy has cores.
        StrategyError: the strategy has another layout, or models without one.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        set_layout(strategy, distribution)
        keras.distribution.set_distribution(None)


def set_layout(strategy: Any, distribution: Any) -> None:
    """Make a distribution of Keras the layout of a strategy.

    Raises:
        SettingError: its mesh has another number of devices than the strategy has cores.
        StrategyError: the strategy has another layout, or models without one.
    """
    layout = resolve(distribution, None, strategy.num_replicas_in_sync)
    before, name = _READ.get(strategy), f"keras.distribution.{type(distribution).__name__}"
    if before is distribution:
        return
    if strategy.layout is not None and before is None:
        raise StrategyError(f"{strategy!r} has a layout, and {name} is another: leave one of them out")
    if strategy.compilations:
        raise StrategyError(
            f"{name} is set after {strategy!r} compiled a model without it: set it before the model is made"
        )
    strategy.layout, _READ[strategy] = layout, distribution


def _wrap_list_devices(list_devices: Callable) -> Callable:
    """Return a name for each core of the strategy whose scope this is."""

    def wrapper(device_type: str | None = None) -> list[str]:
        strategy = CURRENT.get()
        if strategy is None:
            return list_devices(device_type)
        return [f"{core.platform}:{core.index}" for core in strategy.backend.cores]

    return wrapper


def _wrap_set_distribution(set_distribution: Callable) -> Callable:
    """Make a distribution that is set in a scope the layout of its strategy."""

    def wrapper(value: Any) -> None:
        strategy = CURRENT.get()
        if strategy is None or not hasattr(value, "device_mesh"):
            set_distribution(value)
        else:
            set_layout(strategy, value)

    return wrapper
