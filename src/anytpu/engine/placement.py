"""Manual placement: `with device("/TPU:3"):` computes on that core."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import jax

from anytpu.errors import SettingError
from anytpu.system.cores import Core
from anytpu.system.lifecycle import current_system, running_system
from anytpu.system.resolver import TPUClusterResolver

_NAME = re.compile(
    r"(?:/job:\w+/replica:\d+/task:(?P<host>\d+))?/?(?:device:)?(?P<kind>TPU|GPU|CPU)(?:_REPLICATED_CORE)?(?::(?P<number>\d+))?",
    re.IGNORECASE | re.ASCII,
)
_CPU = Core(0, "cpu", virtual=False, device_id=0)


@contextlib.contextmanager
def device(name: str) -> Iterator[Core]:
    """Compute on one core for the length of a block.

    New arrays are made on the device of that core; a virtual core's device is this machine's CPU.

    Args:
        name: "/TPU:3", "TPU:3", "/CPU:0", or the full name that `list_logical_devices` shows, whose number counts on
            its host. Without a number, the first.

    Yields:
        The core.

    Raises:
        SettingError: not the name of a device, or of one that the system does not have.

    Example:
        >>> with device("/TPU:3") as core:
        ...     total = jax.numpy.ones(4).sum()
        >>> core.index, float(total)
        (3, 4.0)
    """
    core = _core(name)
    with jax.default_device(_jax_device(core)):
        yield core


def _core(name: str) -> Core:
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise SettingError(f'a device is named like "/TPU:0", "/GPU:0" or "/CPU:0", not {name!r}')
    kind, number = match["kind"].upper(), int(match["number"] or 0)
    cores = _cores(kind, match["host"])
    if number >= len(cores):
        there = f"/{kind}:0 to /{kind}:{len(cores) - 1}" if cores else f"no {kind}"
        where = "this system" if match["host"] is None else f"its host {match['host']}"
        raise SettingError(
            f"there is no device {name!r}: {where} has {there}. tpu.list_logical_devices() lists them all"
        )
    return cores[number]


def _cores(kind: str, host: str | None) -> list[Core]:
    """Return the cores of a kind, of one host or of all."""
    if kind == "CPU":
        return [_CPU] if int(host or 0) == 0 else []
    system = current_system() or running_system(TPUClusterResolver("").address)
    of_kind = [core for core in system.topology.cores if (core.platform == "gpu") == (kind == "GPU")]
    return [core for core in of_kind if host is None or core.host == int(host)]


def _jax_device(core: Core) -> Any:
    devices = jax.local_devices(backend="cpu" if core.virtual else core.platform)
    return devices[0] if core.virtual else next(one for one in devices if one.id == core.device_id)
