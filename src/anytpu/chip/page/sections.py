"""The sections of a page that need no script: cycles, layers, roofline, Unified Buffer, time model."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu import units
from anytpu.chip.page import figures, pictures
from anytpu.chip.page.figures import CAUSES, cycles_by_cause, cycles_of, dominating
from anytpu.chip.page.lanes import colour_of
from anytpu.chip.page.layers import ProgramLayer, grouped_layers
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.text import idle_sentences, shape
from anytpu.chip.page.time_plots import memory_map, overview
from anytpu.chip.timing.record import Timing
from anytpu.report.drawing import svg
from anytpu.report.html import Markup, bar_of, element, joined, legend, remark, section, stacked, table
from anytpu.report.wording import percent, plural

_MAX_ROWS, _MAX_FOLDED = 24, 400
"""Maximum number of layers in the table, and of more layers that the reader may unfold."""


def fold(title: str, *content: object) -> Markup:
    """Return content below a title, folded; the script unfolds it on a wide window."""
    return element("details", element("summary", title), *content, class_="fold")


def causes(timing: Timing) -> Markup:
    """Return the counters: a bar, and a table with the rows of the paper's."""
    if not timing.cycles:
        return section("cycles", "Where the cycles go", None, *(element("p", line) for line in idle_sentences(timing)))
    parts = [
        (cause.colour, cycles / timing.cycles, cause.name, percent(cycles / timing.cycles))
        for cause, cycles in zip(CAUSES, cycles_by_cause(timing), strict=True)
    ]
    return section(
        "cycles",
        "Where the cycles go",
        figures.format_cycles(timing.cycles),
        remark(figures.PREDICTED),
        stacked(parts, shares(timing)),
        fold("Counters of the paper", _counters(timing)),
    )


def shares(timing: Timing) -> str:
    """Return the share of each cause in one sentence."""
    pairs = zip(CAUSES, cycles_by_cause(timing), strict=True)
    return ", ".join(f"{cause.name} {percent(cycles / (timing.cycles or 1.0))}" for cause, cycles in pairs)


def _counters(timing: Timing) -> Markup:
    """Return the rows of the paper's Table 3."""
    total = timing.cycles
    rows = [
        ("1", "array active", percent(timing.active_cycles / total)),
        ("2", "useful multiply-adds, of the peak", percent(timing.useful_share)),
        ("3", "unused multiply-adds", percent(timing.unused_share)),
        ("4", "weight stall", percent(timing.stall_cycles / total)),
        ("5", "weight shift", percent(timing.shift_cycles / total)),
        ("6", "non-matrix", percent(timing.other_cycles / total)),
        ("7", "waiting for its own results (part of 6)", percent(timing.data_wait_cycles / total)),
        ("8", "waiting for data of the host (part of 6)", percent(timing.input_wait_cycles / total)),
        ("9", "TOPS", f"{timing.ops_per_s / 1e12:.3g}"),
    ]
    host = f"Inputs and outputs take {percent(timing.host_share)} of that time on the host's link."
    if timing.host_steps:
        host += f" Not in that time, as the host does it: {', '.join(timing.host_steps)}."
    return joined(
        table(("row", "counter, as in Table 3 of the paper", "share"), rows, "counters", numbers=(2,)),
        remark("Rows 1, 4, 5 and 6 add up to all cycles. ", host),
    )


def timeline(timing: Timing) -> Markup:
    """Return the activity of the units over the run."""
    if not timing.events:
        return joined()
    kinds = sorted({event.kind for event in timing.events})
    return section(
        "timeline",
        "Timeline",
        f"{len(timing.events):,} events, predicted",
        remark('program.trace("trace.json") writes each event; https://ui.perfetto.dev shows them, and zooms.'),
        fold(
            "The work of each unit",
            element("div", element("figure", still(timing)), class_="sideways", tabindex=0, role="region",
                    aria_label="Timeline"),
            legend([(colour_of(kind), kind) for kind in kinds]),
        ),
    )  # fmt: skip


def still(timing: Timing) -> Markup:
    """Return the picture of the whole run; nothing without events."""
    drawing = overview(timing)
    return svg.inline(drawing) if drawing else joined()


