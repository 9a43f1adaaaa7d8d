"""The agreement between `anytpu launch` and the processes that it starts: environment variables.

Idea: three variables name the coordinator, the number of processes and the index of this one. A fourth is the number of
CPU devices. `_env.py` reads and writes them; this module converts them to a record and back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from anytpu.errors import SettingError

_START = "start the program with `anytpu launch`, or unset ANYTPU_COORDINATOR, ANYTPU_PROCESSES and ANYTPU_PROCESS"


@dataclasses.dataclass(frozen=True)
class LaunchedProcess:
    """One of the processes of a launch.

    Attributes:
        coordinator: address of the coordinator, "127.0.0.1:4321"; process 0 serves it.
        processes: number of processes, at least 1.
        index: index of this process, 0 to `processes` - 1.

    Example:
        >>> LaunchedProcess("127.0.0.1:4321", processes=4, index=0).variables()
        {'ANYTPU_COORDINATOR': '127.0.0.1:4321', 'ANYTPU_PROCESSES': '4', 'ANYTPU_PROCESS': '0'}
    """

    coordinator: str
    processes: int
    index: int

    VARIABLES: ClassVar = ("ANYTPU_COORDINATOR", "ANYTPU_PROCESSES", "ANYTPU_PROCESS")

    def variables(self) -> dict[str, str]:
        """Return the environment variables of this process, by name."""
        return dict(zip(self.VARIABLES, map(str, dataclasses.astuple(self)), strict=True))


def parse_process(variables: Mapping[str, str]) -> LaunchedProcess | None:
    """Return the record of a launched process, or None where no variable is set.

    Args:
        variables: value of each of `LaunchedProcess.VARIABLES`; "" where it is not set.

    Raises:
        SettingError: only some are set, or one is invalid.
    """
    missing = [name for name in LaunchedProcess.VARIABLES if not variables[name]]
    if len(missing) == len(LaunchedProcess.VARIABLES):
        return None
    if missing:
        present = [name for name in LaunchedProcess.VARIABLES if variables[name]]
        raise SettingError(f"{_listed(present)} set, but {_listed(missing)} not: {_START}")
    coordinator, processes, index = (variables[name] for name in LaunchedProcess.VARIABLES)
    host, _, port = coordinator.rpartition(":")
    if not host or not _is_integer(port) or not 1 <= int(port) <= 65535:
        raise SettingError(f"ANYTPU_COORDINATOR must be HOST:PORT, not {coordinator!r}: {_START}")
    if not _is_integer(processes) or int(processes) < 1:
        raise SettingError(f"ANYTPU_PROCESSES must be a positive integer, not {processes!r}: {_START}")
    if not _is_integer(index) or int(index) >= int(processes):
        raise SettingError(f"ANYTPU_PROCESS must be an integer from 0 to {int(processes) - 1}, not {index!r}: {_START}")
    return LaunchedProcess(coordinator, int(processes), int(index))


def parse_cpu_devices(value: str) -> int | None:
    """Return a number of CPU devices, or None for "".

    Raises:
        SettingError: the value is not a positive integer.
    """
    if not value:
        return None
    if not _is_integer(value) or int(value) < 1:
        raise SettingError(f"ANYTPU_CPU_DEVICES must be a positive integer, not {value!r}: unset ANYTPU_CPU_DEVICES")
    return int(value)


def _is_integer(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _listed(names: list[str]) -> str:
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"
