"""`Budget`: the memory that the compilers of this process may take, and the memory that one takes.

Idea: libtpu takes up to tens of gigabytes for hundreds of layers, and the kernel kills some process of the machine when
memory runs out. So the parent polls its children while it waits, and ends the largest before that happens. A kernel
limit holds for one process only, and RLIMIT_AS would count memory that libtpu reserves and never touches.

Rule: all compilers of a process share nine tenths of the memory that was available when the last of them began. If the
system does not report its memory, there is no limit.
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
    """The memory that all compilers may take together.

    Attributes:
        limit_bytes: maximum resident memory, bytes, or None if the system does not report it.
    """

    limit_bytes: int | None

    def is_exceeded(self, pid: int, pids: Iterable[int]) -> bool:
        """Return whether the compilers take too much, and one of them the most.

        Args:
            pid: process id of the compiler that would be ended.
            pids: process ids of all busy compilers.
        """
        if self.limit_bytes is None:
            return False
        taken = {each: resident_bytes(each) for each in pids}
        return sum(taken.values()) > self.limit_bytes and taken.get(pid, 0) == max(taken.values())


def budget(pids: Iterable[int]) -> Budget:
    """Return the memory that the compilers may take from now on; memory that they already hold counts as theirs."""
    available = _env.available_memory_bytes()
    if available is None:
        return Budget(None)
    return Budget(int(SHARE * (available + sum(map(resident_bytes, pids)))))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, bytes; 0 if it has ended."""
    try:
        match = _RESIDENT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0
