"""Open the backend of a system, by the name of its kind."""

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
    """Return the backend of a running system; opened once, closed when the system is shut down.

    Args:
        system: the system.
        cores: of its first so many cores; None is all.
    """
    every = system.topology.cores
    count = len(every) if cores is None else cores
    with _lock:
        opened = _OPEN.setdefault(system, {})
        if count not in opened:
            part = dataclasses.replace(system.address, cores=count, shape=None)
            backend = open(system.address if count == len(every) else part, every[:count])
            opened[count] = backend
            system.on_shutdown(backend.close)
        return opened[count]


def open(address: Address, cores: tuple[Core, ...]) -> Backend:
    """Return the backend of the system at an address.

    The entry points of the group "anytpu.backends" say which class opens which kind of address; so another package can
    bring a kind of its own, and this floor imports none of them.

    Args:
        address: where the system is.
        cores: its cores, or those of them to use.

    Raises:
        BackendError: no installed package opens this kind of address.
        SettingError: JAX, or XLA, cannot start with the environment as it is.
    """
    _env.check_jax_settings()
    found = {entry.name: entry for entry in entry_points(group="anytpu.backends")}
    if address.kind not in found:
        known = ", ".join(sorted(found)) or "none: is anytpu installed? Type pip install -e ."
        raise BackendError(f"no backend opens a system of kind {address.kind!r}; the installed kinds are {known}")
    backend = found[address.kind].load()
    return backend(cores) if address.numerics == "machine" else backend(cores, numerics=address.numerics)
