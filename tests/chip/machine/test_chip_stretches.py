"""Stretches: what they say is what sets of addresses would say."""

from __future__ import annotations

import doctest
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.machine import stretches
from anytpu.chip.machine.stretches import Stretch, Stretches

some = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1])))


def addresses(found: list[Stretch]) -> set[int]:
    return {address for start, stop in found for address in range(start, stop)}


def test_the_examples_of_the_documentation():
    assert doctest.testmod(stretches).failed == 0


@settings(max_examples=300, deadline=None)
@given(some, some)
def test_stretches_are_sets_of_addresses(first: list[Stretch], second: list[Stretch]):
    joined = Stretches(first)
    assert joined.meet(second) == bool(addresses(first) & addresses(second))
    joined.add(second)
    found = list(joined)
    assert addresses(found) == addresses(first) | addresses(second)
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(found))
