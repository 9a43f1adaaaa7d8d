"""The details of one system of a plan in the terminal: use of time and memory, advice, evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from anytpu import units
from anytpu.planning.page import phrases
from anytpu.planning.page.shares import kind_shares, layer_shares, like_ops
from anytpu.planning.records import KINDS, Advice, Buffer, MemoryUse, Plan, Prediction, StepTime
from anytpu.report.terminal import bar, hang

_COLOURS = dict(zip(KINDS, ("blue", "cyan", "yellow", "red", "magenta", "green", "white", "bright_black"), strict=True))
_SOURCE_WIDTH = 20
_MIN_SHARE = 0.001
"""Minimum share of a step from which a kind of operations is explained."""


def detail_lines(prediction: Prediction, width: int = 80, brief: bool = False) -> Iterator[Text]:
    """Yield the lines on one system.

    Args:
        prediction: its prediction.
        width: columns of the terminal.
        brief: show the main points only, for a plan of several systems.
    """
    most = 3 if brief else 10
    timed = prediction.time is not None and not prediction.is_floor
    if prediction.time is not None and timed and brief:
        yield from _in_words(prediction.time, most, width)
    elif prediction.time is not None and timed:
        yield from _where(prediction.time, width)
        yield from _layers(prediction.time, most, width)
        yield from _ops(prediction, most, width)
    if prediction.memory is not None:
        yield from _parts(prediction.memory, width, brief)
    if prediction.memory is not None and (not brief or not prediction.fits):
        yield from _buffers(prediction, most, width)
    yield from _advice(prediction.advice, width, brief)
    if prediction.time is not None:
        yield from _listed("not priced, or only in part", prediction.time.unpriced, width)
        yield from _listed("evidence", prediction.time.evidence[: 2 if brief else None], width)


def _where(time: StepTime, width: int) -> Iterator[Text]:
    shares = kind_shares(time)
    for kind, share, time_s in shares:
        line = Text(f"  {phrases.KIND_NAMES[kind]:<16}")
        line.append(bar(share, width - 42), _COLOURS[kind])
        yield line.append(f"  {phrases.percent(share)}  {units.format_seconds(time_s)}")
    yield from _hung(
        "  ", phrases.kind_meanings(kind for kind, share, _ in shares if share >= _MIN_SHARE), width, "dim"
    )


def _in_words(time: StepTime, most: int, width: int) -> Iterator[Text]:
    """Yield the use of time as two sentences."""
    kinds = ", ".join(f"{phrases.percent(share)} {phrases.KIND_NAMES[kind]}" for kind, share, _ in kind_shares(time))
    layers = ", ".join(
        f"{layer} {phrases.percent(share)}{f' ({source})' if source else ''}"
        for layer, source, share, _ in layer_shares(time)[:most]
    )
    for start, words in (("  time     ", kinds), ("  longest  ", layers)):
        # A no-break space keeps a percent sign with its number.
        for line in hang(start, phrases.one_line(words).replace(" %", "\u00a0%"), width):
            yield Text(line.replace("\u00a0", " "))


def named_kinds(plan: Plan) -> list[str]:
    """Return the meanings of the operation kinds once, for a plan of several systems; [] for a single system."""
    times = [
        prediction.time for prediction in plan.predictions if prediction.time is not None and not prediction.is_floor
    ]
    named = {kind for time in times for kind, share, _ in kind_shares(time) if share >= _MIN_SHARE}
    return [phrases.kind_meanings(kind for kind in KINDS if kind in named)] if named and len(plan) > 1 else []


def _layers(time: StepTime, most: int, width: int) -> Iterator[Text]:
    rows = layer_shares(time)
    if len(rows) < 2:
        return
    yield Text("")
    yield _heading("longest layers", width)
    for layer, source, share, time_s in rows[:most]:
        yield _row(layer, source, phrases.percent(share), units.format_seconds(time_s), width)
    if len(rows) > most:
        yield Text(f"  and {len(rows) - most} more", "dim")


def _ops(prediction: Prediction, most: int, width: int) -> Iterator[Text]:
    ops = prediction.time_by_op
    total_s = sum(op.time_s for op in ops) or 1.0
    yield Text("")
    yield _heading("longest operations", width)
    for name, op in like_ops(ops)[:most]:
        label = f"{name}  {phrases.op_label(op)}" if op.layer else name
        yield _row(label, op.source, phrases.percent(op.time_s / total_s), units.format_seconds(op.time_s), width)


def _parts(memory: MemoryUse, width: int, brief: bool) -> Iterator[Text]:
    """Yield the peak by kind of arrays: a bar for each, or a sentence."""
    sizes = [(phrases.PART_NAMES[part.kind], part.bytes) for part in memory.parts]
    if brief and sizes:
        words = ", ".join(f"{name} {units.format_bytes(size)}" for name, size in sizes)
        yield from (Text(line) for line in hang("  memory   ", words, width))
        return
    if sizes:
        yield Text("")
        yield _heading("memory of a device at the peak", width)
    for name, size in sizes:
        share = size / max(memory.peak_bytes, 1)
        line = Text(f"  {name:<16}")
        line.append(bar(share, width - 42), "cyan")
        yield line.append(f"  {phrases.percent(share)}  {units.format_bytes(size)}")


def _buffers(prediction: Prediction, most: int, width: int) -> Iterator[Text]:
    memory = prediction.memory
    if memory is None or not memory.buffers:
        return
    yield Text("")
    yield _heading("largest buffers of a device, with the factor of their padding", width)
    for buffer in memory.buffers[:most]:
        label, size = _named(buffer, width), units.format_bytes(buffer.bytes)
        yield _row(label, buffer.source, phrases.padding(buffer), size, width)
    peak, limit, waste = map(units.format_bytes, (memory.peak_bytes, memory.limit_bytes, memory.padding_waste_bytes))
    said = f"{peak} at the peak, of {limit}; padding wastes {waste}."
    yield from _hung("  ", f"at least {peak}, of {limit}." if prediction.is_floor else said, width)


def _advice(advice: Sequence[Advice], width: int, brief: bool) -> Iterator[Text]:
    if advice:
        yield Text("")
        yield _heading("advice", width)
    for piece in advice:
        yield from _hung("  > ", piece.text, width, "bold")
        if not brief:
            yield from _hung("    ", piece.evidence, width)
        if gain_sentence(piece):
            yield from _hung("    ", gain_sentence(piece), width, "green")


def gain_sentence(piece: Advice) -> str:
    """Return a sentence on the gain of a change, and whether it was compiled or estimated; "" if it is not known.

    Example:
        >>> gain_sentence(Advice("batch", "Raise it.", "It is small.", "batch_size=2048", 0.12, 1.18))
        'Tried with batch_size=2048: 120 ms a step, 1.18 times the examples a second.'
    """
    parts = [f"{units.format_seconds(piece.step_s)} a step"] if piece.step_s is not None else []
    if piece.gain is not None:
        parts.append(f"{_times(piece.gain)} times the examples a second")
    if not parts:
        return ""
    return f"{f'Tried with {piece.tried}' if piece.tried else 'Estimated, not compiled'}: {', '.join(parts)}."


def _times(gain: float) -> str:
    return f"{gain:,.0f}" if gain >= 99.5 else f"{gain:.3g}"


def _listed(title: str, sentences: Sequence[str], width: int) -> Iterator[Text]:
    if sentences:
        yield Text("")
        yield _heading(title, width)
    for sentence in sentences:
        yield from _hung("  - ", sentence, width)


def _heading(title: str, width: int) -> Text:
    return Text(f"  {title}"[:width], "bold")


def _row(label: str, source: str, share: str, amount: str, width: int) -> Text:
    """Return a line of a list: name, line of the user's program, share, amount."""
    room = _room(width)
    line = Text(f"  {_shortened(label, room):<{room}}")
    line.append(f"  {_shortened(source, _SOURCE_WIDTH, from_left=True):<{_SOURCE_WIDTH}}", "dim")
    return line.append(f"{share:>8}{amount:>10}")


def _room(width: int) -> int:
    return width - 2 - _SOURCE_WIDTH - 2 - 8 - 10


def _named(buffer: Buffer, width: int) -> str:
    """Return a buffer's name and its full shape; a long name is cut in the middle."""
    name, shape = phrases.one_line(buffer.name), phrases.one_line(buffer.shape)
    room = max(_room(width) - len(shape) - 1, 12)
    if len(name) > room:
        front = (room - 3) // 2
        name = f"{name[:front]}...{name[len(name) - (room - 3 - front) :]}"
    return f"{name} {shape}"


def _shortened(text: str, width: int, from_left: bool = False) -> str:
    flat = phrases.one_line(text)
    if len(flat) <= width:
        return flat
    return f"...{flat[-(width - 3) :]}" if from_left else f"{flat[: width - 3]}..."


def _hung(start: str, text: str, width: int, style: str = "") -> Iterator[Text]:
    for line in hang(start, phrases.one_line(text), width):
        yield Text(line, style)
