"""The search for the largest batch, on memories that are functions of the batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytpu.errors import NoAnswerError, PlanError
from anytpu.planning.memory.batches import FINE_ENOUGH, MAX_TRIES, search_largest_batch, settle_batch
from anytpu.planning.records import MemoryUse

LIMIT = 10_000_000


def growing(fixed: int, each: float, bend: float = 0.0):
    """Return the memory of a program that needs `fixed` bytes and `each` more for an example, with a bend."""

    def memory_at(batch: int) -> MemoryUse:
        peak = int(fixed + each * batch + bend * batch**0.5)
        return MemoryUse(peak, LIMIT, said="" if peak <= LIMIT else "out of memory")

    return memory_at


@given(
    st.integers(1, 64),
    st.integers(0, LIMIT - 1),
    st.floats(0.5, 4000),
    st.floats(0, 3000),
    st.integers(1, 100_000),
)
def test_what_is_found_fits_and_the_next_does_not(devices, fixed, each, bend, start):
    memory_at = growing(fixed, each, bend)
    found = search_largest_batch(devices, memory_at, start)
    assert len(found.tried) <= MAX_TRIES + 3
    sizes = dict(found.tried)
    if found.batch_size:
        assert sizes[found.batch_size].fits
    units = found.batch_size // (8 * devices)
    if units and len(found.tried) < MAX_TRIES:
        assert not memory_at(8 * devices * (units + max(1, units // FINE_ENOUGH))).fits


@given(st.integers(1, 64), st.integers(1, 100_000), st.integers(0, 100_000))
def test_a_settled_batch_fits_and_a_32nd_more_does_not(devices, largest, found):
    unit = 8 * devices
    found = found // unit * unit or 4 * devices
    tried: dict[int, bool] = {}

    def fits(batch: int) -> bool:
        assert batch not in tried and batch % devices == 0
        tried[batch] = batch <= largest
        return tried[batch]

    settled = settle_batch(devices, found, fits)
    if settled:
        assert tried[settled]
        next_larger = settled + (max(settled // unit // FINE_ENOUGH, 1) * unit if settled >= unit else settled)
        # The next larger one was compiled, or one that is smaller still; or twelve larger ones fit.
        assert (len(tried) == 13 and all(tried.values())) or any(
            not tried[batch] for batch in tried if settled < batch <= next_larger
        )
    else:
        assert not any(tried.values()) and (len(tried) == 4 or min(tried) < 2 * devices)


def test_few_compilations_on_a_straight_line():
    found = search_largest_batch(8, growing(1_000_000, 731), start=512)
    assert 12288 * 31 / 32 < found.batch_size <= 12288
    assert len(found.tried) <= 6


def test_a_compiler_that_squeezes_more_in():
    def squeezed(batch: int) -> MemoryUse:
        memory = growing(0, 731)(batch)
        return MemoryUse(LIMIT, LIMIT) if LIMIT < memory.peak_bytes < 1.05 * LIMIT else memory

    found = search_largest_batch(8, squeezed, start=512)
    assert 1.05 * LIMIT * 31 / 32 < 731 * found.batch_size < 1.05 * LIMIT
    assert len(found.tried) <= 9


def test_three_compilations_where_a_batch_that_does_not_fit_is_known():
    memory_at = growing(1_000_000, 731)
    found = search_largest_batch(8, memory_at, start=512, too_large=(24_000, memory_at(24_000)))
    assert 12288 * 31 / 32 < found.batch_size <= 12288
    assert [batch for batch, _ in found.tried][:2] == [24_000, 11_968]
    assert len(found.tried) <= 4


def test_a_batch_that_is_far_too_large_is_found_by_the_line():
    memory_at = growing(1_000_000, 731)
    found = search_largest_batch(8, memory_at, start=512, too_large=(2**24, memory_at(2**24)))
    assert 12288 * 31 / 32 < found.batch_size <= 12288
    assert len(found.tried) <= 5


def test_a_compilation_that_fails_ends_the_search():
    def memory_at(batch: int) -> MemoryUse:
        if batch > 10_000:
            raise NoAnswerError("It took too long.")
        return growing(1_000_000, 731)(batch)

    found = search_largest_batch(8, memory_at, start=512)
    assert (found.batch_size, [batch for batch, _ in found.tried]) == (1024, [512, 1024])
    assert str(found.ended_by) == "It took too long."
    unknown = search_largest_batch(8, memory_at, start=20_000)
    assert (unknown.batch_size, unknown.tried, str(unknown.ended_by)) == (0, (), "It took too long.")


def test_less_than_eight_rows_a_device():
    assert search_largest_batch(4, growing(0, LIMIT / 10), start=1024).batch_size == 8


def test_nothing_fits():
    found = search_largest_batch(2, growing(2 * LIMIT, 1), start=16)
    assert found.batch_size == 0
    assert [batch for batch, _ in found.tried] == [16, 8, 4, 2]


def test_no_batch_is_tried_that_is_at_least_one_that_is_too_large():
    memory_at = growing(0, LIMIT / 20)
    found = search_largest_batch(16, memory_at, start=64, too_large=(32, memory_at(32)))
    assert (found.batch_size, [batch for batch, _ in found.tried]) == (16, [32, 16])
    none = search_largest_batch(16, memory_at, start=64, too_large=(16, MemoryUse(2 * LIMIT, LIMIT, said="full")))
    assert (none.batch_size, [batch for batch, _ in none.tried]) == (0, [16])


def test_nothing_grows():
    with pytest.raises(PlanError) as raised:
        search_largest_batch(1, growing(5, 0), start=1)
    assert str(raised.value) == (
        "a batch of 4,294,967,296 examples still fits: no memory of this program grows with it"
    )


def test_a_larger_batch_without_an_answer_keeps_the_one_that_fits():
    def fits(batch):
        if batch > 6200:
            raise NoAnswerError("time")
        return True

    assert settle_batch(8, 6144, fits) == 6144
    compiled = []
    assert settle_batch(8, 6144, lambda batch: not compiled.append(batch)) == compiled[-1]
    assert len(compiled) == 13
