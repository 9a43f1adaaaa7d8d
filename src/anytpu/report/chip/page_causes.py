"""The sections of a page on cycles: the counters of the paper's Table 3, and the time model."""

from __future__ import annotations

from anytpu import units
from anytpu.chip.timing.record import Timing
from anytpu.report.chip import figures
from anytpu.report.chip.causes import CAUSES, cycles_by_cause
from anytpu.report.chip.layer_bars import cycles_by_layer
from anytpu.report.chip.timing_lines import idle_sentences
from anytpu.report.drawing import svg
from anytpu.report.web.markup import Markup, element, joined
from anytpu.report.web.table import table
from anytpu.report.wording import percent


def causes(timing: Timing) -> Markup:
    """Return the counters: a bar, a table with the rows of the paper's, the layers."""
    if not timing.cycles:
        said = [element("p", line) for line in idle_sentences(timing)]
        return element("section", element("h2", "Where the cycles go"), *said, id="cycles")
    total = timing.cycles
    pairs = list(zip(CAUSES, cycles_by_cause(timing), strict=True))
    stack = [
        element("i", class_=f"back-{cause.colour}", style=f"width:{100 * cycles / total:.3f}%", title=cause.name)
        for cause, cycles in pairs
        if cycles > 0
    ]
    legend = [
        element(
            "li", element("i", class_=f"back-{cause.colour}"), cause.name, " ", element("span", percent(cycles / total))
        )
        for cause, cycles in pairs
    ]
    by_layer = cycles_by_layer(timing)
    return element(
        "section",
        element("h2", "Where the cycles go", element("small", figures.format_cycles(timing.cycles))),
        element("p", figures.PREDICTED, class_="remark"),
        element("div", *stack, class_="stack", role="img", aria_label=shares(timing)),
        element("ul", *legend, class_="legend"),
        element("h3", "Counters"),
        _counters(timing),
        element("figure", element("h3", by_layer.title), svg.either(by_layer, cycles_by_layer(timing, narrow=True)))
        if by_layer
        else None,
        id="cycles",
    )


def shares(timing: Timing) -> str:
    """Return the share of each cause in one sentence."""
    pairs = zip(CAUSES, cycles_by_cause(timing), strict=True)
    return ", ".join(f"{cause.name} {percent(cycles / (timing.cycles or 1.0))}" for cause, cycles in pairs)


def _counters(timing: Timing) -> Markup:
    """Return the rows of the paper's Table 3."""
    total = timing.cycles or 1.0
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
        element("p", "Rows 1, 4, 5 and 6 add up to all cycles. ", host, class_="remark"),
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
    return element(
        "footer",
        element("p", element("strong", "Time model. "), said),
        element(
            "p",
            "Sizes and rates are those of the paper (Jouppi et al., In-Datacenter Performance Analysis of a Tensor "
            "Processing Unit, 2017); what it leaves out is chosen, and documented with the time model. Nothing here "
            "was measured on such a chip.",
        ),
    )
