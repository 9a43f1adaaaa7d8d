"""Who lies where in the Unified Buffer, and when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytpu.chip.compiler.allocation import (
    AllocatedBuffer,
    BufferAllocation,
    BufferFullError,
    FreeList,
    HostTransfer,
    allocate,
)
from anytpu.chip.compiler.jobs import HostServiceJob, Job
from anytpu.chip.compiler.packing import LiveRange, pack
from anytpu.chip.compiler.planes import Storage
from anytpu.chip.image.image import Tag


def job(reads: set[int], writes: set[int]) -> Job:
    return Job(Tag("job"), frozenset(reads), frozenset(writes))


def storages(*units: int) -> list[Storage]:
    return [Storage(number, f"t{number}", size, "layer") for number, size in enumerate(units)]


@given(st.lists(st.integers(1, 9), max_size=40), st.randoms())
def test_holes_never_overlap_and_join_again(sizes: list[int], random):
    free_list, held = FreeList(50), {}
    is_taken = np.zeros(50, bool)
    for size in sizes:
        if held and random.random() < 0.4:
            start = random.choice(list(held))
            is_taken[start : start + held[start]] = False
            free_list.give(start, held.pop(start))
        start = free_list.take(size)
        if start is None:
            free = "".join("x" if one else "." for one in is_taken)
            assert "." * size not in free
        else:
            assert not is_taken[start : start + size].any() and start + size <= 50
            is_taken[start : start + size] = True
            held[start] = size
    for start, size in held.items():
        free_list.give(start, size)
    assert free_list.take(50) == 0


def test_the_smallest_hole_that_is_large_enough_is_taken():
    free_list = FreeList(20)
    assert [free_list.take(size) for size in (6, 2, 3, 2, 7)] == [0, 6, 8, 11, 13]
    free_list.give(0, 6)
    free_list.give(8, 3)
    assert free_list.take(3) == 8 and free_list.take(5) == 0


def test_a_place_is_given_back_after_the_last_use():
    allocation = allocate([job(set(), {0}), job({0}, {1}), job({1}, {2})], storages(4, 4, 4), {}, 8, spill=False)
    assert allocation.buffers == (AllocatedBuffer(0, 0, 0, 1), AllocatedBuffer(1, 4, 1, 2), AllocatedBuffer(2, 0, 2, 2))
    assert allocation.addresses == ({0: 0}, {0: 0, 1: 4}, {1: 4, 2: 0})
    assert allocation.moves == ((), (), ())


def test_what_comes_from_the_host_is_read_for_its_first_use():
    jobs = [job(set(), {0}), job({0, 1}, {2})]
    assert allocate(jobs, storages(4, 4, 4), {1: 320}, 12, spill=False).moves == ((), (HostTransfer(1, 4, 320, True),))


def test_what_the_host_makes_is_there_after_its_step():
    jobs = [
        job(set(), {0}),
        HostServiceJob(Tag("host"), frozenset(), frozenset(), 0, frozenset({1})),
        job({0, 1}, set()),
    ]
    allocation = allocate(jobs, storages(4, 4), {1: 320}, 12, spill=False, host_bytes=448)
    assert allocation.moves == ((), (), (HostTransfer(1, 4, 320, True),)) and allocation.host_bytes == 448


def test_what_is_wanted_latest_makes_room():
    jobs = [job(set(), {0}), job(set(), {1}), job(set(), {2}), job({2, 1}, set()), job({0}, set())]
    allocation = allocate(jobs, storages(4, 4, 4), {}, 8, spill=True, host_bytes=96)
    assert allocation.moves[2] == (HostTransfer(0, 0, 96, False),)
    assert allocation.moves[4] == (HostTransfer(0, 0, 96, True),)
    assert allocation.host_bytes == 96 + 4 * 32
    assert (allocation.buffers[0], allocation.buffers[-1]) == (AllocatedBuffer(0, 0, 0, 1), AllocatedBuffer(0, 0, 4, 4))


def test_what_was_not_written_since_is_not_written_to_the_host_again():
    jobs = [job({0}, {1}), job({1}, {2}), job({0, 2}, set())]
    allocation = allocate(jobs, storages(4, 4, 4), {0: 64}, 8, spill=True)
    assert [[move.inwards for move in moves] for moves in allocation.moves] == [[True], [], [True]]


def test_room_in_pieces_is_put_together():
    jobs = [job(set(), {0}), job(set(), {1}), job(set(), {2}), job({1}, set()), job({0, 2}, {3})]
    allocation = allocate(jobs, storages(3, 4, 3, 4), {}, 10, spill=False)
    check(allocation, jobs, storages(3, 4, 3, 4), 10)
    with pytest.raises(BufferFullError) as error:
        allocate(jobs, storages(3, 4, 3, 5), {}, 10, spill=False)
    assert (error.value.job, error.value.needed_units, error.value.held_units) == (4, 11, 0)


def check(allocation: BufferAllocation, jobs: list[Job], known: list[Storage], units: int) -> None:
    """Follow the moves, and see that what a job touches is there, is what was written, and nothing lies on it."""
    content: dict[int, int] = {}  # unit -> who wrote it
    version = [0] * len(known)
    on_host: dict[int, int] = {}
    for number, (one, moves, addresses) in enumerate(zip(jobs, allocation.moves, allocation.addresses, strict=True)):
        for move in moves:
            span = range(move.address, move.address + known[move.storage].units)
            if move.inwards:
                assert on_host[move.storage] == version[move.storage]
                content.update(dict.fromkeys(span, move.storage))
            else:
                assert all(content[unit] == move.storage for unit in span)
                on_host[move.storage] = version[move.storage]
        for storage in sorted(one.reads) + sorted(one.writes - one.reads):
            span = range(addresses[storage], addresses[storage] + known[storage].units)
            assert span.stop <= units
            if storage in one.reads:
                assert all(content.get(unit) == storage for unit in span), (number, storage)
            content.update(dict.fromkeys(span, storage))
        for storage in one.reads | one.writes:
            span = range(addresses[storage], addresses[storage] + known[storage].units)
            assert all(content[unit] == storage for unit in span)
        for storage in one.writes:
            version[storage] += 1


@given(st.lists(st.integers(1, 8), min_size=2, max_size=12), st.integers(16, 40), st.booleans(), st.data())
def test_nothing_lies_on_what_is_still_wanted(sizes: list[int], units: int, spill: bool, data: st.DataObject):
    known, jobs = storages(*sizes), []
    for number in range(len(sizes)):
        reads = data.draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        jobs.append(job(reads, {number}))
    try:
        allocation = allocate(jobs, known, {}, units, spill=spill)
    except BufferFullError as error:
        wanted = jobs[error.job].reads | jobs[error.job].writes
        assert error.needed_units == sum(sizes[one] for one in wanted)
        assert not spill or error.needed_units > units
        return
    check(allocation, jobs, known, units)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 5)), max_size=15))
def test_packed_stretches_do_not_overlap(drawn):
    lifetimes = [LiveRange(units, first, first + length) for units, first, length in drawn]
    starts = pack(lifetimes, 60)
    if starts is None:
        assert max(sum(one.units for one in lifetimes if one.first <= t <= one.last) for t in range(15)) > 20
        return
    for n, (one, start) in enumerate(zip(lifetimes, starts, strict=True)):
        assert start >= 0 and start + one.units <= 60
        for other, at in zip(lifetimes[:n], starts, strict=False):
            if one.first <= other.last and other.first <= one.last:
                assert start + one.units <= at or at + other.units <= start


def test_packing_finds_room_where_giving_out_in_turn_leaves_it_in_pieces():
    jobs = [job(set(), {0}), job(set(), {1}), job({0}, set()), job(set(), {2}), job({1, 2}, set())]
    allocation = allocate(jobs, storages(3, 2, 8), {}, 10, spill=False)
    check(allocation, jobs, storages(3, 2, 8), 10)
    assert allocation.addresses[4] == {1: 8, 2: 0}
