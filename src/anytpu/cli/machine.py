"""`Machine`: facts about the computer and its packages, gathered without JAX or Keras."""

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
    """Facts about a computer, before any device is started.

    Attributes:
        system: operating system, kernel release and architecture.
        cpu: the processor's name and the number of cores that this process may use.
        memory_bytes: bytes of memory available to programs, or None if the system does not report them.
        disk_bytes: free bytes of the disk under `folder`.
        folder: the current folder.
        ports_taken: the ports of `WORKER_PORTS` that are in use.
        versions: package -> version, of Python and the installed packages.
        settings: relevant environment variables that are set.
        tpu_chips: number of TPU chips on the PCI bus.
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
    """Return the record of this machine."""
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
    installed = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def is_taken(port: int) -> bool:
    """Return whether a program on this machine uses a TCP port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def memory_text(machine: Machine) -> str:
    """Return the free memory as text with a unit."""
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