def layer_table(layers: Sequence[ProgramLayer], timing: Timing) -> Markup:
    """Return the table of layers: kind, error, predicted time. Parts of a long program are summed by layer."""
    if not layers:
        return joined()
    shown = grouped_layers(layers, _MAX_ROWS)
    longest = max([cycles_of(layer.timing) for layer in shown if layer.timing], default=0.0) or 1.0
    titles = ("layer", "result", "MACs", "weights", "SQNR", "passes", "array used", "predicted cycles")
    rows = [_layer_row(layer, timing, longest) for layer in shown[:_MAX_FOLDED]]
    tables = [table(titles, part, "layers", numbers=(2, 3, 4, 5, 6)) for part in (rows[:_MAX_ROWS], rows[_MAX_ROWS:])]
    more = len(rows) - _MAX_ROWS
    on_host, left_out = sum(layer.on_host for layer in layers), len(shown) - _MAX_FOLDED
    return section(
        "layers",
        "Layers",
        f"{len(layers) - on_host} on the chip, {on_host} on the host",
        remark(
            "Passes: how often a tile goes through the array for a batch; packed: with several positions of a kernel. "
            "Array used: the model's part of the multiply-adds in these passes. SQNR: signal to quantization noise."
        ),
        element("div", tables[0], class_="scroll", tabindex=0, role="region", aria_label="Layers"),
        element("details", element("summary", f"the other {plural(more, 'layer')}"), tables[1]) if more > 0 else None,
        remark(f"{plural(left_out, 'more layer')} not shown.") if left_out > 0 else None,
    )


def _layer_row(layer: ProgramLayer, timing: Timing, longest: float) -> tuple[object, ...]:
    flag = element("span", "on the host", class_="flag bad") if layer.on_host else None
    name = joined(element("span", layer.title, class_="name"), flag, element("small", layer.kind))
    note = element("small", layer.note) if layer.note else None
    cells = (
        joined(name, note),
        shape(layer.shape),
        units.format_count(layer.macs) if layer.macs else "",
        units.format_bytes(layer.weight_bytes) if layer.weight_bytes else "",
        figures.format_decibel(layer.sqnr_db) if layer.sqnr_db is not None else "",
        joined(f"{layer.passes:,}", element("small", layer.way) if layer.way else None) if layer.passes else "",
        percent(layer.utilisation) if layer.passes else "",
    )
    part = layer.timing
    if part is None or not cycles_of(part):
        return (*cells, "")
    colours = [(cause.colour, cycles) for cause, cycles in zip(CAUSES, cycles_by_cause(part), strict=True)]
    share = percent(cycles_of(part) / timing.cycles if timing.cycles else 0.0)
    why = element("small", f"{share}, mostly {dominating(part).name}")
    return (*cells, joined(element("b", units.format_count(cycles_of(part))), why, bar_of(colours, longest)))


def roof(timing: Timing) -> Markup:
    """Return the roofline."""
    drawing = pictures.roofline(timing)
    if drawing is None:
        return joined()
    return section(
        "roofline",
        "Roofline",
        drawing.summary,
        fold(
            "Layers under the roof of the chip",
            remark(
                "Each disc is a layer, as large as it is long. The axis counts multiply-adds, as the paper does, and "
                "the height two operations a multiply-add. A layer whose weights came early may lie above the slope."
            ),
            element("figure", svg.either(drawing, pictures.roofline(timing, narrow=True))),
            legend([(cause.colour, f"mostly {cause.name}") for cause in CAUSES]),
            remark(f"Peak {figures.format_tops(timing.design.peak_ops_per_s)}, predicted rates."),
        ),
    )


def memory(page: ChipPage) -> Markup:
    """Return the memory map of the Unified Buffer."""
    drawing = memory_map(page.timing, page.image)
    if drawing is None:
        return joined()
    return section(
        "memory",
        "Unified Buffer",
        drawing.summary,
        fold(
            "Tensors and their addresses",
            remark(
                "Each rectangle is a tensor: from when to when it is held, and at which addresses. Point at one for "
                "its name. Rows are padded to 32 bytes."
            ),
            element("figure", svg.either(drawing, memory_map(page.timing, page.image, narrow=True))),
        ),
    )


def predicted_by(timing: Timing) -> Markup:
    """Return the description of the time model."""
    design = timing.design
    said = (
        f"The time model follows each unit through its queue: the array takes a row a cycle at "
        f"{units.format_hertz(design.clock_hz)} (two cycles for activations of 16 bits), a tile comes from the Weight "
        f"Memory in {design.tile_cycles:,.0f} cycles ({design.weight_bytes_per_s / 1e9:g} GB/s), waits in a FIFO of "
        f"{design.weight_fifo_tiles} tiles, and is shifted in in {design.array} cycles while the tile before it "
        "multiplies."
    )
    source = (
        "Sizes and rates are those of the paper (Jouppi et al., In-Datacenter Performance Analysis of a Tensor "
        "Processing Unit, 2017); what it leaves out is chosen, and documented with the time model. Nothing here "
        "was measured on such a chip."
    )
    return element("footer", fold("The time model", element("p", said), element("p", source)))
