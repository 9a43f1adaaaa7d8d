"""`Machine`: what the command line needs to know of the computer and its packages, gathered without JAX or Keras."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

from anytpu import _env, units

PACKAGES = ("anytpu", "jax", "jaxlib", "keras", "numpy", "libtpu", "tensorflow", "torch")
"""The packages whose versions a bug report needs."""
WORKER_PORTS = range(8470, 8477)
"""The ports that TPU workers use."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What is there before anything is started.

    Attributes:
        system: the operating system and its architecture.
        cpu: the processor's name and how many of its cores this process may use.
        memory_bytes: memory that is free for programs, or None when the system does not say.
        disk_bytes: free bytes of the disk under `folder`.
        folder: the current folder.
        ports_taken: those of `WORKER_PORTS` on which something listens.
        versions: package -> version, those that are installed, and Python.
        settings: the environment variables that matter, those that are set.
        tpu_chips: TPU chips in this machine, by its PCI bus.
        has_nvidia: whether there is an NVIDIA GPU with its driver.
    """

    system: str
    cpu: str
    memory_bytes: int | None
    disk_bytes: int
    folder: Path
    ports_taken: tuple[int, ...]
    versions: dict[str, str]
    settings: dict[str, str]
    tpu_chips: int
    has_nvidia: bool


def look_at_machine() -> Machine:
    """Return what this machine is."""
    folder = Path.cwd()
    return Machine(
        system=f"{_system_name()}, {platform.release()}, {platform.machine()}",
        cpu=_cpu(),
        memory_bytes=_env.available_memory_bytes(),
        disk_bytes=shutil.disk_usage(folder).free,
        folder=folder,
        ports_taken=tuple(port for port in WORKER_PORTS if is_taken(port)),
        versions={"python": platform.python_version(), **versions(PACKAGES)},
        settings=_env.settings(),
        tpu_chips=_env.tpu_chips(),
        has_nvidia=_env.has_nvidia(),
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package that is installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def is_taken(port: int) -> bool:
    """Return whether something on this machine listens on a TCP port."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def memory_text(machine: Machine) -> str:
    """Return the free memory as people read it."""
    return "unknown" if machine.memory_bytes is None else f"{units.format_bytes(machine.memory_bytes)} free"


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu() -> str:
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    usable = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1
    return f"{names[0] if names else platform.machine()}, {usable} cores usable"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
