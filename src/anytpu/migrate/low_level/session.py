"""Replacements of TensorFlow 1's session operations: name a core, list the devices, count the shards.

Idea: in TensorFlow 1 a session ran these operations; here they are function calls. TensorFlow 1 knew the number of
shards only inside `tpu.shard`. Programs that called an optimizer outside of it set the number by hand. Here the number
is that of the running cores, and setting it is only a check.

Rule: a number of shards that was set belongs to its thread, and does not change any result.
"""

from __future__ import annotations

import contextvars
import dataclasses
import numbers
import secrets
import zlib
from typing import final

from anytpu._calls import explain_arguments
from anytpu.errors import SettingError
from anytpu.strategy.replicas import current_replica
from anytpu.system.lifecycle import current_system, list_logical_devices
from anytpu.system.resolver import TPUClusterResolver

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


@explain_arguments
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


_SET: contextvars.ContextVar[int | None] = contextvars.ContextVar("number_of_shards", default=None)


@final
class TPUContext:
    """The shards that the calling code runs on. All instances are equivalent."""

    @property
    def number_of_shards(self) -> int | None:
        """Number of shards that run the calling function; outside of such a function, the set number or None."""
        replica = current_replica()
        return _SET.get() if replica is None else replica.replicas

    def set_number_of_shards(self, number_of_shards: int) -> None:
        """Check the number of shards. Calling it is optional.

        Raises:
            SettingError: the number is not a positive integer, or the system in use has another number of cores.
        """
        is_number = isinstance(number_of_shards, numbers.Integral) and not isinstance(number_of_shards, bool)
        if not is_number or number_of_shards < 1:
            raise SettingError(f"number_of_shards must be a positive integer, not {number_of_shards!r}")
        replica, system = current_replica(), current_system()
        cores = replica.replicas if replica else len(system.topology.cores) if system else number_of_shards
        if number_of_shards != cores:
            raise SettingError(
                f"number_of_shards is {number_of_shards}, and {cores} core{'s' * (cores > 1)} run: remove the "
                "call, the number of shards is right without it"
            )
        _SET.set(int(number_of_shards))


def get_tpu_context() -> TPUContext:
    """Return the context of the calling code's shards.

    Example:
        >>> initialize_system(TPUClusterResolver("virtual", cores=2)).name
        '2 virtual cores'
        >>> int(rewrite(lambda: get_tpu_context().number_of_shards)[0])
        1
    """
    return TPUContext()


def is_number_set() -> bool:
    """Return whether a program has set the number of shards by hand."""
    return _SET.get() is not None
