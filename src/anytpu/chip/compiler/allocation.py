"""`allocate`: buffer allocation in the Unified Buffer: the address of each storage, its live range, and spilling.

Idea: jobs run in order, so the live storages at each job are known. A storage takes the smallest free range that is
large enough, and returns it after its last use. If no range is large enough, the storage whose next use is latest is
spilled (Belady's rule). It goes to the host's buffer and is read again before its next use.

Rule: a storage that is in the host's buffer already and was not written since is not written again.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

from anytpu.chip.compiler.jobs import HostServiceJob, Job
from anytpu.chip.compiler.packing import LiveRange, pack
from anytpu.chip.compiler.planes import Storage
from anytpu.chip.isa.design import UNIT_BYTES


@dataclasses.dataclass(frozen=True)
class HostTransfer:
    """A transfer of a storage from the host's buffer (`inwards`) or to it (a spill)."""

    storage: int
    address: int
    host_address: int
    inwards: bool


@dataclasses.dataclass(frozen=True)
class AllocatedBuffer:
    """A storage at one address of the Unified Buffer; a spilled storage has several of these.

    Attributes:
        storage: index of the storage.
        address: the unit where it starts.
        first, last: indices of the first and the last job during which the storage has this address.
    """

    storage: int
    address: int
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class BufferAllocation:
    """The allocation of all storages.

    Attributes:
        moves: for each job, the transfers before it, in order.
        addresses: for each job, the address of each storage that it uses.
        buffers: all stays.
        host_bytes: size of the host's buffer in bytes, with the spilled storages.
    """

    moves: tuple[tuple[HostTransfer, ...], ...]
    addresses: tuple[Mapping[int, int], ...]
    buffers: tuple[AllocatedBuffer, ...]
    host_bytes: int


class BufferFullError(Exception):
    """The storages of a job do not fit in the Unified Buffer.

    Attributes:
        job: index of the job.
        needed_units: total size of the storages that it uses, in units.
        held_units: total size of the other live storages, in units.
    """

    def __init__(self, job: int, needed_units: int, held_units: int):
        super().__init__(job, needed_units, held_units)
        self.job, self.needed_units, self.held_units = job, needed_units, held_units


class FreeList:
    """The free list of a memory: best fit; adjacent free ranges are merged.

    Example:
        >>> holes = FreeList(10)
        >>> holes.take(4), holes.take(6), holes.take(1)
        (0, 4, None)
        >>> holes.give(0, 4)
        >>> holes.take(3)
        0
    """

    def __init__(self, units: int):
        self._starts, self._lengths = [0], [units]

    def take(self, units: int) -> int | None:
        """Allocate `units` units from the smallest range that fits; return the first, or None."""
        fitting = [(length, index) for index, length in enumerate(self._lengths) if length >= units]
        if not fitting:
            return None
        length, index = min(fitting)
        start = self._starts[index]
        if length == units:
            del self._starts[index], self._lengths[index]
        else:
            self._starts[index] += units
            self._lengths[index] -= units
        return start

    def give(self, start: int, units: int) -> None:
        """Free `units` units from `start` on."""
        index = bisect.bisect(self._starts, start)
        self._starts.insert(index, start)
        self._lengths.insert(index, units)
        self._join(index)
        if index:
            self._join(index - 1)

    def _join(self, left: int) -> None:
        """Merge a free range with the next if they are adjacent."""
        right = left + 1
        if right < len(self._starts) and self._starts[left] + self._lengths[left] == self._starts[right]:
            self._lengths[left] += self._lengths[right]
            del self._starts[right], self._lengths[right]


