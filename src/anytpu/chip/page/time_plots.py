"""Plots of a run over its cycles: the activity of the units, and the contents of the Unified Buffer."""

from __future__ import annotations

import itertools

from anytpu import units
from anytpu.chip.image.image import Image, Resident
from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.page.lanes import LANES, colour_of, lane_of, part_name
from anytpu.chip.page.levels import lifetimes, peak_units
from anytpu.chip.timing.record import Timing
from anytpu.report.drawing.axes import Scale, horizontal, linear, series_colour, vertical
from anytpu.report.drawing.shapes import Drawing, Label, Polyline, Rectangle, Shape, shortened, text_width
from anytpu.report.wording import one_line, plural

_WIDTH, _NARROW, _HEIGHT = 1000.0, 360.0, 400.0
_LEFT, _TOP, _BOTTOM, _MARGIN = 84.0, 36.0, 350.0, 16.0
_RUN_HEIGHT, _RUN_LEFT, _RUN_TOP, _LANE = 304.0, 120.0, 12.0, 34.0
_BINS = 432
"""Number of intervals of the run whose activity is shown."""
_MAX_TENSORS, _MIN_LETTERS = 2500, 8
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def memory_map(timing: Timing, image: Image, narrow: bool = False) -> Drawing | None:
    """Return the Unified Buffer over time, `narrow` for a telephone; None if its contents are not known."""
    if not image.residents or not timing.cycles:
        return None
    size_bytes = image.design.unified_buffer_bytes
    whole = units.format_bytes(size_bytes)
    held = units.format_bytes(peak_units(image) * UNIT_BYTES)
    top_bytes = max(resident.address + resident.units for resident in image.residents) * UNIT_BYTES
    width = _NARROW if narrow else _WIDTH
    right = width - _MARGIN
    x = thousands(timing.cycles, _LEFT, right)
    y = _addresses(min(max(top_bytes, 1), size_bytes))
    shapes: list[Shape] = [
        *horizontal(x, _BOTTOM, lambda tick: f"{tick:,g}", "thousand cycles, predicted", _TOP),
        *vertical(y, _LEFT, units.format_bytes, right),
        Label(12, 16, "address" if narrow else f"address in the Unified Buffer, of {whole}", colour="muted"),
        Label(right, 16, f"at most {held} held at a time", "end", "ink", is_bold=True),
        *_tensors(lifetimes(timing, image), x, y),
        Polyline(((_LEFT, _TOP), (_LEFT, _BOTTOM), (right, _BOTTOM)), "muted"),
    ]
    summary = f"{plural(len(image.residents), 'tensor')}, at most {held} of {whole}."
    return Drawing("unified_buffer", "Contents of the Unified Buffer", summary, width, _HEIGHT, tuple(shapes))


def thousands(cycles: float, start: float, end: float) -> Scale:
    """Return a scale in thousands of cycles that ends at the end of the run."""
    last = cycles / 1e3
    ticks = linear([last], start, end, 8).ticks
    return Scale(0.0, last, start, end, tuple(tick for tick in ticks if tick <= last))


def _tensors(live: list[tuple[tuple[float, float], Resident]], x: Scale, y: Scale) -> list[Shape]:
    """Return a rectangle for each tensor; of more than `_MAX_TENSORS`, the largest."""
    largest = sorted(live, key=lambda pair: -pair[1].units * (pair[0][1] - pair[0][0]))[:_MAX_TENSORS]
    kept = {id(resident) for _, resident in largest}
    colours: dict[str, str] = {}
    shapes: list[Shape] = []
    for (start, stop), resident in live:
        if id(resident) not in kept:
            continue
        colour = colours.setdefault(resident.tensor, series_colour(len(colours)))
        left, right = x(start / 1e3), max(x(stop / 1e3), x(start / 1e3) + 0.8)
        upper, lower = y((resident.address + resident.units) * UNIT_BYTES), y(resident.address * UNIT_BYTES)
        shapes.append(
            Rectangle(left, upper, right - left, max(lower - upper, 0.8), colour, 0.72, _hover(start, stop, resident))
        )
        shapes += _name(one_line(resident.tensor.rpartition("/")[0] or resident.tensor), left, right, upper, lower)
    return shapes


def _hover(start: float, stop: float, resident: Resident) -> str:
    size, address = units.format_bytes(resident.units * UNIT_BYTES), units.format_bytes(resident.address * UNIT_BYTES)
    return f"{resident.tensor}: {size} at {address}, cycles {start:,.0f} to {stop:,.0f}"


