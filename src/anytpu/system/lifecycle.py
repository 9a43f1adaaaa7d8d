"""Initialize and shut down a TPU system, and list its devices.

Idea: a running system is an object, `System`, one per address. Whatever holds on to it (a strategy) can ask whether
it still runs, and be told when it stops. Initialising what runs already changes nothing, so a notebook's cell can be
run again.

Rule: all state is in `_running`, behind one lock; callbacks run outside it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from anytpu.errors import BackendError, SettingError
from anytpu.system.cores import Address, Core, LogicalDevice
from anytpu.system.machine import topology_at, worker_message
from anytpu.system.resolver import TPUClusterResolver
from anytpu.system.topologies import Topology

DEVICE_TYPES = ("TPU", "GPU", "CPU")
"""The device types that `list_logical_devices` knows."""


class System:
    """One running TPU system. Two are the same only if they are the same object.

    Attributes:
        address: where it is.
        topology: its cores and where they lie.
    """

    def __init__(self, address: Address, topology: Topology) -> None:
        """Make a system that runs; only `running_system` does so.

        Args:
            address: where it is.
            topology: its cores.
        """
        self.address = address
        self.topology = topology
        self._callbacks: list[Callable[[], None]] | None = []

    @property
    def is_running(self) -> bool:
        """False once it has been shut down or reset."""
        return self._callbacks is not None

    def on_shutdown(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once when this system stops, the last one given first; at once if it has stopped."""
        with _lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        callback()

    def _stop(self) -> list[Callable[[], None]]:
        """Mark it as stopped and return what is to be called, in order. The caller holds the lock."""
        callbacks, self._callbacks = self._callbacks or [], None
        return callbacks[::-1]

    def __deepcopy__(self, memo: Any) -> System:
        # A copy of a Keras variable or layer stays on the system of the one that it was copied from.
        return self

    def __repr__(self) -> str:
        return f"System({self.topology!r}, {'running' if self.is_running else 'stopped'})"


_lock = threading.RLock()
_running: dict[Address, System] = {}
_announced = False


def initialize_tpu_system(resolver: TPUClusterResolver | None = None, reset: bool = False) -> Topology:
    """Start a TPU system, unless it runs already, and return its topology.

    Args:
        resolver: which one; None is the one in use, else what `TPUClusterResolver("")` finds.
        reset: stop it first if it runs. Strategies made on it stop working; without it nothing is ever lost.

    Example:
        >>> initialize_tpu_system(TPUClusterResolver("v2-8")).mesh_shape
        (2, 2, 1, 2)
    """
    address = _address_of(resolver)
    if reset:
        _stop([address])
    return running_system(address).topology


def shutdown_tpu_system(resolver: TPUClusterResolver | None = None) -> None:
    """Stop a TPU system; a second time does nothing.

    Args:
        resolver: which one; None is every system that this process runs.
    """
    with _lock:
        addresses = list(_running) if resolver is None else [_address_of(resolver)]
    _stop(addresses)


def experimental_connect_to_cluster(resolver: TPUClusterResolver) -> None:
    """Connect to the resolver's cluster. What is in this process needs no connection, so nothing happens there.

    Raises:
        SettingError: `resolver` is not a resolver.
        BackendError: it is the resolver of a worker, which a later release can reach.
    """
    address = _checked_resolver(resolver).address
    if address.kind == "worker":
        raise BackendError(worker_message(address.target or ""))


def running_system(address: Address) -> System:
    """Return the system at an address, started if it does not run.

    Raises:
        BackendError: it is not reachable from here.
    """
    global _announced
    with _lock:
        if address not in _running:
            _running[address] = System(address, topology_at(address))
            if address.kind == "virtual" and not _announced:
                _announced = True
                announce_virtual(_running[address].topology)
        _running[address] = _running.pop(address)  # the one used last stands last
        return _running[address]


def current_system() -> System | None:
    """Return the system that was initialised or asked for last and still runs, or None."""
    with _lock:
        return next(reversed(_running.values()), None)


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """Return the cores of the system in use, or of the one that would be found, and this machine's CPU.

    Args:
        device_type: "TPU", "GPU" or "CPU"; None is all.

    Raises:
        SettingError: there is no such type.

    Example:
        >>> initialize_tpu_system(TPUClusterResolver("virtual", cores=2)).name
        '2 virtual cores'
        >>> [device.name for device in list_logical_devices("TPU")][1]
        '/job:worker/replica:0/task:0/device:TPU:1'
    """
    if device_type not in (None, *DEVICE_TYPES):
        raise SettingError(
            f"device_type must be one of {', '.join(DEVICE_TYPES)}, or None for all, not {device_type!r}"
        )
    system = current_system()
    topology = system.topology if system else TPUClusterResolver("").topology
    devices = [LogicalDevice("/job:localhost/replica:0/task:0/device:CPU:0", "CPU"), *_named(topology.cores)]
    return [device for device in devices if device_type in (None, device.device_type)]


def announce_virtual(topology: Topology) -> None:
    """Say on stderr, in one line, that the cores are virtual."""
    count = len(topology.cores)
    cores = "1 core is" if count == 1 else f"{count} cores are"
    print(f"anytpu: the {cores} virtual: simulated on this machine's CPU ({topology.name}).", file=sys.stderr)


def _named(cores: tuple[Core, ...]) -> list[LogicalDevice]:
    """Name each core by its host and its number there."""
    counts: dict[int, int] = {}
    devices = []
    for core in cores:
        kind = "GPU" if core.platform == "gpu" else "TPU"
        number = counts.get(core.host, 0)
        counts[core.host] = number + 1
        devices.append(
            LogicalDevice(f"/job:worker/replica:0/task:{core.host}/device:{kind}:{number}", kind, core.virtual)
        )
    return devices


def _checked_resolver(resolver: TPUClusterResolver | None) -> TPUClusterResolver:
    if not isinstance(resolver, TPUClusterResolver):
        raise SettingError(f'resolver must be a TPUClusterResolver, not {resolver!r}; write TPUClusterResolver("")')
    return resolver


def _address_of(resolver: TPUClusterResolver | None) -> Address:
    if resolver is not None:
        return _checked_resolver(resolver).address
    system = current_system()
    return system.address if system else TPUClusterResolver("").address


def _stop(addresses: list[Address]) -> None:
    """Stop the systems at these addresses and tell whoever wanted to know; all are told even when one raises."""
    with _lock:
        stopped = [_running.pop(address) for address in addresses if address in _running]
        callbacks = [callback for system in stopped for callback in system._stop()]
    failures = [failure for callback in callbacks if (failure := _failure(callback))]
    if failures:
        raise failures[0]


def _failure(callback: Callable[[], None]) -> Exception | None:
    try:
        callback()
    except Exception as error:
        return error
    return None
