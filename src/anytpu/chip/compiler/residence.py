"""`share_out`: where each storage lies in the Unified Buffer, from which job to which; what goes out and comes back.

Idea: jobs are done one after another, so which storages are still wanted is known for each. A storage takes the
smallest hole that is large enough, and its place becomes a hole again after its last use. When there is no such hole,
the storage that is wanted latest makes room (Belady): it goes to the host's buffer and is read again in time.

Rule: what lies in the host's buffer already and was not written since is not written again.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

from anytpu.chip.compiler.jobs import HostServiceJob, Job
from anytpu.chip.compiler.packing import Lifetime, pack
from anytpu.chip.compiler.planes import Storage
from anytpu.chip.design import UNIT_BYTES


@dataclasses.dataclass(frozen=True)
class Move:
    """A storage that goes to the host's buffer, or comes from there (`inwards`)."""

    storage: int
    address: int
    host_address: int
    inwards: bool


@dataclasses.dataclass(frozen=True)
class Stay:
    """A storage at one address of the Unified Buffer.

    Attributes:
        storage: which.
        address: the unit where it starts.
        first, last: the jobs from which and to which it lies there.
    """

    storage: int
    address: int
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class Residence:
    """Where all storages lie.

    Attributes:
        moves: before each job, in order.
        addresses: of the storages that each job touches.
        stays: all of them.
        host_bytes: of the host's buffer, with what was moved there.
    """

    moves: tuple[tuple[Move, ...], ...]
    addresses: tuple[Mapping[int, int], ...]
    stays: tuple[Stay, ...]
    host_bytes: int


class FullError(Exception):
    """No room for what a job needs.

    Attributes:
        job: its number.
        needed_units: what it touches, all together.
        held_units: what else is there that is wanted later.
    """

    def __init__(self, job: int, needed_units: int, held_units: int):
        super().__init__(job, needed_units, held_units)
        self.job, self.needed_units, self.held_units = job, needed_units, held_units


class Holes:
    """The free stretches of a memory, best fit, joined again when they touch.

    Example:
        >>> holes = Holes(10)
        >>> holes.take(4), holes.take(6), holes.take(1)
        (0, 4, None)
        >>> holes.give(0, 4)
        >>> holes.take(3)
        0
    """

    def __init__(self, units: int):
        self._starts, self._lengths = [0], [units]

    def take(self, units: int) -> int | None:
        """Return where `units` units are free from now on taken, or None."""
        fitting = [(length, number) for number, length in enumerate(self._lengths) if length >= units]
        if not fitting:
            return None
        length, number = min(fitting)
        start = self._starts[number]
        if length == units:
            del self._starts[number], self._lengths[number]
        else:
            self._starts[number] += units
            self._lengths[number] -= units
        return start

    def give(self, start: int, units: int) -> None:
        """Take back what was taken."""
        number = bisect.bisect(self._starts, start)
        self._starts.insert(number, start)
        self._lengths.insert(number, units)
        self._join(number)
        if number:
            self._join(number - 1)

    def _join(self, left: int) -> None:
        """Make one hole of a hole and the next, when they touch."""
        right = left + 1
        if right < len(self._starts) and self._starts[left] + self._lengths[left] == self._starts[right]:
            self._lengths[left] += self._lengths[right]
            del self._starts[right], self._lengths[right]


