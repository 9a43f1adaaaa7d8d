"""The section of a page on the parts of the chip: a block diagram with the bytes of this program on each arrow.

Source: Jouppi et al. 2017, Figure 1.
"""

from __future__ import annotations

import dataclasses

from anytpu import units
from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import out_units, tiles_popped
from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.isa.instructions import Activate, ArrayInstruction
from anytpu.chip.isa.issue import issue
from anytpu.chip.isa.registers import Register
from anytpu.chip.page.levels import peak_units
from anytpu.chip.page.record import ChipPage
from anytpu.report.drawing import svg
from anytpu.report.drawing.shapes import Drawing, Label, Polyline, Rectangle, Shape
from anytpu.report.html import Markup, remark, section

_WIDE, _NARROW = (640.0, 200.0), (360.0, 132.0)
"""Width of the drawing, and of each of its two columns, in points."""

_BOX, _STEP = 46.0, 84.0
_HEIGHT = 4 * _STEP + _BOX
_SUM_BYTES = 4


@dataclasses.dataclass(frozen=True)
class MovedBytes:
    """Bytes that a program moves inside the chip, for one batch.

    Attributes:
        tiles: weights that are shifted into the array.
        numbers: activations that enter the array, one row of it at a time.
        sums: sums that leave the array.
        taken: sums that the activation unit takes: of the lanes that it writes.
        results: results that it writes to the Unified Buffer.
    """

    tiles: int
    numbers: int
    sums: int
    taken: int
    results: int


def traffic(image: Image) -> MovedBytes:
    """Return the bytes that a program moves inside the chip."""
    array = image.design.array
    tiles = rows = taken = results = 0
    for _, instruction, registers, _ in issue(image.instructions):
        if isinstance(instruction, ArrayInstruction):
            tiles += tiles_popped(instruction) * image.design.tile_bytes
            rows += instruction.rows * instruction.repeat * (1 + instruction.wide)
        elif isinstance(instruction, Activate):
            row_bytes = out_units(registers) * UNIT_BYTES
            if instruction.operation == "scale":
                lanes = min(row_bytes, array - int(registers[Register.SOURCE_LANE]))
                taken += instruction.rows * lanes * _SUM_BYTES
            results += instruction.rows * row_bytes * (1 + instruction.wide_out)
    return MovedBytes(tiles, rows * array, rows * array * _SUM_BYTES, taken, results)


def chip(page: ChipPage) -> Markup:
    """Return the block diagram."""
    drawing = block_diagram(page)
    return section(
        "chip",
        "The chip",
        f"bytes for a batch of {page.timing.batch:,}",
        remark(
            "Each arrow has the bytes that this program moves along it. Weights come from a memory beside the chip. "
            "Pools and sums of two tensors also read the Unified Buffer."
        ),
        svg.either(drawing, block_diagram(page, narrow=True)),
    )


def block_diagram(page: ChipPage, narrow: bool = False) -> Drawing:
    """Return the parts of the chip and the bytes that move between them, `narrow` for a telephone."""
    (width, column), timing, inside = _NARROW if narrow else _WIDE, page.timing, traffic(page.image)
    design, right, size = timing.design, width - column, units.format_bytes
    held, stored = size(peak_units(page.image) * UNIT_BYTES), size(page.image.weights.nbytes)
    parts = (
        (0, 0, 0, "Host", "inputs, outputs"),
        (0, 2, 2, "Unified Buffer", f"{held} of {size(design.unified_buffer_bytes)}"),
        (right, 0, 0, "Weight Memory", f"{stored} of {size(design.weight_memory_bytes)}"),
        (right, 1, 0, "Weight FIFO", f"{design.weight_fifo_tiles:,} x {size(design.tile_bytes)}"),
        (right, 2, 0, "Matrix unit", f"{design.array} x {design.array} cells"),
        (right, 3, 0, "Accumulators", f"{design.accumulator_rows:,} rows of sums"),
        (right, 4, 0, "Activation unit", "bias, scale, function"),
    )
    shapes = [
        shape
        for x, row, more, title, text in parts
        for shape in _box(x, row * _STEP, column, more * _STEP + _BOX, title, text)
    ]
    multiplied, activated = 2.28 * _STEP, 4.28 * _STEP
    shapes += [
        *_arrow((18, _BOX), (18, 2 * _STEP), "c1", f"in {size(timing.input_bytes)}", (28, 1.1 * _STEP)),
        *_arrow((column - 18, 2 * _STEP), (column - 18, _BOX), "c1", f"out {size(timing.output_bytes)}",
                (column - 28, 1.5 * _STEP), "end"),
        *_arrow((column, multiplied), (right, multiplied), "c0", size(inside.numbers),
                (width / 2, multiplied - 8), "middle"),
        *_arrow((right, activated), (column, activated), "c5", size(inside.results),
                (width / 2, activated - 8), "middle"),
    ]  # fmt: skip
    down = ((timing.weight_bytes, "c4"), (inside.tiles, "c2"), (inside.sums, "c0"), (inside.taken, "c5"))
    for level, (moved, colour) in enumerate(down):
        top, bottom = level * _STEP + _BOX, (level + 1) * _STEP
        x = right + 18
        shapes += _arrow((x, top), (x, bottom), colour, size(moved), (x + 10, (top + bottom) / 2 + 4))
    summary = (
        f"{size(timing.input_bytes)} of inputs, {size(timing.weight_bytes)} of weights, {size(inside.numbers)} into "
        f"the array, {size(inside.results)} of results."
    )
    return Drawing("chip", "The parts of the chip, with the bytes of a batch", summary, width, _HEIGHT, tuple(shapes))


def _box(x: float, y: float, width: float, height: float, title: str, text: str) -> list[Shape]:
    middle = x + width / 2
    return [
        Rectangle(x, y, width, height, "c6", 0.18),
        Label(middle, y + height / 2 - 3, title, "middle", is_bold=True),
        Label(middle, y + height / 2 + 14, text, "middle", "muted", 11.0),
    ]


def _arrow(
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    text: str,
    place: tuple[float, float],
    anchor: str = "start",
) -> list[Shape]:
    (x, y), along = end, ((end[0] > start[0]) - (end[0] < start[0]), (end[1] > start[1]) - (end[1] < start[1]))
    back_x, back_y = x - 7 * along[0], y - 7 * along[1]
    head = ((back_x + 5 * along[1], back_y + 5 * along[0]), end, (back_x - 5 * along[1], back_y - 5 * along[0]))
    line, tip = Polyline((start, end), colour, 2.0), Polyline(head, colour, 2.0)
    return [line, tip, Label(*place, text, anchor, "ink", 12.0)]  # type: ignore[arg-type]
