"""The sections of a page on multiplication: three kinds of units compared, the systolic wave, and a finished sum.

Idea: 256 by 256 cells are too many to show. A `SystolicArray` of 8 by 8 multiplies the upper left corner of the first
tile with the activations of the same lanes. Every number shown is one of its registers.
"""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import numpy as np

from anytpu import units as written
from anytpu.chip.graph.nodes import Convolution, Network
from anytpu.chip.machine.systolic import ArraySnapshot, SystolicArray
from anytpu.chip.page.first_tile import SIZE, FinishedSums, FirstTile
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.sections import fold
from anytpu.report.html import Markup, element, joined, remark, section, table

_UNITS = (
    ("scalar", "Scalar unit", "A scalar unit does one multiply-add an operation, and reads both of its numbers."),
    ("vector", "Vector unit", "A vector unit does a row of 8, all with the same number from the left."),
    (
        "matrix",
        "Matrix unit",
        "In a matrix unit a row of the result begins every cycle: weights stay in their cells, and each number that "
        "comes in is handed on from cell to cell.",
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
            class_="panel",
            data_unit=name,
        )
        for name, title, text in _UNITS
    ]
    return section(
        "units",
        "Scalar, vector, matrix",
        "the same 8 x 8 by 8 x 8 product, one operation a step",
        element("div", *panels, class_="panels"),
        _player("units", "step"),
        remark(" ".join(text for *_, text in _UNITS)),
        _for_this_program(page),
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
    shown = table(("unit", "multiply-adds an operation", name), rows, "counters", numbers=(1, 2))
    return fold("Operations of this program", shown, remark(said))


def wave(page: ChipPage, node: Convolution | None) -> Markup:
    """Return the systolic wave over the corner of the first tile, and one of its sums to the end.

    Args:
        page: the records of the page.
        node: the layer of which the page shows numbers; None if there is none.
    """
    tile = page.first_tile
    if tile is None:
        return joined()
    shown = wave_of(tile)
    size = len(shown.weights)
    node = node if node and node.name == tile.node else None
    stage = element("svg", class_="stage", role="img", aria_label=f"A systolic array of {size} by {size} cells at work")
    return section(
        "wave",
        "Systolic wave",
        f"the first tile of {tile.layer or 'the program'}",
        remark(_introduction(tile, shown)),
        remark(_zero(node, page.network)) if node and page.network and not tile.is_half else None,
        element("div", stage, class_="sideways", tabindex=0, role="region", aria_label="Systolic array"),
        _player("wave", "cycle"),
        element("p", class_="readout", role="status"),
        _check(shown),
        _whole_tile(tile, size),
        element("noscript", element("div", _sums(shown), class_="sideways")),
        _finished(tile.finished, shown, node, page.network) if tile.finished else None,
    )


def _zero(node: Convolution, network: Network) -> str:
    """Return the explanation of the integer that stands for 0.0."""
    source = network.quantizations[node.inputs[0]]
    zero = source.zero_point
    return (
        f"A number q that comes in stands for (q - {zero}) x {source.scale:.4g}, so {zero} stands for 0.0, as in a "
        "blank part of an input. The cells multiply q itself. What the zero point adds to a sum is known before the "
        "run, and the bias takes it away."
    ).replace("- -", "+ ")


def _finished(finished: FinishedSums, wave: Wave, node: Convolution | None, network: Network | None) -> Markup:
    """Return a sum of the wave on its way to a result: bias, multiplier, rounding, clip, table."""
    place = _chosen(finished, wave)
    if place is None:
        return joined()
    row, column = place
    total, bias = int(finished.sums[row, column]), int(finished.bias[column])
    with np.errstate(over="ignore"):
        scaled = np.float32(total + bias) * finished.multiplier[column]
    whole, result = np.rint(scaled) + np.float32(finished.zero_point), int(finished.results[row, column])
    clipped = int(np.clip(whole, finished.low, finished.high))
    rows = [
        ("leaves the corner shown above", wave.sums[row - wave.first_row, column]),
        ("with all rows and passes, in the accumulator", total),
        (f"plus the bias, {bias:,}", total + bias),
        (f"times the multiplier, {finished.multiplier[column]:.6g}, in float32", f"{scaled:.4f}"),
        (f"rounded half to even, plus the zero point of the result, {finished.zero_point}", f"{whole:,.0f}"),
        (f"clipped to {finished.low:,} and {finished.high:,}", clipped),
        *([("looked up in the table of the layer's function", result)] if finished.table else []),
    ]
    held = network.quantizations[node.output] if node and network and not finished.table else None
    stands = f" It stands for {float(held.dequantize(np.array([result]))[0]):.4g}." if held else ""
    return joined(
        element("h3", f"One sum to its end: row {row} in column {column}"),
        table(
            ("step", "number"),
            [(said, f"{number:,}" if isinstance(number, int | np.integer) else number) for said, number in rows],
            "counters",
            numbers=(1,),
        ),
        remark(
            f"{result:,} is what the activation unit wrote to the Unified Buffer.{stands} The multiplier is the scale "
            "of the input times that of the weights, divided by the scale of the result."
        ),
    )


def _chosen(finished: FinishedSums, wave: Wave) -> tuple[int, int] | None:
    """Return the row and the column of a shown sum, if possible of one that is not clipped; None if none is shown."""
    rows = range(wave.first_row, min(wave.first_row + len(wave.sums), len(finished.results)))
    middle = (finished.low + finished.high) / 2
    places = [(row, column) for row in rows for column in range(min(finished.sums.shape[1], wave.sums.shape[1]))]
    return min(places, key=lambda place: abs(int(finished.results[place]) - middle), default=None)


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
        f"own, {numbers}. {_below(tile, size)}"
    )


