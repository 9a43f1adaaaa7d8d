"""Windows: each tap reads the rows that a plain walk over rows and taps finds; nothing walks what lies outside."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.isa.geometry import Window, sources
from anytpu.chip.isa.instructions import Activate
from anytpu.chip.machine import run
from machine_samples import blocks, configured, content_of, image_of

SIZES = [field.name for field in dataclasses.fields(Window) if field.name not in ("first_row", "pad_top", "pad_left")]


@st.composite
def windows(draw) -> Window:
    sizes = {name: draw(st.integers(1, 5)) for name in SIZES}
    pads = {name: draw(st.integers(-2, 5)) for name in ("pad_top", "pad_left")}
    return Window(**sizes, **pads, first_row=draw(st.integers(0, 12)))


def walked(window: Window, rows: int, taps: range) -> dict[tuple[int, int], int]:
    """Return the row of the source for each row and tap, as the text says; -1 where that is outside."""
    found = {}
    for row in range(rows):
        place, n = divmod(window.first_row + row, window.batch)
        line, column = divmod(place, window.out_width)
        for tap in taps:
            kh, kw = divmod(tap, window.kernel_width)
            h = line * window.stride_height - window.pad_top + kh * window.dilation_height
            w = column * window.stride_width - window.pad_left + kw * window.dilation_width
            is_inside = 0 <= h < window.in_height and 0 <= w < window.in_width
            found[row, tap] = (h * window.in_width + w) * window.batch + n if is_inside else -1
    return found


def found_by(window: Window, rows: int, tap: int) -> dict[tuple[int, int], int]:
    """Return the row of the source for each row of a tap, as `sources` says; -1 where that is outside."""
    group = window.group(rows)
    indices, inside = sources(window, rows, tap)
    found = np.full((rows // group, group), -1)
    found[inside] = indices[:, None] * group + np.arange(group)
    return {(row, tap): int(source) for row, source in enumerate(found.reshape(-1))}


@settings(max_examples=300, deadline=None)
@given(windows(), st.integers(1, 15))
def test_the_rows_that_a_window_reads(window: Window, rows: int):
    taps = range(window.taps)
    expected = walked(window, rows, taps)
    assert {place: row for tap in taps for place, row in found_by(window, rows, tap).items()} == expected
    inside = set(window.taps_inside(rows))
    assert {tap for (_, tap), source in expected.items() if source >= 0} <= inside
    lines, columns = ({divmod(tap, window.kernel_width)[axis] for tap in inside} for axis in (0, 1))
    assert len(inside) == len(lines) * len(columns)


@settings(max_examples=100, deadline=None)
@given(windows(), st.integers(1, 15), st.data())
def test_the_range_of_some_taps_has_their_rows(window: Window, rows: int, data):
    first_tap = data.draw(st.integers(0, window.taps - 1))
    stop_tap = data.draw(st.integers(first_tap + 1, window.taps))
    first, stop = window.row_range(rows, first_tap, stop_tap)
    for source in walked(window, rows, range(first_tap, stop_tap)).values():
        assert source < 0 or first <= source < stop


@pytest.mark.parametrize(("stride", "taps"), [(1, 12), (65535, 6)])
def test_a_window_of_four_thousand_million_taps(stride: int, taps: int):
    window = Window(1, 3, 2, 2, 0, 65535, 65535, stride, stride, 1, 1, 32767, 32767)
    inside = list(window.taps_inside(4))
    assert len(inside) == taps
    found = [source for tap in inside for source in found_by(window, 4, tap).values() if source >= 0]
    assert sorted(found) == sorted(list(range(6)) * (4 if stride == 1 else 1))


def test_a_pool_far_larger_than_its_source():
    registers = {"batch": 1, "in_height": 3, "in_width": 4, "out_width": 2, "kernel_height": 9000, "kernel_width": 9000}
    registers |= dict.fromkeys(("stride_height", "stride_width", "dilation_height", "dilation_width"), 1)
    registers |= {"pitch": 1, "out_pitch": 1, "pad_top": 5000, "pad_left": 5000, "low": -128, "high": 127}
    image = image_of([*configured(**registers), Activate("max", 0, 100, 4)], blocks())
    content = content_of(np.random.default_rng(0))
    made = run(image, {"whole": content})["whole"][0, 100:104, 0]
    np.testing.assert_array_equal(made, np.broadcast_to(content[0, :12, 0].max(0), (4, 32)))
