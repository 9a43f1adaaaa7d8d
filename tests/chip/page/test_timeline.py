from __future__ import annotations

import base64
import dataclasses

import numpy as np
import pytest

import chip_page_samples
from anytpu.chip.page.lanes import LANES, lane_of
from anytpu.chip.page.levels import buffer_levels, fifo_levels, lifetimes, peak, peak_units, thinned
from anytpu.chip.page.timeline import kinds_of, packed, strips
from anytpu.chip.timing.record import Timing


@pytest.fixture(scope="module")
def long() -> Timing:
    return chip_page_samples.many(25_000).timing


def test_a_short_run_is_as_it_is():
    timing = chip_page_samples.timing()
    lanes = strips(timing)
    assert sum(len(lane.start) for lane in lanes) == len(timing.events)
    assert {int(count) for lane in lanes for count in lane.count} == {1}
    for number, lane in enumerate(lanes):
        own = [event for event in timing.events if lane_of(event) == number]
        assert lane.start.tolist() == sorted(event.start_cycles for event in own)


@pytest.mark.parametrize("most", [20_000, 3_000, 500])
def test_a_long_run_has_few_strips_that_stand_for_all_events(long: Timing, most: int):
    lanes = strips(long, most)
    assert sum(len(lane.start) for lane in lanes) <= most
    assert sum(int(lane.count.sum()) for lane in lanes) == len(long.events)
    for number, lane in enumerate(lanes):
        own = [event for event in long.events if lane_of(event) == number]
        assert (lane.start[1:] >= lane.stop[:-1]).all()
        assert lane.start[0] == min(event.start_cycles for event in own)
        assert lane.stop[-1] == max(event.stop_cycles for event in own)


def test_what_is_packed_can_be_read():
    timing = chip_page_samples.timing()
    lanes = strips(timing)
    found = packed(lanes, timing.cycles)
    assert found["step"] == 1.0
    assert [lane["name"] for lane in found["lanes"]] == [lane.name for lane in LANES]
    matrix = found["lanes"][3]
    start, length = (np.frombuffer(base64.b64decode(matrix[key]), "<u4") for key in ("start", "length"))
    assert start.tolist() == np.round(lanes[3].start).tolist()
    assert (start + length).tolist() == np.round(lanes[3].stop).tolist()
    kinds = np.frombuffer(base64.b64decode(matrix["kind"]), "<u1")
    assert {kinds_of(timing)[kind] for kind in kinds} == {"Convolve", "MatrixMultiply"}


def test_cycles_that_32_bits_cannot_count_are_counted_in_larger_steps():
    timing = chip_page_samples.timing()
    far = [
        dataclasses.replace(event, start_cycles=event.start_cycles * 1e6, stop_cycles=event.stop_cycles * 1e6)
        for event in timing.events
    ]
    lanes = strips(dataclasses.replace(timing, cycles=timing.cycles * 1e6, events=tuple(far)))
    found = packed(lanes, timing.cycles * 1e6)
    start = np.frombuffer(base64.b64decode(found["lanes"][3]["start"]), "<u4") * found["step"]
    assert start == pytest.approx(lanes[3].start, abs=found["step"])


def test_levels_rise_and_fall_to_nothing():
    page = chip_page_samples.digits()
    fifo, buffer = fifo_levels(page.timing), buffer_levels(page.timing, page.image)
    for levels in (fifo, buffer):
        assert [cycles for cycles, _ in levels] == sorted({cycles for cycles, _ in levels})
        assert min(level for _, level in levels) == levels[-1][1] == 0
    assert peak(buffer) == 32 * peak_units(page.image) == 32 * (28 * 28 + 14 * 14) * 8


def test_a_tensor_is_held_from_its_first_instruction_to_its_last():
    page = chip_page_samples.digits()
    found = {lifetime.tensor: span for span, lifetime in lifetimes(page.timing, page.image)}
    events = {event.instruction: event for event in page.timing.events if event.kind == "Activate"}
    assert found["x"][0] == 0
    assert found["c1"] == (events[5].start_cycles, events[8].stop_cycles)
    assert found["d"][1] == page.timing.cycles


def test_thinning_keeps_extremes_and_the_end():
    rng = np.random.default_rng(0)
    levels = [(float(cycles), float(level)) for cycles, level in enumerate(rng.integers(0, 1000, 50_000))]
    few = thinned(levels, 50_000.0, bins=100)
    assert 100 <= len(few) <= 301
    assert set(few) <= set(levels) and few == sorted(few)
    assert peak(few) == peak(levels) and min(level for _, level in few) == min(level for _, level in levels)
    assert few[-1] == levels[-1]
    assert thinned(levels[:100], 100.0) == levels[:100]
