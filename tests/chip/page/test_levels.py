from __future__ import annotations

import chip_page_samples
from anytpu.chip.page.levels import buffer_levels, fifo_levels, lifetimes, peak, peak_units


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
