"""Planes and views of them."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anytpu.chip.compiler.planes import (
    LaneRun,
    Layout,
    channels_of,
    common_runs,
    is_compact,
    place_planes,
    split,
    stacks,
    structure_for,
    structure_of,
)
from anytpu.chip.compiler.tiles import numbers_of


def lanes_of(layout: Layout) -> list[tuple[int, int]]:
    """Return for each channel the byte of its row 0."""
    found = []
    for plane in layout:
        for run in plane.runs:
            found.extend((plane.offset * 32 + run.lane + n, plane.pitch) for n in range(run.count))
    return found


@given(st.integers(1, 700), st.sets(st.integers(1, 699), max_size=4), st.sampled_from([8, 33, 40, 256]), st.booleans())
def test_every_channel_has_a_lane_and_every_part_starts_a_unit(
    channels: int, cuts: set[int], array: int, compact: bool
):
    cuts = {cut for cut in cuts if cut < channels}
    structure = structure_for(channels, cuts, array, compact=compact)
    assert sum(run.count for runs in structure for run in runs) == channels
    starts, first = set(), 0
    for runs in structure:
        end = 0
        for run in runs:
            assert run.lane % 32 == 0 and run.lane >= end
            end = run.lane + run.count
            starts.add(first)
            first += run.count
        assert end <= array
        assert not compact or end == sum(run.count for run in runs)
    assert cuts <= starts


@given(st.integers(1, 300), st.data())
def test_a_part_of_the_channels_lies_where_it_lies_in_the_whole(channels: int, data: st.DataObject):
    cuts = data.draw(st.sets(st.integers(1, 300), max_size=3))
    layout, _ = place_planes(0, structure_for(channels, {cut for cut in cuts if cut < channels}, 256), 6, 8)
    start = data.draw(st.integers(0, channels - 1))
    stop = data.draw(st.integers(start + 1, channels))
    part = channels_of(layout, start, stop)
    if part is not None:
        assert lanes_of(part) == lanes_of(layout)[start:stop]
    else:
        assert any(byte % 32 for byte, _ in lanes_of(layout)[start : start + 1]) or len(layout) > 1


def test_a_part_that_starts_within_a_unit_is_no_view():
    layout, _ = place_planes(0, structure_for(100, (), 256), 4, 8)
    assert channels_of(layout, 31, 50) is None
    view = channels_of(layout, 32, 50)
    assert view is not None and len(view) == 1
    part = view[0]
    assert (part.offset, part.shift, part.pitch, part.runs) == (1, 1, 4, (LaneRun(0, 18),))


def test_numbers_of_16_bits_are_two_planes():
    (first, second), units = place_planes(7, structure_for(300, (), 256), 10, 16)
    assert (first.offset, first.high, first.pitch) == (0, 80, 8)
    assert (second.offset, second.high, second.pitch) == (160, 20, 2)
    assert units == 200 and first.storage == 7


def test_rows_of_a_plane():
    (plane,), _ = place_planes(0, structure_for(40, (), 256), 10, 8)
    assert plane.row(3).offset == 6 and plane.units == 2 and plane.channels == 40


def test_planes_that_follow_one_another_are_one_of_more_rows():
    (plane,), _ = place_planes(0, structure_for(40, (), 256), 12, 8)
    flat = tuple(plane.row(3 * number) for number in range(4))
    assert [len(stack) for stack in stacks(flat, 3)] == [4]
    assert [len(stack) for stack in stacks((flat[0], flat[2], flat[3]), 3)] == [1, 2]
    assert [len(stack) for stack in stacks((flat[0], dataclasses.replace(flat[1], storage=1)), 3)] == [1, 1]


def test_two_tensors_cut_at_different_places_are_viewed_in_smaller_parts():
    one, _ = place_planes(0, structure_for(96, (64,), 256), 4, 8)
    other, _ = place_planes(1, structure_for(96, (32,), 256), 4, 8)
    parts = common_runs([one, other])
    assert parts == ((LaneRun(0, 32),), (LaneRun(0, 32),), (LaneRun(0, 32),))
    for layout in (one, other):
        view = split(layout, parts)
        assert view is not None and structure_of(view) == parts and lanes_of(view) == lanes_of(layout)
    assert split(one, ((LaneRun(0, 20),), (LaneRun(0, 76),))) is None


def test_compact_is_what_the_host_wants():
    compact, _ = place_planes(0, structure_for(100, (50,), 256, compact=True), 4, 8)
    padded, _ = place_planes(0, structure_for(100, (50,), 256), 4, 8)
    assert is_compact(compact) and not is_compact(padded)
    assert not is_compact(channels_of(compact, 0, 10) or ()) and structure_of(compact) == (
        (LaneRun(0, 50),),
        (LaneRun(0, 50),),
    )


def test_numbers_of_lanes():
    np.testing.assert_array_equal(numbers_of((LaneRun(0, 2), LaneRun(4, 1)), 7, 6), [7, 8, -1, -1, 9, -1])