def _addresses(top_bytes: int) -> Scale:
    """Return a scale of addresses whose ticks are round in powers of two."""
    sizes = [power * step for power in (1024, 1024**2) for step in _STEPS]
    step = next((size for size in sizes if top_bytes <= 6 * size), 1024**3)
    ticks = tuple(float(step * index) for index in range(-(-top_bytes // step) + 1))
    return Scale(0.0, ticks[-1], _BOTTOM, _TOP, ticks)


def _name(name: str, left: float, right: float, upper: float, lower: float) -> list[Shape]:
    room = right - left - 8
    if lower - upper < 13 or room < 18:
        return []
    text = name if text_width(name, 11) <= room else shortened(name, room, 11)
    if len(text) < _MIN_LETTERS and text != name:
        return []
    return [Label(left + 4, (upper + lower) / 2 + 4, text, size=11.0)]


def overview(timing: Timing) -> Drawing | None:
    """Return the picture of the run; None if its events are not known."""
    if not timing.events or not timing.cycles:
        return None
    x = thousands(timing.cycles, _RUN_LEFT, _WIDTH - _MARGIN)
    bottom = _RUN_TOP + _LANE * (len(LANES) + 1)
    shapes = [
        *horizontal(x, bottom, lambda tick: f"{tick:,g}", "thousand cycles, predicted", _RUN_TOP),
        Label(_RUN_LEFT - 8, _RUN_TOP + 19, "layer", "end", "muted"),
        *_layers(timing, x),
    ]
    for index, lane in enumerate(LANES):
        top = _RUN_TOP + _LANE * (index + 1)
        shapes.append(Label(_RUN_LEFT - 8, top + 19, lane.name, "end", "muted"))
        shapes += _lane(timing, index, top)
    summary = f"{len(timing.events):,} events in {timing.cycles:,.0f} cycles."
    title = "Activity of each unit over time, predicted"
    return Drawing("timeline", title, summary, _WIDTH, _RUN_HEIGHT, tuple(shapes))


def _layers(timing: Timing, x: Scale) -> list[Shape]:
    shapes: list[Shape] = []
    for start, stop, tag in timing.spans:
        left, right = x(start / 1e3), x(stop / 1e3)
        if right - left < 0.5:
            continue
        name = one_line(part_name(timing, tag))
        said = f"{name}: cycles {start:,.0f} to {stop:,.0f}"
        shapes.append(Rectangle(left, _RUN_TOP + 5, right - left, _LANE - 10, series_colour(tag), 0.35, said))
        if right - left > 40:
            shapes.append(Label(left + 4, _RUN_TOP + 21, shortened(name, right - left - 8, 11.0), size=11.0))
    return shapes


def _lane(timing: Timing, lane: int, top: float) -> list[Shape]:
    """Return a box for each run of bins with the same main kind of event; its opacity is the busy share."""
    busy: list[dict[str, float]] = [{} for _ in range(_BINS)]
    size = timing.cycles / _BINS
    for event in timing.events:
        if lane_of(event) == lane:
            _spread(busy, event.start_cycles / size, event.stop_cycles / size, event.kind)
    marks = [_main_kind(kinds) for kinds in busy]
    width = (_WIDTH - _MARGIN - _RUN_LEFT) / _BINS
    boxes: list[Shape] = []
    for mark, group in itertools.groupby(range(_BINS), key=marks.__getitem__):
        if mark is not None:
            (kind, shade), bins = mark, list(group)
            left = _RUN_LEFT + bins[0] * width
            boxes.append(
                Rectangle(left, top + 5, len(bins) * width, _LANE - 10, colour_of(kind), shade, f"mostly {kind}")
            )
    return boxes


def _main_kind(kinds: dict[str, float]) -> tuple[str, float] | None:
    """Return the main kind of event of a bin, and its busy share in quarters; None without events."""
    if not kinds:
        return None
    return max(kinds, key=lambda name: kinds[name]), min(max(round(sum(kinds.values()) * 4) / 4, 0.25), 1.0)


def _spread(busy: list[dict[str, float]], start: float, stop: float, kind: str) -> None:
    for index in range(int(start), min(int(stop) + 1, len(busy))):
        part = min(stop, index + 1) - max(start, index)
        if part > 0:
            busy[index][kind] = busy[index].get(kind, 0.0) + part
