"""Windows: the copies reach every row that a plain walk over rows and taps finds; nothing walks what lies outside."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.isa.instructions import Activate
from anytpu.chip.machine import run
from anytpu.chip.machine.steps import WindowRegisters
from anytpu.chip.machine.windows import Border, Patch, cover, inside
from machine_samples import blocks, configured, content_of, image_of

SIZES = [
    field.name
    for field in dataclasses.fields(WindowRegisters)
    if field.name not in ("first_row", "pad_top", "pad_left")
]


@st.composite
def windows(draw) -> WindowRegisters:
    sizes = {name: draw(st.integers(1, 5)) for name in SIZES}
    pads = {name: draw(st.integers(-2, 5)) for name in ("pad_top", "pad_left")}
    return WindowRegisters(**sizes, **pads, first_row=draw(st.integers(0, 12)))


def rows_of(piece: Patch | Border) -> list[tuple[int, int]]:
    """Return the rows of the result of a piece, each with its row of the source; -1 where that is outside."""
    found = []
    for at in np.ndindex(*piece.shape):
        row = piece.row + sum(np.multiply(at, piece.steps))
        source = piece.source_row + sum(np.multiply(at, piece.source_steps)) if isinstance(piece, Patch) else -1
        found.append((int(row), int(source)))
    return found


def walked(window: WindowRegisters, rows: int, taps: range) -> dict[tuple[int, int], int]:
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


@settings(max_examples=300, deadline=None)
@given(windows(), st.integers(1, 15), st.data())
def test_what_covers_a_window(window: WindowRegisters, rows: int, data):
    count = window.kernel_height * window.kernel_width
    first = data.draw(st.integers(0, count - 1))
    taps = data.draw(st.integers(1, count - first))
    patches, borders = cover(window, rows, first, taps)
    found = [((row, first + one.tap), source) for one in (*patches, *borders) for row, source in rows_of(one)]
    assert len(found) == len(dict(found))
    assert dict(found) == walked(window, rows, range(first, first + taps))


@settings(max_examples=300, deadline=None)
@given(windows(), st.integers(1, 15))
def test_what_lies_inside_of_a_window(window: WindowRegisters, rows: int):
    found = [((row, one.tap), source) for one in inside(window, rows) for row, source in rows_of(one)]
    assert len(found) == len(dict(found))
    taps = range(window.kernel_height * window.kernel_width)
    assert dict(found) == {place: row for place, row in walked(window, rows, taps).items() if row >= 0}


@pytest.mark.parametrize("stride", [1, 65535])
def test_a_window_of_four_thousand_million_taps(stride: int):
    window = WindowRegisters(1, 3, 2, 2, 0, 65535, 65535, stride, stride, 1, 1, 32767, 32767)
    patches = inside(window, 4)
    assert sorted(source for one in patches for _, source in rows_of(one)) == sorted(
        list(range(6)) * (4 if stride == 1 else 1)
    )


def test_a_pool_far_larger_than_its_source():
    registers = {"batch": 1, "in_height": 3, "in_width": 4, "out_width": 2, "kernel_height": 9000, "kernel_width": 9000}
    registers |= dict.fromkeys(("stride_height", "stride_width", "dilation_height", "dilation_width"), 1)
    registers |= {"pitch": 1, "out_pitch": 1, "pad_top": 5000, "pad_left": 5000, "low": -128, "high": 127}
    image = image_of([*configured(**registers), Activate("max", 0, 100, 4)], blocks())
    content = content_of(np.random.default_rng(0))
    made = run(image, {"whole": content})["whole"][0, 100:104, 0]
    np.testing.assert_array_equal(made, np.broadcast_to(content[0, :12, 0].max(0), (4, 32)))
