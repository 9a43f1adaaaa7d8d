"""The content of the report of a plan: its texts, tables and lists, in their order.

Idea: a report is a sequence of blocks, made once. `terminal` prints them and `page` writes them as HTML.

Rule: every table has one row per system. A terminal leaves out the last columns for which it has no room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anytpu import units
from anytpu.planning.page import costs, host_loads, lists, phrases
from anytpu.planning.page.lists import ListRow
from anytpu.planning.page.pictures import common_drawings, roofline
from anytpu.planning.page.sweeps import curve_tables
from anytpu.planning.page.text_table import TextTable
from anytpu.planning.records import Advice, MemoryUse, Plan, Prediction, StepTime
from anytpu.report.drawing.shapes import Drawing


class Sentence(NamedTuple):
    """A paragraph.

    Attributes:
        text: the text.
        start: what it is about, such as the names of systems, or "".
        style: "bold", "dim", "predicted", "warning", or "".
    """

    text: str
    start: str = ""
    style: str = ""


class Named(NamedTuple):
    """A list of sentences under a title.

    Attributes:
        title: the title.
        sentences: the items: each a sentence and those that belong to it.
        word: word before the items in a short report, which has no title.
        most: maximum number of items in a short report.
    """

    title: str
    sentences: Sequence[Sequence[Sentence]]
    word: str
    most: int = 99


class Listed(NamedTuple):
    """A list of amounts.

    Attributes:
        title: the title.
        rows: the rows, the largest first.
        word: word before the names in a short report, which has no list; "": it has the list.
        is_drawn: whether a terminal draws a bar for each row.
        remark: a sentence below, or "".
    """

    title: str
    rows: Sequence[ListRow]
    word: str = ""
    is_drawn: bool = False
    remark: str = ""


class Tabled(NamedTuple):
    """A table.

    Attributes:
        title: the title, or "".
        table: the table.
        class_: its class on a page.
        narrow: another form for a terminal, or None.
        is_folded: whether a page shows it closed.
    """

    title: str
    table: TextTable
    class_: str
    narrow: TextTable | None = None
    is_folded: bool = False


class Plots(NamedTuple):
    """Drawings, which only a page shows."""

    drawings: Sequence[Drawing]


Block = Sentence | Named | Listed | Tabled | Plots
"""A part of a report."""


def head(plan: Plan) -> Iterator[Block]:
    """Yield what compares the systems of a plan."""
    yield Sentence(phrases.subtitle(plan))
    yield Sentence(f"{phrases.NOT_MEASURED[:-1]}; by {phrases.predictors(plan)}.", style="predicted")
    yield Tabled("", _speeds(plan), "systems")
    if (costing := costs.table(plan)) is not None:
        yield Tabled("", costing, "costs")
    if wanted := costs.wanted(plan):
        yield Sentence(wanted)
    chosen = costs.choice(plan) if len(plan) > 1 else []
    yield from (Sentence(f"{each.target.name}, {why}", title, "bold") for title, each, why in chosen)
    if len(plan) and not any(prediction.fits for prediction in plan):
        yield Sentence("it fits on none of them" if len(plan) > 1 else "it does not fit", style="warning")
    yield from (Sentence(sentence, names) for names, sentence in _remarks(plan))
    if (held := costs.holding_table(plan)) is not None:
        yield Sentence(costs.HOLDING)
        yield Tabled("", held, "costs")
    yield Plots(common_drawings(plan))


def tail(plan: Plan) -> Iterator[Block]:
    """Yield what follows the systems of a plan: its curves, its hosts, the meanings of words, the sources."""
    yield from (Tabled(title, table, "sweep", is_folded=True) for title, table in curve_tables(plan))
    if (hosts := host_loads.table(plan)) is not None:
        yield Tabled("load of one host", hosts, "hosts", host_loads.narrow_table(plan))
        yield Sentence(phrases.HOSTS, style="dim")
    said = (
        phrases.ACTIVATIONS if len(plan) > 1 and _activations_differ(plan) else "",
        phrases.MFU_FORMULA,
        costs.run_meaning(plan),
        costs.price_source(plan),
        phrases.RENTING,
    )
    yield from (Sentence(sentence, style="dim") for sentence in said if sentence)


def _activations_differ(plan: Plan) -> bool:
    """Return whether the activations of a device differ by more than ten times between the systems."""
    sizes = [each.memory.bytes_of("activations") for each in plan if each.memory and not each.is_floor]
    return len(sizes) > 1 and max(sizes) > 10 * min(sizes)


def system(prediction: Prediction, is_full: bool) -> Iterator[Block]:
    """Yield what is said of one system.

    Args:
        prediction: its prediction.
        is_full: whether all is said: on a page, and in a terminal for the only system of a plan.
    """
    time, memory = prediction.time, prediction.memory
    if time is not None and not prediction.is_floor:
        means = lists.meanings(time) if is_full else ""
        yield Listed("where the time goes", lists.kinds(time), "time", True, f"{_correction(time)}{means}")
        layers = lists.layers(time)
        if len(layers) > 1:
            yield Listed("longest layers", layers, "longest")
        yield Plots([drawing] if (drawing := roofline(prediction)) else [])
        if is_full:
            yield Listed("exchanges between devices, with the bytes that a device receives", lists.exchanges(time))
            yield Listed("longest operations", lists.operations(prediction.time_by_op))
    if memory is not None and memory.parts:
        remark = "" if prediction.is_floor else phrases.ACTIVATIONS
        yield Listed("memory of a device at the peak", lists.parts(memory), "memory", True, remark)
    if memory is not None and memory.buffers and (is_full or not prediction.fits):
        title = "largest buffers of a device, with the factor of their padding"
        yield Listed(title, lists.buffers(memory), remark=_memory(prediction, memory))
    yield Named("advice", [list(_advice(piece, is_full)) for piece in prediction.advice], "advice")
    if time is not None:
        yield Named("not priced, or only in part", [[Sentence(text)] for text in time.unpriced], "unpriced", 1)
        most = 1 if prediction.is_floor else 0
        yield Named("evidence", [[Sentence(text)] for text in time.evidence], "evidence", most)


def _speeds(plan: Plan) -> TextTable:
    titles = ("system", "step", "between", "examples/s", "MFU", "memory", "of a device", "slice", "remarks")
    rows = [
        (
            prediction.target.name,
            phrases.at_least(prediction, phrases.seconds(prediction.step_s)),
            phrases.interval(prediction.interval_s),
            phrases.most(prediction, phrases.rate(prediction.examples_per_s)),
            phrases.percent(prediction.mfu),
            phrases.least(prediction, phrases.percent(phrases.memory_share(prediction.memory))),
            phrases.used(prediction.memory) if prediction.memory else phrases.UNKNOWN,
            f"{phrases.devices(prediction)} ({prediction.target.compiler_name})",
            ", ".join(_flags(prediction)),
        )
        for prediction in plan.predictions
    ]
    faults = [index for index, prediction in enumerate(plan.predictions) if not prediction.fits]
    return TextTable(titles, rows, ("system", "of a device", "slice", "remarks"), faults=faults)


def _flags(prediction: Prediction) -> list[str]:
    said = [] if prediction.fits else ["does not fit"]
    words = {"extrapolated": ["extrapolated"], "floor": ["a lower bound, not a forecast"]}
    return [*said, *words.get(prediction.basis, []), *costs.flags(prediction.cost)]


def _remarks(plan: Plan) -> list[tuple[str, str]]:
    """Return the remarks on the tables, each as (systems, sentence)."""
    said: dict[str, list[str]] = {}
    for prediction in plan.predictions:
        largest = prediction.largest_batch
        fitting = "" if largest is None else f"the largest batch that fits is {largest:,}."
        sentences = [phrases.layout(prediction), phrases.shortage(prediction) or fitting, *prediction.notes]
        for sentence in filter(None, sentences):
            said.setdefault(sentence, []).append(prediction.target.name)
    return [*((", ".join(names), sentence) for sentence, names in said.items()), *costs.price_remarks(plan)]


def _correction(time: StepTime) -> str:
    total_s = sum(op.time_s for op in time.ops)
    if not total_s or abs(time.step_s / total_s - 1) < 0.005:
        return ""
    return (
        f"The operations add up to {phrases.seconds(total_s)}; calibration with published measurements of this chip "
        f"corrects this to {phrases.seconds(time.step_s)}. "
    )


def _memory(prediction: Prediction, memory: MemoryUse) -> str:
    peak, limit, waste = map(units.format_bytes, (memory.peak_bytes, memory.limit_bytes, memory.padding_waste_bytes))
    if prediction.is_floor:
        return f"at least {peak}, of {limit}."
    reuse = units.format_bytes(memory.upper_bound_bytes) if memory.upper_bound_bytes else ""
    without = f" Without reuse of memory between buffers: {reuse}." if reuse else ""
    return f"{peak} at the peak, of {limit}; padding wastes {waste}.{without}"


def _advice(piece: Advice, is_full: bool) -> Iterator[Sentence]:
    yield Sentence(piece.text, style="bold")
    if is_full:
        yield Sentence(piece.evidence)
    if gain := gain_sentence(piece):
        yield Sentence(gain)


def gain_sentence(piece: Advice) -> str:
    """Return a sentence on the gain of a change, and whether it was compiled or estimated; "" if it is not known.

    Example:
        >>> gain_sentence(Advice("batch", "Raise it.", "It is small.", "batch_size=2048", 0.12, 1.18))
        'Tried with batch_size=2048: 120 ms a step, 1.18 times the examples a second.'
    """
    parts = [f"{units.format_seconds(piece.step_s)} a step"] if piece.step_s is not None else []
    if piece.gain is not None:
        times = f"{piece.gain:,.0f}" if piece.gain >= 99.5 else f"{piece.gain:.3g}"
        parts.append(f"{times} times the examples a second")
    if not parts:
        return ""
    return f"{f'Tried with {piece.tried}' if piece.tried else 'Estimated, not compiled'}: {', '.join(parts)}."
