"""The section of a page on layers: their placement and predicted time."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu import units
from anytpu.chip.timing.record import Timing
from anytpu.report.chip.causes import CAUSES, cycles_by_cause, cycles_of, dominating
from anytpu.report.chip.layers import ProgramLayer
from anytpu.report.chip.program_lines import shape
from anytpu.report.web.markup import Markup, element, joined
from anytpu.report.web.table import table
from anytpu.report.wording import percent, plural

_MAX_ROWS = 400


def layer_table(layers: Sequence[ProgramLayer], timing: Timing) -> Markup:
    """Return the table of layers: kind, placement, predicted time."""
    if not layers:
        return joined()
    longest = max([cycles_of(part) for part in timing.parts], default=0.0) or 1.0
    titles = ("layer", "result", "MACs", "weights", "passes", "array used", "predicted cycles")
    rows = [_row(layer, index, timing, longest) for index, layer in enumerate(layers[:_MAX_ROWS])]
    more = len(layers) - _MAX_ROWS
    on_host = sum(layer.on_host for layer in layers)
    where = f"{len(layers) - on_host} on the chip, {on_host} on the host"
    return element(
        "section",
        element("h2", "Layers", element("small", where)),
        element(
            "p",
            "Passes: how often a tile of weights goes through the array, for the whole batch. Array used: which part "
            "of the multiply-adds that the array can do in these passes the model asks for. A packed pass puts several "
            "positions of a kernel side by side in the array's rows.",
            class_="remark",
        ),
        element(
            "div",
            table(titles, rows, "layers", numbers=(2, 3, 4, 5)),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label="Layers",
        ),
        element("p", f"{plural(more, 'more layer')} not shown.", class_="remark") if more > 0 else None,
        id="layers",
    )


def _row(layer: ProgramLayer, index: int, timing: Timing, longest: float) -> tuple[object, ...]:
    part = timing.parts[index] if index < len(timing.parts) else None
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
    if part is None or not cycles_of(part):
        return (*cells, "")
    bar = [
        element("i", class_=f"back-{cause.colour}", style=f"width:{100 * cycles / longest:.2f}%")
        for cause, cycles in zip(CAUSES, cycles_by_cause(part), strict=True)
        if cycles > 0
    ]
    said = units.format_count(cycles_of(part))
    share = percent(cycles_of(part) / timing.cycles if timing.cycles else 0.0)
    why = element("small", f"{share}, mostly {dominating(part).name}")
    timed = joined(element("b", said), why, element("span", *bar, class_="bar"))
    return (*cells, timed)
