"""The lists of a system: its time by kind, layer and operation, its memory by part and buffer.

Idea: each row is made once. The terminal, the page and the plots show the same names, amounts and colours.

Rule: shares are relative to the sum of the operations. The calibration of a chip may correct that sum to another step
time. The time of the host and of the input pipeline belongs to no layer; it is shown by kind.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anytpu import units
from anytpu.planning.page import phrases
from anytpu.planning.records import KINDS, NO_LAYER, Kind, MemoryUse, OpTime, Plan, StepTime
from anytpu.report.drawing.rows import Row
from anytpu.report.drawing.shapes import SERIES

_NUMBER = re.compile(r"(\.\d+)+$")
KIND_COLOURS = dict(zip(KINDS, SERIES, strict=True))
"""The colour of each kind of operation."""
_PART_COLOURS = {
    "weights": "c2", "frozen": "c5", "slots": "c3", "cache": "c2", "state": "c6", "gradients": "c4",
    "activations": "c0", "temporary": "c0", "batch": "c1", "output": "c4", "code": "c7",
}  # fmt: skip
_MIN_SHARE = 0.001
"""Minimum share of a step from which a kind of operations is explained."""


class ListRow(NamedTuple):
    """A row of a list.

    Attributes:
        name: name of the thing.
        amount: its amount, a text.
        parts: (length, colour, opacity) of each part of its bar.
        share: its share of the whole, a text, or "".
        detail: text after the name, or "".
        source: line of the user's program, or "".
        hover: further numbers, for a page.
    """

    name: str
    amount: str
    parts: tuple[tuple[float, str, float], ...]
    share: str = ""
    detail: str = ""
    source: str = ""
    hover: str = ""

    def to_bar(self) -> Row:
        """Return the row of a plot."""
        name = f"{self.name} {self.detail}" if self.detail else self.name
        return Row(name, self.source, self.share, self.amount, self.parts, self.hover)


def kind_shares(time: StepTime) -> list[tuple[Kind, float, float]]:
    """Return (kind, share, seconds) for each kind that takes time, in the order of `KINDS`."""
    seconds = time.by(lambda op: op.kind)
    total_s = sum(seconds.values()) or 1.0
    return [(kind, seconds[kind] / total_s, seconds[kind]) for kind in KINDS if seconds.get(kind, 0.0) > 0]


def meanings(times: Iterable[StepTime]) -> str:
    """Return the meanings of the kinds of operations that take some time in one of the steps, or ""."""
    named = {kind for time in times for kind, share, _ in kind_shares(time) if share >= _MIN_SHARE}
    return phrases.kind_meanings(kind for kind in KINDS if kind in named) if named else ""


def forecasts(plan: Plan) -> list[StepTime]:
    """Return the times of the systems that are not floors."""
    return [each.time for each in plan.predictions if each.time is not None and not each.is_floor]


def kinds(time: StepTime) -> list[ListRow]:
    """Return the time by kind of operation."""
    return [
        ListRow(phrases.KIND_NAMES[kind], phrases.seconds(time_s), ((time_s, KIND_COLOURS[kind], 1.0),),
                phrases.percent(share))
        for kind, share, time_s in kind_shares(time)
    ]  # fmt: skip


def layers(time: StepTime) -> list[ListRow]:
    """Return the time by layer, the longest first, each by kind of operation."""
    own = [op for op in time.ops if op.kind not in ("host", "input")]
    total_s = sum(op.time_s for op in time.ops) or 1.0
    sources = {op.layer: op.source for op in reversed(time.ops) if op.layer and op.source}
    sums: dict[str, dict[Kind, float]] = {}
    for op in own:
        by_kind = sums.setdefault(op.layer, {})
        by_kind[op.kind] = by_kind.get(op.kind, 0.0) + op.time_s
    ordered = dataclasses.replace(time, ops=tuple(own)).by(lambda op: op.layer)
    return [
        ListRow(
            layer or NO_LAYER,
            phrases.seconds(time_s),
            tuple((sums[layer][kind], KIND_COLOURS[kind], 1.0) for kind in KINDS if sums[layer].get(kind)),
            phrases.percent(time_s / total_s),
            source=sources.get(layer, ""),
        )
        for layer, time_s in ordered.items()
    ]


def operations(ops: Sequence[OpTime]) -> list[ListRow]:
    """Return operations, the longest first; those that differ only in the compiler's suffix are one row."""
    groups: dict[tuple[object, ...], list[OpTime]] = {}
    for op in ops:
        key = (_NUMBER.sub("", op.name), op.opcode, op.layer, op.source, op.is_backward)
        groups.setdefault(key, []).append(op)
    total_s = sum(op.time_s for op in ops) or 1.0
    sums = [(each, sum(op.time_s for op in each)) for each in groups.values()]
    return [
        ListRow(
            first.name if len(each) == 1 else f"{len(each):,} x {_NUMBER.sub('', first.name)}",
            phrases.seconds(time_s),
            ((time_s, KIND_COLOURS[first.kind], 1.0),),
            phrases.percent(time_s / total_s),
            phrases.op_label(first) if first.layer else "",
            first.source,
            phrases.op_hover(dataclasses.replace(first, time_s=time_s)),
        )
        for each, time_s in sorted(sums, key=lambda pair: -pair[1])
        for first in each[:1]
    ]


def parts(memory: MemoryUse) -> list[ListRow]:
    """Return the peak by kind of arrays."""
    return [
        ListRow(phrases.PART_NAMES[part.kind], units.format_bytes(part.bytes),
                ((float(part.bytes), _PART_COLOURS[part.kind], 1.0),),
                phrases.percent(part.bytes / max(memory.peak_bytes, 1)))
        for part in memory.parts
    ]  # fmt: skip


def buffers(memory: MemoryUse) -> list[ListRow]:
    """Return the largest buffers, with their padding in a pale colour."""
    rows = []
    for buffer in memory.buffers:
        needed = min(buffer.logical_bytes, buffer.bytes)
        bar = (float(needed), "c0", 1.0), (float(buffer.bytes - needed), "c0", 0.35)
        hover = " · ".join(filter(None, (buffer.layer, phrases.USE_NAMES[buffer.use])))
        size, padding = units.format_bytes(buffer.bytes), phrases.padding(buffer)
        rows.append(ListRow(buffer.name, size, bar, padding, buffer.shape, buffer.source, hover))
    return rows
