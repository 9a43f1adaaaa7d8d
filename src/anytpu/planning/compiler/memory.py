"""`Budget`: how much memory the compilers of this process may take, and how much one took.

Idea: libtpu takes what a program needs to be compiled, up to tens of gigabytes for hundreds of layers, and the kernel
ends some process of the machine when nothing is left. So the parent looks at its children while it waits, and ends the
largest before that happens. A limit that the kernel keeps is of one process, and RLIMIT_AS would count what libtpu
reserves and never touches.

Rule: all compilers of a process share nine tenths of the memory that was available when the last of them began. Where
the system does not tell of its memory, there is no limit.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from anytpu import _env

SHARE = 0.9
"""How much of the memory that is available the compilers may take."""

LOOKS_S = 0.1
"""How often a compiler is looked at while it works, seconds: at 5 GB/s it takes half a gigabyte meanwhile."""

_RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Budget:
    """What the compilers may take together.

    Attributes:
        limit_bytes: the most that may be resident, or None where the system does not tell.
    """

    limit_bytes: int | None

    def is_exceeded(self, pid: int, pids: Iterable[int]) -> bool:
        """Tell whether the compilers take too much, and one of them most.

        Args:
            pid: the process of the compiler that would be ended.
            pids: those of all compilers that work.
        """
        if self.limit_bytes is None:
            return False
        taken = {each: resident_bytes(each) for each in pids}
        return sum(taken.values()) > self.limit_bytes and taken.get(pid, 0) == max(taken.values())


def budget(pids: Iterable[int]) -> Budget:
    """Return what the compilers may take from now on; what they have taken is theirs."""
    available = _env.available_memory_bytes()
    if available is None:
        return Budget(None)
    return Budget(int(SHARE * (available + sum(map(resident_bytes, pids)))))


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has in use; 0 for one that ended."""
    try:
        match = _RESIDENT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0
