"""`MemoryHistory`: for each address range of a memory, the last write and the reads since.

Idea: a memory is split into ranges at the bounds of the accesses. A write merges the ranges that it covers. So a
program of tens of thousands of instructions needs a few hundred ranges, not millions of addresses.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import Literal

from anytpu.chip.checking.clocks import QueuePosition


@dataclasses.dataclass(frozen=True)
class Conflict:
    """The hazard of an access: a missing write, or a missing wait for an earlier access.

    Attributes:
        kind: "unwritten": nothing wrote the addresses that are read. Otherwise the access and the earlier access,
            which may not be done yet.
        start, stop: range of addresses, `stop` excluded.
        earlier: the earlier access; None for "unwritten".
    """

    kind: Literal["unwritten", "read after write", "write after read", "write after write"]
    start: int
    stop: int
    earlier: QueuePosition | None = None


@dataclasses.dataclass
class _AccessedRange:
    writer: QueuePosition | None
    readers: dict[
        int, QueuePosition
    ]  # the last of each unit: its queue is in order, so the earlier ones are done with it


class MemoryHistory:
    """The accesses to each address of one memory.

    Args:
        size: number of addresses of the memory.
        is_done: returns whether an earlier instruction is surely done when a later instruction starts.
    """

    def __init__(self, size: int, is_done: Callable[[QueuePosition, QueuePosition], bool]):
        self._starts = [0, size]
        self._cells = [_AccessedRange(None, {})]
        self._is_done = is_done

    def read(self, start: int, stop: int, position: QueuePosition) -> list[Conflict]:
        """Record a read of a range, and return its conflicts in the order of addresses."""
        conflicts: list[Conflict] = []
        for index in range(self._cut(start), self._cut(stop)):
            cell = self._cells[index]
            if cell.writer is None:
                conflicts.append(Conflict("unwritten", *self._extent(index)))
            elif not self._is_done(cell.writer, position):
                conflicts.append(Conflict("read after write", *self._extent(index), cell.writer))
            cell.readers[position.unit] = position
        return conflicts

    def write(self, start: int, stop: int, position: QueuePosition) -> list[Conflict]:
        """Record a write of a range, and return its conflicts in the order of addresses."""
        first, last = self._cut(start), self._cut(stop)
        conflicts: list[Conflict] = []
        for index in range(first, last):
            cell = self._cells[index]
            for reader in cell.readers.values():
                if not self._is_done(reader, position):
                    conflicts.append(Conflict("write after read", *self._extent(index), reader))
            if cell.writer is not None and not self._is_done(cell.writer, position):
                conflicts.append(Conflict("write after write", *self._extent(index), cell.writer))
        if first < last:
            self._starts[first + 1 : last] = []
            self._cells[first:last] = [_AccessedRange(position, {})]
        return conflicts

    def first_unwritten(self, start: int, stop: int) -> int | None:
        """Return the first unwritten address of a range, or None."""
        for index in range(self._cut(start), self._cut(stop)):
            if self._cells[index].writer is None:
                return self._starts[index]
        return None

    def _cut(self, address: int) -> int:
        index = bisect.bisect_left(self._starts, address)
        if self._starts[index] != address:
            cell = self._cells[index - 1]
            self._starts.insert(index, address)
            self._cells.insert(index, _AccessedRange(cell.writer, dict(cell.readers)))
        return index

    def _extent(self, index: int) -> tuple[int, int]:
        return self._starts[index], self._starts[index + 1]
