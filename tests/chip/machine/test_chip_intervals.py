"""`IntervalSet` agrees with a set of addresses."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.machine.intervals import Interval, IntervalSet

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1])))


def addresses(found: list[Interval]) -> set[int]:
    return {address for start, stop in found for address in range(start, stop)}


@settings(max_examples=300, deadline=None)
@given(INTERVALS, INTERVALS)
def test_interval_sets_are_sets_of_addresses(first: list[Interval], second: list[Interval]):
    joined = IntervalSet(first)
    assert joined.meet(second) == bool(addresses(first) & addresses(second))
    joined.add(second)
    found = list(joined)
    assert addresses(found) == addresses(first) | addresses(second)
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(found))