class _Allocator:
    """An allocation in progress, job by job.

    Attributes:
        places: maps each resident storage to its address and to the first job with that address.
        on_host: maps each storage with a valid copy in the host's buffer to its first byte there.
        dirty: resident storages that differ from their copy on the host, or have none.
        unfinished: storages of which a part is still unwritten; they cannot be spilled.
    """

    def __init__(
        self, jobs: Sequence[Job], storages: Sequence[Storage], on_host: Mapping[int, int], units: int, host_bytes: int
    ):
        self.jobs, self.storages, self.from_host = jobs, storages, on_host
        self.uses = _uses(jobs)
        results = {storage for job in jobs if isinstance(job, HostServiceJob) for storage in job.results}
        self.on_host = {storage: at for storage, at in on_host.items() if storage not in results}
        self.host_bytes = host_bytes
        self.capacity, self.free_list = units, FreeList(units)
        self.places: dict[int, tuple[int, int]] = {}
        self.dirty: set[int] = set()
        self.unfinished: set[int] = set()
        self.moves: list[HostTransfer] = []
        self.buffers: list[AllocatedBuffer] = []

    def allocate(self, spill: bool) -> BufferAllocation:
        """Allocate the storages of all jobs."""
        last_writes = {storage: index for index, job in enumerate(self.jobs) for storage in job.writes}
        moves, addresses = [], []
        for index, job in enumerate(self.jobs):
            # 1. Results of the host become readable from its buffer.
            if isinstance(job, HostServiceJob):
                self.on_host.update({storage: self.from_host[storage] for storage in job.results})
            # 2. Make the storages of the job resident; this may spill others.
            self.moves = []
            needed = job.reads | job.writes
            self.bring(index, needed, spill)
            moves.append(tuple(self.moves))
            addresses.append({storage: self.places[storage][0] for storage in needed})
            # 3. Record the writes.
            self.dirty |= job.writes
            self.unfinished |= job.writes
            self.unfinished -= {storage for storage in job.writes if last_writes[storage] == index}
            # 4. Free the storages whose live range ends here.
            for storage in needed:
                if self.uses[storage][-1] == index:
                    self.leave(storage, index)
        return BufferAllocation(tuple(moves), tuple(addresses), tuple(self.buffers), self.host_bytes)

    def next_use(self, storage: int, job: int) -> int:
        """Return the index of the next job that uses a storage; beyond all jobs if there is none."""
        uses = self.uses[storage]
        index = bisect.bisect_left(uses, job)
        return uses[index] if index < len(uses) else len(self.uses) + uses[-1]

    def leave(self, storage: int, last: int) -> None:
        """Free a storage after job `last`."""
        address, first = self.places.pop(storage)
        self.free_list.give(address, self.storages[storage].units)
        self.buffers.append(AllocatedBuffer(storage, address, first, last))

    def evict(self, storage: int, job: int) -> None:
        """Free a storage before a job, and write it to the host if it has no valid copy there."""
        address = self.places[storage][0]
        if storage in self.dirty:
            if storage not in self.on_host:
                self.on_host[storage] = self.host_bytes
                self.host_bytes += self.storages[storage].units * UNIT_BYTES
            self.moves.append(HostTransfer(storage, address, self.on_host[storage], False))
            self.dirty.discard(storage)
        self.leave(storage, job - 1)

    def enter(self, storage: int, address: int, job: int) -> None:
        """Make a storage resident at an address, and read its contents if the host has them."""
        self.places[storage] = (address, job)
        if storage in self.on_host:
            self.moves.append(HostTransfer(storage, address, self.on_host[storage], True))

    def bring(self, job: int, needed: frozenset[int], spill: bool) -> None:
        """Make all storages of a job resident."""
        units = sum(self.storages[storage].units for storage in needed)
        full = BufferFullError(job, units, sum(self.storages[s].units for s in self.places.keys() - needed))
        if units > self.capacity:
            raise full
        for storage in sorted(needed - self.places.keys(), key=lambda s: -self.storages[s].units):
            while (address := self.free_list.take(self.storages[storage].units)) is None:
                if not spill:
                    raise full
                others = self.places.keys() - needed
                if not others:
                    # The free memory is fragmented: move all storages out, and back in at adjacent addresses.
                    return self._start_over(job, needed, full)
                self.evict(max(others, key=lambda s: (self.next_use(s, job), s)), job)
            self.enter(storage, address, job)

    def _start_over(self, job: int, needed: frozenset[int], full: BufferFullError) -> None:
        for storage in sorted(self.places):
            if storage in self.unfinished:  # It cannot go out: a part of it was never written.
                raise full
            if self.places[storage][1] == job:  # It came for this job: drop its read.
                self.moves = [move for move in self.moves if (move.storage, move.inwards) != (storage, True)]
                self.free_list.give(self.places.pop(storage)[0], self.storages[storage].units)
            else:
                self.evict(storage, job)
        for storage in sorted(needed):
            address = self.free_list.take(self.storages[storage].units)
            assert address is not None
            self.enter(storage, address, job)


def allocate(
    jobs: Sequence[Job],
    storages: Sequence[Storage],
    on_host: Mapping[int, int],
    units: int,
    *,
    spill: bool,
    host_bytes: int = 0,
) -> BufferAllocation:
    """Allocate each storage in the Unified Buffer for each job that uses it.

    Args:
        jobs: the jobs, in order.
        storages: the storages, by index.
        on_host: first byte in the host's buffer of each storage whose contents come from there.
        units: size of the Unified Buffer in units.
        spill: whether storages may go to the host's buffer and come back.
        host_bytes: bytes of the host's buffer that are already in use.

    Raises:
        BufferFullError: a job does not fit.
    """
    # 1. Online, in the order of the jobs; it can spill.
    try:
        return _Allocator(jobs, storages, on_host, units, host_bytes).allocate(spill)
    except BufferFullError as error:
        if spill or error.needed_units + error.held_units > units:
            raise
        # 2. The sum of sizes fits, but the free memory is fragmented: try once with all live ranges known.
        offline = _allocate_offline(jobs, storages, on_host, units, host_bytes)
        if offline is None:
            raise
        return offline


def _allocate_offline(
    jobs: Sequence[Job], storages: Sequence[Storage], on_host: Mapping[int, int], units: int, host_bytes: int
) -> BufferAllocation | None:
    """Return an allocation in which each storage keeps one address for its live range; None if `pack` fails."""
    uses = _uses(jobs)
    numbers = sorted(uses)
    starts = pack(
        [LiveRange(storages[storage].units, uses[storage][0], uses[storage][-1]) for storage in numbers], units
    )
    if starts is None:
        return None
    places = dict(zip(numbers, starts, strict=True))
    moves: list[list[HostTransfer]] = [[] for _ in jobs]
    for storage in numbers:
        if storage in on_host:
            moves[uses[storage][0]].append(HostTransfer(storage, places[storage], on_host[storage], True))
    addresses = [{storage: places[storage] for storage in job.reads | job.writes} for job in jobs]
    buffers = [AllocatedBuffer(storage, places[storage], uses[storage][0], uses[storage][-1]) for storage in numbers]
    return BufferAllocation(tuple(map(tuple, moves)), tuple(addresses), tuple(buffers), host_bytes)


def _uses(jobs: Sequence[Job]) -> dict[int, list[int]]:
    """Return the jobs that use each storage, in order."""
    uses: dict[int, list[int]] = {}
    for index, job in enumerate(jobs):
        for storage in job.reads | job.writes:
            uses.setdefault(storage, []).append(index)
    return uses
