"""The description of a chip program in the terminal, with its table of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from anytpu import units
from anytpu.chip.design import UNIT_BYTES
from anytpu.chip.image import Image
from anytpu.report.chip import figures
from anytpu.report.chip.fitted import fitted, middle, natural_width
from anytpu.report.chip.grouping import grouped_layers
from anytpu.report.chip.layers import ProgramLayer
from anytpu.report.chip.levels import peak_units
from anytpu.report.terminal import hang
from anytpu.report.wording import UNKNOWN, one_line, percent, plural

MAX_LAYERS = 60
"""Maximum number of layers in a table; of more, the first or the longest are shown."""

_MAX_KIND = 20


def program_lines(image: Image, layers: Sequence[ProgramLayer], width: int) -> Iterator[Text | Table]:
    """Yield the description of a program, line by line, and the table of its layers."""
    yield Text(one_line(image.name), "bold")
    yield from wrapped(" ".join(facts(image, layers)), width)
    yield from wrapped(figures.VIRTUAL, width, "yellow")
    shown = grouped_layers(layers, MAX_LAYERS)
    if shown:
        yield layer_table(shown[:MAX_LAYERS], width)
    if len(shown) > MAX_LAYERS:
        yield Text(f"{plural(len(shown) - MAX_LAYERS, 'more layer')} not shown", "dim")
    for layer in layers:
        if layer.note and not layer.passes:
            for line in hang(f"{one_line(layer.title)}: ", one_line(layer.note), width):
                yield Text(line)


def facts(image: Image, layers: Sequence[ProgramLayer]) -> list[str]:
    """Return sentences on a program's layers, instructions and memory."""
    on_host = sum(layer.on_host for layer in layers)
    where = f", {on_host} of them on the host" if on_host else ""
    weights = units.format_bytes(image.weights.nbytes)
    held = units.format_bytes(peak_units(image) * UNIT_BYTES)
    made_of = f"{plural(len(layers), 'layer')}{where}; " if layers else ""
    return [
        f"{made_of}{plural(len(image.instructions), 'instruction')} for a batch of {image.batch:,}.",
        f"{weights} of {units.format_bytes(image.design.weight_memory_bytes)} Weight Memory, at most {held} of "
        f"{units.format_bytes(image.design.unified_buffer_bytes)} Unified Buffer.",
    ]


def layer_table(layers: Sequence[ProgramLayer], width: int) -> Table:
    """Return the table of layers: kind, location, utilisation of the array."""
    has_quality = any(layer.sqnr_db is not None for layer in layers)
    titles = ("layer", "kind", "result", "MACs", "weights", "passes", "used", *(["SQNR"] if has_quality else []))
    rows = [_row(layer, one_line(layer.kind), has_quality) for layer in layers]
    if natural_width(titles, rows, 3) > width:
        rows = [_row(layer, short_kind(layer.kind), has_quality) for layer in layers]
    return fitted(titles, rows, width, texts=3, spare=("used", "passes", "weights"))


def _row(layer: ProgramLayer, kind: str, has_quality: bool) -> list[Text]:
    cells = [one_line(layer.title), kind, shape(layer.shape)]
    cells += [units.format_count(layer.macs) if layer.macs else "", _size(layer.weight_bytes)]
    cells += [passes(layer), percent(layer.utilisation) if layer.passes else ""]
    cells += [figures.format_decibel(layer.sqnr_db)] if has_quality else []
    return [Text(cell, "yellow" if layer.on_host else "") for cell in cells]


def short_kind(kind: str) -> str:
    """Abbreviate a layer's kind for the table; the page and the listing have the full text.

    Example:
        >>> short_kind("convolution + leaky relu"), short_kind("softmax on the host"), short_kind("max pool")
        ('conv + leaky relu', 'softmax, host', 'max pool')
    """
    said = one_line(kind).replace("convolution", "conv").replace(" on the host", ", host")
    return middle(said, _MAX_KIND)


def shape(sizes: tuple[int, ...] | None) -> str:
    """Format a shape.

    Example:
        >>> shape((28, 28, 1)), shape((1, 1, 10)), shape(None)
        ('28x28x1', '10', '-')
    """
    if sizes is None:
        return UNKNOWN
    kept = sizes[-1:] if all(size == 1 for size in sizes[:-1]) else sizes
    return "x".join(map(str, kept))


def passes(layer: ProgramLayer) -> str:
    """Format the number of a layer's passes through the array, and whether they are packed."""
    if not layer.passes:
        return ""
    return f"{layer.passes:,}" + (f" {layer.way}" if layer.way else "")


def _size(size_bytes: int) -> str:
    return units.format_bytes(size_bytes) if size_bytes else ""


def wrapped(text: str, width: int, style: str = "") -> Iterator[Text]:
    """Yield a text wrapped between words."""
    for line in hang("", text, width):
        yield Text(line, style)
