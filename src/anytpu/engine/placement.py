"""Manual placement: `with device("/TPU:3"):` computes on that core."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax

from anytpu.errors import SettingError
from anytpu.system.cores import Core
from anytpu.system.lifecycle import current_system, running_system
from anytpu.system.resolver import TPUClusterResolver

_NAME = re.compile(r"(?:/job:\w+/replica:\d+/task:\d+)?/?(?:device:)?(TPU|GPU|CPU)(?::(\d+))?", re.IGNORECASE)


@contextlib.contextmanager
def device(name: str) -> Iterator[Core]:
    """Compute on one core for the length of a block.

    New arrays are made on the device of that core; a virtual core's device is this machine's CPU.

    Args:
        name: "/TPU:3", "TPU:3", "/CPU:0", or the full name that `list_logical_devices` shows. Without a number, the first.

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
    kind, index = match[1].upper(), int(match[2] or 0)
    if kind == "CPU":
        cores: tuple[Core, ...] = (Core(0, "cpu", virtual=False, device_id=0),)
    else:
        system = current_system() or running_system(TPUClusterResolver("").address)
        cores = tuple(core for core in system.topology.cores if kind == ("TPU" if core.virtual else core.platform.upper()))
    if index >= len(cores):
        there = f"/{kind}:0 to /{kind}:{len(cores) - 1}" if cores else f"no {kind}"
        raise SettingError(f"there is no device {name!r}: this system has {there}. tpu.list_logical_devices() lists them all")
    return cores[index]


def _jax_device(core: Core) -> jax.Device:
    devices = jax.local_devices(backend="cpu" if core.virtual else core.platform)
    return devices[0] if core.virtual else next(one for one in devices if one.id == core.device_id)
