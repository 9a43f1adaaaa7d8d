"""Replacements of TensorFlow 1's session operations: start and stop the TPU, name a core, list the devices.

Idea: in TensorFlow 1 a session ran these operations; here they are function calls.

Rule: they wrap functions of `anytpu.system` under their TensorFlow 1 names.
"""

from __future__ import annotations

import dataclasses
import secrets
import zlib

from anytpu.errors import SettingError
from anytpu.system.lifecycle import (
    current_system,
    initialize_tpu_system,
    list_logical_devices,
    shutdown_tpu_system,
)
from anytpu.system.resolver import TPUClusterResolver
from anytpu.system.topologies import Topology

_STARTED = secrets.token_hex(8)


@dataclasses.dataclass(frozen=True, repr=False)
class DeviceAttributes:
    """A device in the form of `Session.list_devices()`.

    Attributes:
        name: full name, such as "/job:worker/replica:0/task:0/device:TPU:3".
        device_type: "TPU", "GPU", "CPU" or "TPU_SYSTEM".
        memory_limit_bytes: usable memory in bytes, or 0 if unknown.
        incarnation: an ID that stays the same while the system runs.
        virtual: whether the device is simulated on another kind of device.
    """

    name: str
    device_type: str
    memory_limit_bytes: int
    incarnation: int
    virtual: bool = False

    def __repr__(self) -> str:
        fields = f"{self.name}, {self.device_type}, {self.memory_limit_bytes}, {self.incarnation}"
        return f"_DeviceAttributes({fields}{', virtual' if self.virtual else ''})"


def initialize_system(resolver: TPUClusterResolver | None = None) -> Topology:
    """Start the TPU system, unless it runs, and return its topology, as a session did for `tpu.initialize_system()`.

    Args:
        resolver: resolver of the system. None is the system in use, or else the one that `TPUClusterResolver("")`
            finds.

    Example:
        >>> initialize_system(TPUClusterResolver("v2-8"))
        Topology('v2-8': 8 virtual cores, 2x2x1 chips, 1 host)
    """
    return initialize_tpu_system(resolver)


def shutdown_system(resolver: TPUClusterResolver | None = None) -> None:
    """Stop the TPU system; a second call does nothing.

    Args:
        resolver: resolver of the system; None is every system that this process runs.
    """
    shutdown_tpu_system(resolver)


def core(num: int) -> str:
    """Return the name of the core with an index, for `tpu.device`.

    Raises:
        SettingError: the system in use has no such core.

    Example:
        >>> core(1)
        'device:TPU_REPLICATED_CORE:1'
    """
    system = current_system()
    cores = len((system.topology if system else TPUClusterResolver("").topology).cores)
    if isinstance(num, bool) or not isinstance(num, int) or not 0 <= num < cores:
        raise SettingError(f"num must be the index of a core, from 0 to {cores - 1}, not {num!r}")
    return f"device:TPU_REPLICATED_CORE:{num}"


def list_devices() -> list[DeviceAttributes]:
    """Return this machine's CPU, the cores, and the TPU system, as `Session.list_devices()` did.

    Example:
        >>> initialize_system(TPUClusterResolver("virtual", cores=2)).name
        '2 virtual cores'
        >>> [device.name for device in list_devices()][1]
        '/job:worker/replica:0/task:0/device:TPU:0'
    """
    devices = list_logical_devices()
    system = current_system()
    cores = (system.topology if system else TPUClusterResolver("").topology).cores
    memory = [0, *(core.memory_bytes or 0 for core in cores)]
    listed = [
        DeviceAttributes(device.name, device.device_type, limit, _incarnation(device.name), device.virtual)
        for device, limit in zip(devices, memory, strict=True)
    ]
    name = "/job:worker/replica:0/task:0/device:TPU_SYSTEM:0"
    return [*listed, DeviceAttributes(name, "TPU_SYSTEM", 0, _incarnation(name), any(core.virtual for core in cores))]


def _incarnation(name: str) -> int:
    return zlib.crc32(f"{_STARTED} {name}".encode())