def lower_rows(tile: FirstTile) -> int:
    """Return how many rows of the array that the tile uses lie below the corner shown."""
    return max(0, tile.depth - SIZE)


def _below(tile: FirstTile, size: int) -> str:
    lower = lower_rows(tile)
    if not lower:
        return (
            f"The tile uses {tile.depth} of the array's rows, so the sums that leave the corner are those of this pass."
        )
    return (
        f"The tile uses {tile.depth} of the array's rows. Those below the corner ({lower}) add their products before "
        "the sums reach the accumulators."
    )


def _check(shown: Wave) -> Markup:
    equal, all_of_them = int((shown.sums == shown.expected).sum()), shown.sums.size
    text = f"Checked: {equal} of {all_of_them} sums that left the corner are those of its int32 matrix product."
    return element("p", text, class_="checked" if shown.is_right else "warning")


def _whole_tile(tile: FirstTile, size: int) -> Markup:
    used = int(np.count_nonzero(tile.weights))
    text = (
        f"The whole tile: {used:,} of its {tile.weights.size:,} weights are not 0. Blue is above 0, red below; the "
        f"corner above is its upper left {size} x {size}."
    )
    canvas = element("canvas", class_="tile", role="img", aria_label=text)
    shown = element("figure", canvas, element("figcaption", text, class_="plain"), class_="whole")
    return fold("The whole tile", shown)


def _sums(shown: Wave) -> Markup:
    titles = ["row", *(f"column {n}" for n in range(shown.sums.shape[1]))]
    rows = [(f"{shown.first_row + n}", *map(str, line)) for n, line in enumerate(shown.sums.tolist())]
    return table(titles, rows, "counters", numbers=range(1, len(titles)))


def _player(name: str, noun: str) -> Markup:
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
    return {**scene(wave_of(tile)), "tile": whole, "lower": lower_rows(tile)}


@dataclasses.dataclass(frozen=True, eq=False)
class Wave:
    """A run of a small array.

    Attributes:
        first_row: index of the first shown row of the pass, chosen for varied values.
        weights: corner of the tile; int32 `(rows, columns)`.
        numbers: activations; int32 `(vectors, rows)`.
        snapshots: registers after each cycle.
        sums: sums that left the array; int32 `(vectors, columns)`.
        expected: the matrix product for comparison; int32 `(vectors, columns)`.
    """

    first_row: int
    weights: np.ndarray
    numbers: np.ndarray
    snapshots: tuple[ArraySnapshot, ...]
    sums: np.ndarray
    expected: np.ndarray

    @property
    def is_right(self) -> bool:
        """Whether the sums that left the array equal the matrix product."""
        return bool((self.sums == self.expected).all())


def wave_of(tile: FirstTile) -> Wave:
    """Return the wave over the corner of a tile."""
    size = min(SIZE, len(tile.weights))
    weights = tile.weights[:size, :size].astype(np.int32)
    first = _first_row(tile.numbers[:, :size], size)
    numbers = tile.numbers[first : first + size, :size]
    snapshots = tuple(SystolicArray(size, size).snapshots(weights, numbers))
    sums = np.zeros((len(numbers), size), np.int32)
    for snapshot in snapshots:
        for vector, column, value in snapshot.leaving:
            sums[vector, column] = value
    return Wave(first, weights, numbers, snapshots, sums, (numbers @ weights).astype(np.int32))


def _first_row(numbers: np.ndarray, size: int) -> int:
    """Return the start of the rows with the most distinct values; the border of an image has few."""
    starts = range(0, max(len(numbers) - size, 0) + 1, size)[:512]
    return max(starts, key=lambda start: (len(np.unique(numbers[start : start + size])), -start), default=0)


def scene(wave: Wave) -> dict[str, Any]:
    """Return a wave as the script's data."""
    left_at = {}
    for snapshot in wave.snapshots:
        for vector, column, _ in snapshot.leaving:
            left_at[vector, column] = snapshot.cycle
    vectors, columns = wave.sums.shape
    return {
        "lanes": len(wave.weights),
        "columns": columns,
        "rows": vectors,
        "first_row": wave.first_row,
        "weights": wave.weights.tolist(),
        "inputs": wave.numbers.tolist(),
        "steps": [_step(snapshot) for snapshot in wave.snapshots],
        "results": [
            [{"sum": int(wave.sums[vector, column]), "cycle": left_at[vector, column]} for column in range(columns)]
            for vector in range(vectors)
        ],
    }


def _step(snapshot: ArraySnapshot) -> dict[str, Any]:
    weights = snapshot.next_weights if snapshot.shifting else snapshot.weights
    return {
        "shifting": snapshot.shifting,
        "weight": weights.ravel().tolist(),
        "row": [None if vector < 0 else vector for vector in snapshot.vectors.ravel().tolist()],
        "input": snapshot.numbers.ravel().tolist(),
        "sum": snapshot.sums.ravel().tolist(),
    }
