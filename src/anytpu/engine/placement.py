"""Manual placement: code in `with device("/TPU:3"):` computes on that core."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import jax

from anytpu._calls import explain_arguments
from anytpu.errors import SettingError
from anytpu.system.cores import Core
from anytpu.system.lifecycle import current_system, running_system
from anytpu.system.resolver import TPUClusterResolver

_NAME = re.compile(
    r"(?:/job:\w+/replica:\d+/task:(?P<host>\d+))?/?(?:device:)?(?P<kind>TPU|GPU|CPU)(?:_REPLICATED_CORE)?(?::(?P<index>\d+))?",
    re.IGNORECASE | re.ASCII,
)
_CPU = Core(0, "cpu", virtual=False, device_id=0)


@explain_arguments
@contextlib.contextmanager
def device(name: str) -> Iterator[Core]:
    """Compute on one core inside a block.

    New arrays are created on the device of that core; a virtual core's device is this machine's CPU.

    Args:
        name: "/TPU:3", "TPU:3", "/CPU:0", or a full name from `list_logical_devices`. The index counts the cores of the
            system; in a full name it counts the cores of that host. Without an index it is 0. In a system of GPUs a
            TPU is the GPU in its place.

    Yields:
        The core.

    Raises:
        SettingError: `name` is not the name of a device, or the system has no such device.

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
    kind, index = match["kind"].upper(), int(match["index"] or 0)
    cores = _cores(kind, match["host"])
    if index >= len(cores):
        names = f"/{kind}:0 to /{kind}:{len(cores) - 1}" if cores else f"no {kind}"
        owner = "this system" if match["host"] is None else f"host {match['host']} of this system"
        raise SettingError(
            f"there is no device {name!r}: {owner} has {names}. tpu.list_logical_devices() lists them all"
        )
    return cores[index]


def _cores(kind: str, host: str | None) -> list[Core]:
    """Return the cores of a kind, "TPU", "GPU" or "CPU", on one host; None is all hosts."""
    if kind == "CPU":
        return [_CPU] if int(host or 0) == 0 else []
    system = current_system() or running_system(TPUClusterResolver("").address)
    of_kind = [core for core in system.topology.cores if kind == "TPU" or core.platform == "gpu"]
    return [core for core in of_kind if host is None or core.host == int(host)]


def _jax_device(core: Core) -> Any:
    devices = jax.local_devices(backend="cpu" if core.virtual else core.platform)
    return devices[0] if core.virtual else next(device for device in devices if device.id == core.device_id)
