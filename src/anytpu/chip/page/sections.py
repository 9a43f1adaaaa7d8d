"""The sections of a page that need no script: cycles, layers, roofline, Unified Buffer, quantization, time model."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu import units
from anytpu.chip.page import figures, pictures
from anytpu.chip.page.figures import CAUSES, cycles_by_cause, cycles_of, dominating
from anytpu.chip.page.layers import ProgramLayer
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.text import idle_sentences, shape
from anytpu.chip.page.time_plots import memory_map
from anytpu.chip.quantized.summary import Summary
from anytpu.chip.timing.record import Timing
from anytpu.report.drawing import svg
from anytpu.report.html import Markup, bar_of, element, joined, legend, remark, section, stacked, table
from anytpu.report.wording import percent, plural

_MAX_ROWS, _MAX_HISTOGRAMS = 400, 60


def causes(timing: Timing) -> Markup:
    """Return the counters: a bar, a table with the rows of the paper's, the layers."""
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
        element("h3", "Counters"),
        _counters(timing),
        svg.figure(pictures.cycles_by_layer(timing), pictures.cycles_by_layer(timing, narrow=True)),
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


def layer_table(layers: Sequence[ProgramLayer], timing: Timing) -> Markup:
    """Return the table of layers: kind, placement, predicted time."""
    if not layers:
        return joined()
    longest = max([cycles_of(part) for part in timing.parts], default=0.0) or 1.0
    titles = ("layer", "result", "MACs", "weights", "passes", "array used", "predicted cycles")
    rows = [_layer_row(layer, index, timing, longest) for index, layer in enumerate(layers[:_MAX_ROWS])]
    more = len(layers) - _MAX_ROWS
    on_host = sum(layer.on_host for layer in layers)
    shown = table(titles, rows, "layers", numbers=(2, 3, 4, 5))
    return section(
        "layers",
        "Layers",
        f"{len(layers) - on_host} on the chip, {on_host} on the host",
        remark(
            "Passes: how often a tile of weights goes through the array, for the whole batch. Array used: which part "
            "of the multiply-adds that the array can do in these passes the model asks for. A packed pass puts several "
            "positions of a kernel side by side in the array's rows."
        ),
        element("div", shown, class_="scroll", tabindex=0, role="region", aria_label="Layers"),
        remark(f"{plural(more, 'more layer')} not shown.") if more > 0 else None,
    )


def _layer_row(layer: ProgramLayer, index: int, timing: Timing, longest: float) -> tuple[object, ...]:
    flag = element("span", "on the host", class_="flag bad") if layer.on_host else None
    name = joined(element("span", layer.title, class_="name"), flag, element("small", layer.kind))
    note = element("small", layer.note) if layer.note else None
    cells = (
        joined(name, note),
        shape(layer.shape),
        units.format_count(layer.macs) if layer.macs else "",
        units.format_bytes(layer.weight_bytes) if layer.weight_bytes else "",
        joined(f"{layer.passes:,}", element("small", layer.way) if layer.way else None) if layer.passes else "",
        percent(layer.utilisation) if layer.passes else "",
    )
    part = timing.parts[index] if index < len(timing.parts) else None
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
        remark(
            "Each disc is a layer, as large as it is long. The axis counts multiply-adds a byte of weights, as the "
            "paper does, and the height counts two operations a multiply-add. Whose weights came while an earlier "
            "layer was at work may lie above the slope."
        ),
        element("figure", svg.either(drawing, pictures.roofline(timing, narrow=True))),
        legend([(cause.colour, f"mostly {cause.name}") for cause in CAUSES]),
        remark(f"Peak {figures.format_tops(timing.design.peak_ops_per_s)}, predicted rates."),
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
        remark(
            "Each rectangle is a tensor: from when to when it is held, and at which addresses. Point at one for its "
            "name. Rows are padded to 32 bytes."
        ),
        element("figure", svg.either(drawing, memory_map(page.timing, page.image, narrow=True))),
    )


def quality(page: ChipPage) -> Markup:
    """Return the section on the quantization of the model: sizes before and after, weights, the noise of each layer."""
    if page.network is None:
        return joined()
    bits = f"weights of 8 bits, activations of {page.summary.bits}" if page.summary else "weights of 8 bits"
    return section(
        "quantization",
        "Quantization",
        bits,
        remark(_quantized(page.summary)),
        _histograms(page),
        svg.figure(pictures.noise_by_layer(page.layers), pictures.noise_by_layer(page.layers, narrow=True)),
        svg.figure(pictures.weights_by_layer(page.layers), pictures.weights_by_layer(page.layers, narrow=True)),
    )


def _quantized(summary: Summary | None) -> str:
    if summary is None:
        return "The program was loaded from a file, which has no record of its error against the float32 model."
    outputs = ", ".join(figures.format_decibel(ratio_db) for ratio_db in summary.output_sqnr_db)
    before, after = units.format_bytes(summary.float_bytes), units.format_bytes(summary.quantized_bytes)
    return (
        f"Weights take {before} as float32 and {after} as integers with their scales. Ranges were calibrated on "
        f"{summary.examples:,} examples. Against the float32 model, on {summary.compared:,} of them, the "
        f"signal-to-quantization-noise ratio of the outputs is {outputs}. 6 dB are one bit."
    )


def _histograms(page: ChipPage) -> Markup:
    """Return a histogram per layer. The script shows the selected one; without a script the largest layer is shown."""
    nodes = pictures.layers_with_weights(page.network)[:_MAX_HISTOGRAMS]
    if not nodes:
        return joined()
    options = [element("option", node.layer or node.name, value=index) for index, node in enumerate(nodes)]
    drawn = [
        element("div", svg.inline(pictures.histogram(node)), data_histogram=index, hidden="hidden" if index else None)
        for index, node in enumerate(nodes)
    ]
    choice = element("figcaption", element("label", "Weights as integers of ", element("select", *options)))
    return element("figure", choice, *drawn, id="weights")


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
    return element("footer", element("p", element("strong", "Time model. "), said), element("p", source))