class _Sharing:
    """Places given out job by job."""

    def __init__(
        self, jobs: Sequence[Job], storages: Sequence[Storage], on_host: Mapping[int, int], units: int, host_bytes: int
    ):
        self.jobs, self.storages, self.from_host = jobs, storages, on_host
        self.uses = _uses(jobs)
        results = {storage for job in jobs if isinstance(job, HostServiceJob) for storage in job.results}
        self.on_host = {storage: at for storage, at in on_host.items() if storage not in results}
        self.host_bytes = host_bytes
        self.capacity, self.holes = units, Holes(units)
        self.places: dict[int, tuple[int, int]] = {}
        self.dirty: set[int] = set()
        self.unfinished: set[int] = set()
        self.moves: list[Move] = []
        self.stays: list[Stay] = []

    def share(self, spill: bool) -> Residence:
        """Give out all places."""
        last_writes = {storage: number for number, job in enumerate(self.jobs) for storage in job.writes}
        moves, addresses = [], []
        for number, job in enumerate(self.jobs):
            if isinstance(job, HostServiceJob):
                self.on_host.update({storage: self.from_host[storage] for storage in job.results})
            self.moves = []
            needed = job.reads | job.writes
            self.bring(number, needed, spill)
            moves.append(tuple(self.moves))
            addresses.append({storage: self.places[storage][0] for storage in needed})
            self.dirty |= job.writes
            self.unfinished |= job.writes
            self.unfinished -= {storage for storage in job.writes if last_writes[storage] == number}
            for storage in needed:
                if self.uses[storage][-1] == number:
                    self.leave(storage, number)
        return Residence(tuple(moves), tuple(addresses), tuple(self.stays), self.host_bytes)

    def next_use(self, storage: int, job: int) -> int:
        uses = self.uses[storage]
        number = bisect.bisect_left(uses, job)
        return uses[number] if number < len(uses) else len(self.uses) + uses[-1]

    def leave(self, storage: int, last: int) -> None:
        address, first = self.places.pop(storage)
        self.holes.give(address, self.storages[storage].units)
        self.stays.append(Stay(storage, address, first, last))

    def evict(self, storage: int, job: int) -> None:
        address = self.places[storage][0]
        if storage in self.dirty:
            if storage not in self.on_host:
                self.on_host[storage] = self.host_bytes
                self.host_bytes += self.storages[storage].units * UNIT_BYTES
            self.moves.append(Move(storage, address, self.on_host[storage], False))
            self.dirty.discard(storage)
        self.leave(storage, job - 1)

    def enter(self, storage: int, address: int, job: int) -> None:
        self.places[storage] = (address, job)
        if storage in self.on_host:
            self.moves.append(Move(storage, address, self.on_host[storage], True))

    def bring(self, job: int, needed: frozenset[int], spill: bool) -> None:
        """Make all that a job touches resident."""
        units = sum(self.storages[storage].units for storage in needed)
        full = FullError(job, units, sum(self.storages[s].units for s in self.places.keys() - needed))
        if units > self.capacity:
            raise full
        for storage in sorted(needed - self.places.keys(), key=lambda s: -self.storages[s].units):
            while (address := self.holes.take(self.storages[storage].units)) is None:
                if not spill:
                    raise full
                others = self.places.keys() - needed
                if not others:
                    # There is room, but in pieces: all go out, and come back side by side.
                    return self._start_over(job, needed, full)
                self.evict(max(others, key=lambda s: (self.next_use(s, job), s)), job)
            self.enter(storage, address, job)

    def _start_over(self, job: int, needed: frozenset[int], full: FullError) -> None:
        for storage in sorted(self.places):
            if storage in self.unfinished:  # It cannot go out: a part of it was never written.
                raise full
            if self.places[storage][1] == job:  # It came for this job: what was read for it is not wanted.
                self.moves = [move for move in self.moves if (move.storage, move.inwards) != (storage, True)]
                self.holes.give(self.places.pop(storage)[0], self.storages[storage].units)
            else:
                self.evict(storage, job)
        for storage in sorted(needed):
            address = self.holes.take(self.storages[storage].units)
            assert address is not None
            self.enter(storage, address, job)


def share_out(
    jobs: Sequence[Job],
    storages: Sequence[Storage],
    on_host: Mapping[int, int],
    units: int,
    *,
    spill: bool,
    host_bytes: int = 0,
) -> Residence:
    """Give each storage a place in the Unified Buffer for each job that touches it.

    Args:
        jobs: in order.
        storages: by number.
        on_host: the storages whose contents come from the host's buffer, and from which byte on.
        units: of the Unified Buffer.
        spill: whether storages may go to the host's buffer and come back.
        host_bytes: of the host's buffer that are taken.

    Raises:
        FullError: a job does not fit.
    """
    try:
        return _Sharing(jobs, storages, on_host, units, host_bytes).share(spill)
    except FullError as error:
        if spill or error.needed_units + error.held_units > units:
            raise
        settled = _settled(jobs, storages, on_host, units, host_bytes)
        if settled is None:
            raise
        return settled


def _settled(
    jobs: Sequence[Job], storages: Sequence[Storage], on_host: Mapping[int, int], units: int, host_bytes: int
) -> Residence | None:
    """Return places held from the first use to the last, found for all storages together; None: none were found."""
    uses = _uses(jobs)
    numbers = sorted(uses)
    found = pack([Lifetime(storages[one].units, uses[one][0], uses[one][-1]) for one in numbers], units)
    if found is None:
        return None
    places = dict(zip(numbers, found, strict=True))
    moves: list[list[Move]] = [[] for _ in jobs]
    for one in numbers:
        if one in on_host:
            moves[uses[one][0]].append(Move(one, places[one], on_host[one], True))
    addresses = [{one: places[one] for one in job.reads | job.writes} for job in jobs]
    stays = [Stay(one, places[one], uses[one][0], uses[one][-1]) for one in numbers]
    return Residence(tuple(map(tuple, moves)), tuple(addresses), tuple(stays), host_bytes)


def _uses(jobs: Sequence[Job]) -> dict[int, list[int]]:
    """Return the jobs that touch each storage."""
    uses: dict[int, list[int]] = {}
    for number, job in enumerate(jobs):
        for storage in job.reads | job.writes:
            uses.setdefault(storage, []).append(number)
    return uses
