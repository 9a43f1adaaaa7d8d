"""Initialize and shut down a TPU system, and list its devices.

Idea: a running system is a `System` object, one per address. Its owner, such as a strategy, can ask whether it still
runs, and can register a callback for its shutdown. Initialising a running system changes nothing, so a notebook cell
can run again.

Rule: `_running`, `_announced` and the callbacks of a system change only under `_lock`. Callbacks run outside the lock.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from anytpu import _env
from anytpu._calls import explain_arguments, users_stacklevel
from anytpu.errors import SettingError
from anytpu.system.cores import Address, Core, LogicalDevice
from anytpu.system.machine import topology_at
from anytpu.system.probes import GETTING_A_TPU
from anytpu.system.resolver import TPUClusterResolver
from anytpu.system.topologies import Topology

DEVICE_TYPES = ("TPU", "GPU", "CPU")
"""The device types that `list_logical_devices` accepts."""


class System:
    """One running TPU system, compared by identity.

    Attributes:
        address: address of the system.
        topology: the cores and their coordinates.
    """

    def __init__(self, address: Address, topology: Topology) -> None:
        """Create a running system; only `running_system` calls this.

        Args:
            address: address of the system.
            topology: the cores and their coordinates.
        """
        self.address = address
        self.topology = topology
        self.is_running = True
        """True until the system is shut down or reset."""
        self._callbacks: list[Callable[[], None]] = []

    def on_shutdown(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when this system stops, in reverse order of registration; now if it has stopped."""
        with _lock:
            if self.is_running:
                self._callbacks.append(callback)
                return
        callback()

    def _stop(self) -> list[Callable[[], None]]:
        """Mark the system as stopped, and return its callbacks in call order. The caller holds the lock."""
        self.is_running, callbacks, self._callbacks = False, self._callbacks, []
        return callbacks[::-1]

    def __deepcopy__(self, memo: Any) -> System:
        # A copied Keras variable or layer stays on the system of the original.
        return self

    def __repr__(self) -> str:
        return f"System({self.topology!r}, {'running' if self.is_running else 'stopped'})"


_lock = threading.RLock()
_running: dict[Address, System] = {}
_announced = False


@explain_arguments
def initialize_tpu_system(resolver: TPUClusterResolver | None = None, reset: bool = False) -> Topology:
    """Start a TPU system, unless it runs already, and return its topology.

    Args:
        resolver: resolver of the system; None is the system in use, or else the one that `TPUClusterResolver("")`
            finds.
        reset: stop the system first if it runs. Strategies made on it stop working. Without `reset` nothing is lost.

    Warns:
        UserWarning: the system is virtual, although an environment variable names another one or a device exists.

    Raises:
        SettingError: JAX or XLA cannot start with the environment's settings, such as JAX_PLATFORMS=tpu without a TPU.

    Example:
        >>> initialize_tpu_system(TPUClusterResolver("v2-8")).mesh_shape
        (2, 2, 1, 2)
    """
    resolver = _resolver_or_current(resolver)
    if reset:
        _stop([resolver.address])
    _env.check_jax_settings()
    _warn_of_faults(resolver)
    return running_system(resolver.address).topology


@explain_arguments
def shutdown_tpu_system(resolver: TPUClusterResolver | None = None) -> None:
    """Stop a TPU system; a second call does nothing.

    Args:
        resolver: resolver of the system; None is every system that this process runs.
    """
    with _lock:
        addresses = list(_running) if resolver is None else [_checked_resolver(resolver).address]
    _stop(addresses)


def experimental_connect_to_cluster(resolver: TPUClusterResolver) -> None:
    """Connect to the resolver's cluster; the resolver has done so, and the call does nothing.

    `TPUClusterResolver` joins the hosts of a job before it looks for devices. `join_hosts`, called before it, takes the
    address of the job as arguments.

    Raises:
        SettingError: `resolver` is not a resolver.
    """
    _checked_resolver(resolver)


def running_system(address: Address) -> System:
    """Return the system at an address, and start it if it does not run."""
    global _announced
    with _lock:
        if address not in _running:
            _running[address] = System(address, topology_at(address))
            if address.kind == "virtual" and not _announced:
                _announced = True
                announce_virtual(_running[address].topology)
        _running[address] = _running.pop(address)  # Keep the most recently used system last.
        return _running[address]


def current_system() -> System | None:
    """Return the most recently used system that still runs, or None."""
    with _lock:
        return next(reversed(_running.values()), None)


@explain_arguments
def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """Return this machine's CPU and the cores of the system in use, or of the one that a search would find.

    Args:
        device_type: "TPU", "GPU" or "CPU"; None is all types.

    Raises:
        SettingError: `device_type` is not one of these.

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
    devices = [LogicalDevice("/job:localhost/replica:0/task:0/device:CPU:0", "CPU"), *_logical_devices(topology.cores)]
    return [device for device in devices if device_type in (None, device.device_type)]


def announce_virtual(topology: Topology) -> None:
    """Print one line on stderr: the cores are virtual."""
    count = len(topology.cores)
    cores = "1 core is" if count == 1 else f"{count} cores are"
    print(f"anytpu: the {cores} virtual: simulated on this machine's CPU ({topology.name}).", file=sys.stderr)


def _logical_devices(cores: tuple[Core, ...]) -> list[LogicalDevice]:
    """Return each core as a device that is named by its host and its index on that host."""
    counts: dict[int, int] = {}
    devices = []
    for core in cores:
        kind = "GPU" if core.platform == "gpu" else "TPU"
        index = counts.get(core.host, 0)
        counts[core.host] = index + 1
        devices.append(
            LogicalDevice(f"/job:worker/replica:0/task:{core.host}/device:{kind}:{index}", kind, core.virtual)
        )
    return devices


def _checked_resolver(resolver: TPUClusterResolver | None) -> TPUClusterResolver:
    if not isinstance(resolver, TPUClusterResolver):
        raise SettingError(f'resolver must be a TPUClusterResolver, not {resolver!r}; write TPUClusterResolver("")')
    return resolver


def _resolver_or_current(resolver: TPUClusterResolver | None) -> TPUClusterResolver:
    """Return the resolver, or for None that of the system in use, or one that searches."""
    if resolver is not None:
        return _checked_resolver(resolver)
    system = current_system()
    return TPUClusterResolver.from_address(system.address) if system else TPUClusterResolver("")


def _warn_of_faults(resolver: TPUClusterResolver) -> None:
    """Warn if virtual cores replace a system that the user expects: one that is named, or a device that exists."""
    if resolver.is_virtual:
        for reason in resolver.reasons:
            if reason.is_fault:
                help_ = "" if reason.source == "GPU" else f". {GETTING_A_TPU}"
                text = f"this program runs on virtual cores of the CPU. {reason}{help_}"
                warnings.warn(text, stacklevel=users_stacklevel())


def _stop(addresses: list[Address]) -> None:
    """Stop the systems at these addresses and run their callbacks; all callbacks run even when one raises."""
    # A system is taken out under the lock, so each callback runs once.
    with _lock:
        stopped = [_running.pop(address) for address in addresses if address in _running]
        callbacks = [callback for system in stopped for callback in system._stop()]
    failures = [failure for callback in callbacks if (failure := _run_callback(callback))]
    if failures:
        raise failures[0]


def _run_callback(callback: Callable[[], None]) -> Exception | None:
    """Run a callback, and return the exception that it raised, or None."""
    try:
        callback()
    except Exception as error:
        return error
    return None
