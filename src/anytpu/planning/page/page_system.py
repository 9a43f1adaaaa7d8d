"""The section of one system on a page: use of time and memory, advice, evidence."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu import units
from anytpu.planning.page import phrases
from anytpu.planning.page.details import gain_sentence
from anytpu.planning.page.pictures import roofline
from anytpu.planning.page.shares import KIND_COLOURS, kind_shares, layer_shares, parts_of_layer, use_shares
from anytpu.planning.records import Advice, Buffer, OpTime, Prediction, StepTime
from anytpu.report.drawing import svg
from anytpu.report.html import Markup, bar_of, element, joined, remark, stacked, table

_MAX_OPEN_ROWS, _MAX_ROWS = 12, 400


def system(prediction: Prediction, folded: bool) -> Markup:
    """Return the section of one system.

    Args:
        prediction: its prediction.
        folded: whether the section is closed until the reader opens it.
    """
    title = (prediction.target.name, element("small", f"{phrases.devices(prediction)} · {phrases.step(prediction)}"))
    content = joined(
        element("p", f"It {phrases.shortage(prediction)}", class_="warning") if not prediction.fits else None,
        element("p", prediction.memory.said, class_="said")
        if prediction.memory is not None and prediction.memory.said
        else None,
        _advice(prediction.advice),
        _time(prediction) if prediction.time is not None and not prediction.is_floor else None,
        _memory(prediction) if prediction.memory is not None else None,
        _evidence(prediction),
    )
    if folded:
        return element("details", element("summary", *title), content, id=phrases.anchor(prediction))
    return element("section", element("h2", *title), content, id=phrases.anchor(prediction))


def _advice(advice: Sequence[Advice]) -> Markup:
    pieces = [
        element(
            "li",
            element("b", piece.text),
            element("p", piece.evidence),
            element("p", gain_sentence(piece), class_="gain") if gain_sentence(piece) else None,
        )
        for piece in advice
    ]
    return joined(element("h3", "Advice"), element("ul", *pieces, class_="advice")) if pieces else joined()


def _time(prediction: Prediction) -> Markup:
    time = prediction.time
    assert time is not None
    drawing = roofline(prediction)
    return joined(
        element("h3", "Where the time goes"),
        _kinds(time),
        _correction(time),
        element(
            "div",
            _layers(time),
            svg.captioned(drawing),
            class_="pair" if drawing else None,
        ),
        _ops(prediction),
    )


def _kinds(time: StepTime) -> Markup:
    parts = [
        (KIND_COLOURS[kind], share, phrases.KIND_NAMES[kind], f"{phrases.percent(share)}, {phrases.seconds(time_s)}")
        for kind, share, time_s in kind_shares(time)
    ]
    meanings = phrases.kind_meanings(kind for kind, *_ in kind_shares(time))
    return joined(stacked(parts), remark(meanings))


def _correction(time: StepTime) -> Markup | None:
    total_s = sum(op.time_s for op in time.ops)
    if not total_s or abs(time.step_s / total_s - 1) < 0.005:
        return None
    return remark(
        f"The operations add up to {phrases.seconds(total_s)}; calibration with published measurements of this chip "
        f"corrects this to {phrases.seconds(time.step_s)}."
    )


def _layers(time: StepTime) -> Markup:
    rows = layer_shares(time)
    longest_s = (rows[0][3] if rows else 0.0) or 1.0
    cells = [
        (
            _two_lines(layer, source),
            joined(
                element("b", phrases.seconds(time_s)),
                element("small", phrases.percent(share)),
                bar_of(parts_of_layer(time, layer), longest_s),
            ),
        )
        for layer, source, share, time_s in rows[:_MAX_ROWS]
    ]
    return element("div", _folded(("layer", "time"), cells, "layers", "layers", open_rows=8))


def _ops(prediction: Prediction) -> Markup:
    ops = prediction.time_by_op
    total_s = sum(op.time_s for op in ops) or 1.0
    longest_s = (ops[0].time_s if ops else 0.0) or 1.0
    rows = [_op(op, total_s, longest_s) for op in ops[:_MAX_ROWS]]
    titles = ("operation", "layer", "time", "computes", "moves", "bound by", "priced by")
    return _folded(titles, rows, "ops", "operations", numbers=(3, 4), total=len(ops))


def _op(op: OpTime, total_s: float, longest_s: float) -> tuple[object, ...]:
    place = f"{op.source}{f' · {op.count:,} times' if op.count > 1 else ''}".removeprefix(" · ")
    return (
        _two_lines(op.name, phrases.KIND_NAMES[op.kind]),
        _two_lines(phrases.op_label(op) if op.layer else "", place),
        joined(
            element("b", phrases.seconds(op.time_s)),
            element("small", phrases.percent(op.time_s / total_s)),
            bar_of([(KIND_COLOURS[op.kind], op.time_s)], longest_s),
        ),
        units.format_flops(op.flops) if op.flops else "",
        units.format_bytes(op.bytes) if op.bytes else "",
        op.bound,
        op.priced_by,
    )


def _two_lines(first: str, second: str) -> Markup:
    """Return a name and a secondary text on two lines; empty texts are left out."""
    return joined(
        element("span", first, class_="word") if first else None, element("small", second) if second else None
    )


def _memory(prediction: Prediction) -> Markup:
    memory = prediction.memory
    assert memory is not None
    whole = max(memory.peak_bytes, memory.limit_bytes, 1)
    parts = [
        (colour, size / whole, phrases.PART_NAMES.get(use, use), units.format_bytes(size))
        for colour, use, size in use_shares(memory)
    ]
    peak, limit, waste = map(units.format_bytes, (memory.peak_bytes, memory.limit_bytes, memory.padding_waste_bytes))
    said = f"{'At least ' if prediction.is_floor else ''}{peak} at the peak; the compiler lets a device use {limit}."
    if memory.padding_waste_bytes:
        said += f" Padding wastes {waste}."
    if memory.upper_bound_bytes:
        said += f" Without reuse of memory between buffers: {units.format_bytes(memory.upper_bound_bytes)}."
    rows = [_buffer(buffer, max(memory.buffers[0].bytes, 1)) for buffer in memory.buffers[:_MAX_ROWS]]
    listed = _folded(("buffer", "shape and use", "size", "padding"), rows, "buffers", "buffers") if rows else None
    limit_at = 100 * memory.limit_bytes / whole
    return joined(
        element("h3", "Memory of a device"),
        element("div", stacked(parts), element("b", style=f"left:{limit_at:.2f}%"), class_="filled"),
        remark(said),
        listed,
    )


def _buffer(buffer: Buffer, largest_bytes: int) -> tuple[object, ...]:
    needed = 100 * min(buffer.logical_bytes, buffer.bytes) / largest_bytes
    wasted = 100 * buffer.bytes / largest_bytes - needed
    pieces = (
        element("i", class_="back-c0", style=f"width:{needed:.2f}%"),
        element("i", class_="back-c0 waste", style=f"width:{wasted:.2f}%", title="padding") if wasted > 0 else None,
    )
    origin = " · ".join(part for part in (buffer.layer, buffer.source) if part and part != buffer.name)
    return (
        _two_lines(buffer.name, origin),
        _two_lines(buffer.shape, phrases.USE_NAMES[buffer.use]),
        joined(element("b", units.format_bytes(buffer.bytes)), element("span", *pieces, class_="bar")),
        phrases.padding(buffer),
    )


def _evidence(prediction: Prediction) -> Markup:
    time = prediction.time
    compiled = (
        [f"Compilation took {phrases.seconds(prediction.compile_s)}."] if prediction.compile_s is not None else []
    )
    return joined(
        _list("Not priced, or only in part", time.unpriced if time else (), "warning"),
        _list("Evidence", (*(time.evidence if time else ()), f"Predicted by {prediction.predicted_by}.", *compiled)),
        _list("Layout", tuple(filter(None, [phrases.layout(prediction)]))),
        _list("Notes", prediction.notes),
    )


def _list(title: str, sentences: Sequence[str], class_: str = "") -> Markup:
    if not sentences:
        return joined()
    items = [element("li", sentence) for sentence in sentences]
    return joined(element("h3", title), element("ul", *items, class_=class_ or None))


def _folded(
    titles: Sequence[str],
    rows: Sequence[Sequence[object]],
    class_: str,
    noun: str,
    numbers: Sequence[int] = (),
    open_rows: int = _MAX_OPEN_ROWS,
    total: int | None = None,
) -> Markup:
    """Return a table of the first rows, and a closed table of the others."""
    first = table(titles, rows[:open_rows], class_, numbers)
    if len(rows) <= open_rows:
        return first
    total = len(rows) if total is None else total
    kept = f", the first {len(rows) - open_rows} of them" if total > len(rows) else ""
    summary = element("summary", f"{total - open_rows:,} more {noun}{kept}")
    return joined(first, element("details", summary, table(titles, rows[open_rows:], class_, numbers)))
