"""Open the backend of a system by the kind of its address."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from importlib.metadata import entry_points

from anytpu import _env
from anytpu.engine.backend import Backend
from anytpu.errors import BackendError
from anytpu.system.cores import Address, Core
from anytpu.system.lifecycle import System

_OPEN: weakref.WeakKeyDictionary[System, dict[int, Backend]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def backend_of(system: System, cores: int | None = None) -> Backend:
    """Return the backend of a running system. It is opened once, and closed when the system shuts down.

    Args:
        system: the system.
        cores: number of cores, the first of the system; None is all.
    """
    all_cores = system.topology.cores
    count = len(all_cores) if cores is None else cores
    with _lock:
        opened = _OPEN.setdefault(system, {})
        if count not in opened:
            part = dataclasses.replace(system.address, cores=count, shape=None)
            backend = open(system.address if count == len(all_cores) else part, all_cores[:count])
            opened[count] = backend
            system.on_shutdown(backend.close)
        return opened[count]


def open(address: Address, cores: tuple[Core, ...]) -> Backend:
    """Return the backend of the system at an address.

    The entry points of the group "anytpu.backends" map each kind of address to a class. So another package can add a
    kind, and this floor imports no backend.

    Args:
        address: address of the system.
        cores: the cores to use.

    Raises:
        BackendError: no installed package has a backend for this kind of address.
        SettingError: JAX or XLA cannot start with the current environment variables.
    """
    _env.check_jax_settings()
    kinds = {entry.name: entry for entry in entry_points(group="anytpu.backends")}
    if address.kind not in kinds:
        known = ", ".join(sorted(kinds)) or "none: is anytpu installed? Type pip install -e ."
        raise BackendError(f"no backend opens a system of kind {address.kind!r}; the installed kinds are {known}")
    backend = kinds[address.kind].load()
    return backend(cores) if address.numerics == "machine" else backend(cores, numerics=address.numerics)
