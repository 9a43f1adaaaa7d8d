"""A program and its predicted run as text for the terminal: sentences, tables of layers, bars of cycles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anytpu import units
from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.page import figures
from anytpu.chip.page.figures import CAUSES, cycles_by_cause, cycles_of, dominating
from anytpu.chip.page.lanes import with_titles
from anytpu.chip.page.layers import ProgramLayer, grouped_layers, grouped_parts, largest
from anytpu.chip.page.levels import peak_units
from anytpu.chip.page.record import ChipPage
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.report.terminal import bar, compact_table, hang, table_width
from anytpu.report.wording import UNKNOWN, one_line, percent, plural

_MAX_LAYERS = 60
"""Maximum number of layers in a table; of more, the first or the longest are shown."""

_MAX_KIND, _MIN_NAME = 20, 18


def print_page(console: Console, page: ChipPage) -> None:
    """Print a program and its predicted run."""
    _print(console, program_lines(page.image, page.layers, console.width))
    console.print()
    print_timing(console, page.timing)


def print_timing(console: Console, timing: Timing) -> None:
    """Print a predicted run."""
    _print(console, timing_lines(with_titles(timing), console.width))


def _print(console: Console, lines: Iterable[Text | Table]) -> None:
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, Text))


def program_lines(image: Image, layers: Sequence[ProgramLayer], width: int) -> Iterator[Text | Table]:
    """Yield the description of a program, line by line, and the table of its layers."""
    yield Text(one_line(image.name), "bold")
    yield from wrapped(" ".join(facts(image, layers)), width)
    yield from wrapped(figures.VIRTUAL, width, "yellow")
    shown = grouped_layers(layers, _MAX_LAYERS)
    if shown:
        yield layer_table(shown[:_MAX_LAYERS], width)
    if len(shown) > _MAX_LAYERS:
        yield Text(f"{plural(len(shown) - _MAX_LAYERS, 'more layer')} not shown", "dim")
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
    if table_width(_table(titles, rows, 3)) > width:
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


def timing_lines(timing: Timing, width: int) -> Iterator[Text | Table]:
    """Yield the figures of a predicted run, line by line, and the table of its layers."""
    yield Text(f"{one_line(timing.name)}, a batch of {timing.batch:,}", "bold")
    yield from wrapped(figures.PREDICTED, width, "yellow")
    if not timing.cycles:
        for line in idle_sentences(timing):
            yield from wrapped(line, width)
        return
    for line in speed_sentences(timing):
        yield from wrapped(line, width)
    yield Text()
    yield from cause_lines(timing, width)
    parts = grouped_parts(timing.parts, _MAX_LAYERS)
    if parts:
        yield part_table(timing, largest(parts, cycles_of, _MAX_LAYERS), width)
    if len(parts) > _MAX_LAYERS:
        yield Text(f"the {_MAX_LAYERS} of {len(parts):,} layers that take longest", "dim")


def speed_sentences(timing: Timing) -> list[str]:
    """Return sentences on the speed of a run."""
    rate = units.format_rate(timing.examples_per_s, "examples")
    dies = timing.design.dies
    server = units.format_rate(timing.server_examples_per_s, "examples")
    interval = "from batch to batch" if timing.back_to_back else "a batch"
    waits = [percent(cycles / timing.cycles) for cycles in (timing.data_wait_cycles, timing.input_wait_cycles)]
    said = [
        f"{figures.format_cycles(timing.cycles)} at {units.format_hertz(timing.design.clock_hz)}: "
        f"{units.format_seconds(timing.time_s)} {interval}, {rate}{f', {server} on {dies} chips' if dies > 1 else ''}.",
        f"{figures.format_tops(timing.ops_per_s)}, {percent(figures.utilisation(timing))} of the peak of "
        f"{figures.format_tops(timing.design.peak_ops_per_s)}.",
        f"Inputs and outputs take {percent(timing.host_share)} of that time on the host's link; the array waits "
        f"{waits[0]} of it for its own results and {waits[1]} for data of the host.",
    ]
    if timing.host_steps:
        said.append(f"Not in that time, as the host does it: {one_line(', '.join(timing.host_steps))}.")
    return said


def idle_sentences(timing: Timing) -> list[str]:
    """Return sentences on a run without work for the chip."""
    host = [f"The host does all of it: {one_line(', '.join(timing.host_steps))}."] if timing.host_steps else []
    return [figures.NOTHING, *host]


def cause_lines(timing: Timing, width: int) -> Iterator[Text]:
    """Yield a bar for each cause, proportional to its share of the cycles."""
    names = max(len(cause.name) for cause in CAUSES)
    room = max(min(width - names - 30, 60), 8)
    for cause, cycles in zip(CAUSES, cycles_by_cause(timing), strict=True):
        share = cycles / timing.cycles
        line = Text(f"{cause.name:<{names}}  {percent(share):>7}  {figures.format_cycles(cycles):>15}  ")
        yield line.append(bar(share, room) if cycles > 0 else "", cause.style)


def format_intensity(macs_per_byte: float) -> str:
    """Format multiply-adds per byte.

    Example:
        >>> format_intensity(1349.3), format_intensity(0.156), format_intensity(0)
        ('1,349', '0.16', '0')
    """
    return f"{macs_per_byte:,.0f}" if macs_per_byte >= 10 else f"{macs_per_byte:.2g}"


def part_table(timing: Timing, parts: Sequence[PartTiming], width: int) -> Table:
    """Return the table of layers of a predicted run, one row each."""
    titles = ("layer", "cycles", *(cause.short for cause in CAUSES), "TOPS", "MACs/B", "mostly")
    rows = []
    for part in parts:
        cycles, cause = cycles_of(part), dominating(part)
        intensity = figures.intensity(part)
        cells = [one_line(part.name), units.format_count(cycles)]
        cells += [percent(spent / cycles) if cycles else "" for spent in cycles_by_cause(part)]
        cells += [f"{figures.part_ops_per_s(part, timing.design) / 1e12:.2f}" if part.macs else ""]
        cells += ["" if intensity is None else format_intensity(intensity)]
        rows.append([*(Text(cell) for cell in cells), Text(cause.short, cause.style) if cycles else Text()])
    return fitted(titles, rows, width, spare=("MACs/B", "TOPS", "mostly"))


def fitted(
    titles: Sequence[str],
    rows: Sequence[Sequence[Text]],
    width: int,
    texts: int = 1,
    spare: Sequence[str] = (),
) -> Table:
    """Return a table that is at most as wide as a terminal.

    Args:
        titles: titles of the columns.
        rows: cells of each row; the first cell is a name.
        width: columns of the terminal.
        texts: number of leading columns that are texts; the others are numbers.
        spare: titles of columns that may be dropped, in the order of dropping.
    """
    longest = max((len(row[0]) for row in rows), default=0)
    dropped = 0
    while True:
        kept = [index for index, title in enumerate(titles) if title not in spare[:dropped]]
        kept_titles, cells = [titles[index] for index in kept], [[row[index] for index in kept] for row in rows]
        excess = max(table_width(_table(kept_titles, cells, texts)) - width, 0)
        if excess <= max(longest - _MIN_NAME, 0) or dropped == len(spare):
            return _table(kept_titles, [_named(row, longest - excess) for row in cells], texts)
        dropped += 1


def _named(row: Sequence[Text], room: int) -> list[Text]:
    return [Text(middle(row[0].plain, max(room, _MIN_NAME)), row[0].style), *row[1:]]


def middle(name: str, room: int) -> str:
    """Cut a long name in the middle, since both ends distinguish layers.

    Example:
        >>> middle("conv2_block1_0_conv", 14), middle("dense", 14)
        ('conv2_b…0_conv', 'dense')
    """
    name = one_line(name)
    if len(name) <= room:
        return name
    end = (room - 1) // 2
    return f"{name[: room - 1 - end]}…{name[-end:]}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[Text]], texts: int) -> Table:
    # As a last resort, texts other than the name are wrapped.
    shown = compact_table(titles, left=titles[:texts], wrapped=titles[1:texts])
    for row in rows:
        shown.add_row(*row)
    return shown
