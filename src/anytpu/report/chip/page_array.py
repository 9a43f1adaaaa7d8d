"""The sections of a page on multiplication: three kinds of units compared, and the systolic wave."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from anytpu import units as written
from anytpu.report.chip.first_tile import FirstTile
from anytpu.report.chip.record import ChipPage
from anytpu.report.chip.wave import Wave, scene, wave_of
from anytpu.report.web.markup import Markup, element, joined
from anytpu.report.web.table import table

_UNITS = (
    ("scalar", "Scalar unit", "One multiply-add an operation, both of its numbers read from registers each time."),
    ("vector", "Vector unit", "A row of 8 multiply-adds an operation, all with the same number from the left."),
    (
        "matrix",
        "Matrix unit",
        "A whole row of the result begins every cycle; the weights stay in their cells, and each number that comes in "
        "is handed on from cell to cell.",
    ),
)


def units(page: ChipPage) -> Markup:
    """Return the same product on a scalar, a vector and a matrix unit, and the operation counts of this program."""
    panels = [
        element(
            "div",
            element("h3", title),
            element("svg", class_="unit", role="img", aria_label=f"{title}: progress of the 64 results"),
            element("p", class_="said-of", role="status", aria_live="off"),
            element("p", text, class_="remark"),
            class_="panel",
            data_unit=name,
        )
        for name, title, text in _UNITS
    ]
    return element(
        "section",
        element(
            "h2", "Scalar, vector, matrix", element("small", "the same 8 x 8 by 8 x 8 product, one operation a step")
        ),
        element("div", *panels, class_="panels"),
        player("units", "step"),
        _for_this_program(page),
        id="units",
    )


def _for_this_program(page: ChipPage) -> Markup:
    macs, array = page.timing.macs, page.timing.design.array
    if not macs:
        return joined()
    rows = [
        ("scalar unit", "1", written.format_count(macs)),
        (f"vector unit of {array} lanes", f"{array:,}", written.format_count(-(-macs // array))),
        (f"matrix unit of {array} x {array}", f"{array * array:,}", written.format_count(page.timing.active_cycles)),
    ]
    name = f"operations for a batch of {page.timing.batch:,}"
    said = (
        f"This program's {written.format_count(macs)} multiply-adds. The matrix unit's are the cycles in which it is "
        "active: also cells without a weight of the model's work in them."
    )
    return joined(
        element("h3", "For this program"),
        table(("unit", "multiply-adds an operation", name), rows, "counters", numbers=(1, 2)),
        element("p", said, class_="remark"),
    )


def wave(tile: FirstTile | None) -> Markup:
    """Return the systolic wave over the corner of the first tile."""
    if tile is None:
        return joined()
    shown = wave_of(tile)
    size = len(shown.weights)
    return element(
        "section",
        element("h2", "Systolic wave", element("small", _where(tile))),
        element("p", _introduction(tile, shown), class_="remark"),
        element(
            "div",
            element(
                "svg", class_="stage", role="img", aria_label=f"A systolic array of {size} by {size} cells at work"
            ),
            class_="sideways",
            tabindex=0,
            role="region",
            aria_label="Systolic array",
        ),
        player("wave", "cycle"),
        element("p", class_="readout", role="status"),
        _check(shown),
        _whole_tile(tile, size),
        element("noscript", _sums(shown)),
        id="wave",
    )


def _where(tile: FirstTile) -> str:
    return f"the first tile of {tile.layer}" if tile.layer else "the first tile of the program"


def _introduction(tile: FirstTile, shown: Wave) -> str:
    size = len(shown.weights)
    numbers = (
        "the numbers that come in are those of your first examples"
        if tile.is_example
        else "the numbers that come in are drawn at random, as the program keeps no example"
    )
    numbers += " (of their 16 bits, the low bytes)" if tile.is_half else ""
    return (
        f"The upper left {size} x {size} cells of the {len(tile.weights)} x {len(tile.weights)}, rows "
        f"{shown.first_row} to {shown.first_row + len(shown.numbers) - 1} of the pass. The weights are the program's "
        f"own, {numbers}. The tile uses {tile.depth} of the array's rows; sums go on down through all of them."
    )


def _check(shown: Wave) -> Markup:
    equal, all_of_them = int((shown.sums == shown.expected).sum()), shown.sums.size
    text = f"Checked: {equal} of {all_of_them} sums that left the array are those of the int32 matrix product."
    return element("p", text, class_="checked" if shown.is_right else "warning")


def _whole_tile(tile: FirstTile, size: int) -> Markup:
    used = int(np.count_nonzero(tile.weights))
    text = (
        f"The whole tile: {used:,} of its {tile.weights.size:,} weights are not 0. Blue is above 0, red below; the "
        f"corner above is its upper left {size} x {size}."
    )
    return element(
        "figure",
        element("canvas", class_="tile", role="img", aria_label=text),
        element("figcaption", text, class_="plain"),
        class_="whole",
    )


def _sums(shown: Wave) -> Markup:
    titles = ["row", *(f"column {n}" for n in range(shown.sums.shape[1]))]
    rows = [(f"{shown.first_row + n}", *map(str, line)) for n, line in enumerate(shown.sums.tolist())]
    return table(titles, rows, numbers=range(1, len(titles)))


def player(name: str, noun: str) -> Markup:
    """Return buttons and a slider, to which the script attaches."""
    buttons = [("first", "|<", "To the start"), ("back", "<", f"One {noun} back"), ("play", "Play", None),
               ("next", ">", f"One {noun} on"), ("last", ">|", "To the end")]  # fmt: skip
    return element(
        "div",
        *(element("button", text, type="button", data_do=do, aria_label=said) for do, text, said in buttons),
        element("input", type="range", min=0, max=1, step=1, value=0, aria_label=noun),
        class_="player",
        data_player=name,
    )


def wave_scene(tile: FirstTile | None) -> dict[str, Any] | None:
    """Return the script's data on the first tile."""
    if tile is None:
        return None
    whole = {"size": len(tile.weights), "weights": base64.b64encode(tile.weights.astype(np.int8).tobytes()).decode()}
    return {**scene(wave_of(tile)), "tile": whole}
