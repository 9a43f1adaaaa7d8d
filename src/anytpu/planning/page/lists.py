"""The lists of a system: its time by kind, layer and operation, its memory by part and buffer.

Idea: each row is made once. The terminal, the page and the plots show the same names, amounts and colours.

Rule: shares are relative to the sum of the operations. The calibration of a chip may correct that sum to another step
time. The time of the host and of the input pipeline belongs to no layer; it is shown by kind.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from anytpu import units
from anytpu.planning.page import phrases
from anytpu.planning.records import KINDS, NO_LAYER, Kind, MemoryUse, OpTime, StepTime
from anytpu.report.drawing.rows import Row
from anytpu.report.drawing.shapes import SERIES

_NUMBER = re.compile(r"(\.\d+)+$")
_BLOCK = re.compile(r"(.*?)(\d+)((?:/.*)?)")
"""A layer in a block with a number: the number ends a part of the layer's path."""

_REPEATED = 4
"""Minimum number of blocks with the same layer that are one row."""
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


def meanings(time: StepTime) -> str:
    """Return the meanings of the kinds of operations that take some time in a step, or ""."""
    named: list[Kind] = [kind for kind, share, _ in kind_shares(time) if share >= _MIN_SHARE]
    return phrases.kind_meanings(named) if named else ""


def kinds(time: StepTime) -> list[ListRow]:
    """Return the time by kind of operation."""
    return [
        ListRow(phrases.KIND_NAMES[kind], phrases.seconds(time_s), ((time_s, KIND_COLOURS[kind], 1.0),),
                phrases.percent(share))
        for kind, share, time_s in kind_shares(time)
    ]  # fmt: skip


def layers(time: StepTime) -> list[ListRow]:
    """Return the time by layer, the longest first, each by kind of operation; blocks that repeat are one row.

    "decoder_block_0/query" to "decoder_block_25/query" are the row "decoder_block_*/query", with "26 x 168 us".
    """
    named = [op for op in time.ops if op.kind not in ("host", "input")]
    blocks = _repeated_blocks(op.layer for op in named)
    own = [dataclasses.replace(op, layer=_of_block(op.layer, blocks)) for op in named]
    counts = collections.Counter(_of_block(layer, blocks) for layer in {op.layer for op in named})
    total_s = sum(op.time_s for op in time.ops) or 1.0
    sources = {op.layer: op.source for op in reversed(own) if op.layer and op.source}
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
            f"{counts[layer]:,} x {phrases.seconds(time_s / counts[layer])}" if counts[layer] > 1 else "",
            sources.get(layer, ""),
        )
        for layer, time_s in ordered.items()
    ]


def _repeated_blocks(layers: Iterable[str]) -> set[str]:
    """Return the beginning of the names of blocks that repeat: "decoder_block_" of "decoder_block_3/query"."""
    counts = collections.Counter(
        (match[1], match[3]) for layer in set(layers) if (match := _BLOCK.fullmatch(layer)) and match[3]
    )
    return {begin for (begin, _), count in counts.items() if count >= _REPEATED}


def _of_block(layer: str, blocks: Collection[str]) -> str:
    match = _BLOCK.fullmatch(layer)
    return f"{match[1]}*{match[3]}" if match and match[1] in blocks else layer


def operations(ops: Sequence[OpTime]) -> list[ListRow]:
    """Return operations, the longest first; those that differ only in the compiler's suffix are one row."""
    groups: dict[tuple[object, ...], list[OpTime]] = {}
    blocks = _repeated_blocks(op.layer for op in ops)
    for op in ops:
        key = (_NUMBER.sub("", op.name), op.opcode, _of_block(op.layer, blocks), op.source, op.is_backward)
        groups.setdefault(key, []).append(op)
    total_s = sum(op.time_s for op in ops) or 1.0
    sums = [(each, sum(op.time_s for op in each)) for each in groups.values()]
    return [
        ListRow(
            first.name if len(each) == 1 else f"{len(each):,} x {_NUMBER.sub('', first.name)}",
            phrases.seconds(time_s),
            ((time_s, KIND_COLOURS[first.kind], 1.0),),
            phrases.percent(time_s / total_s),
            phrases.op_label(dataclasses.replace(first, layer=_of_block(first.layer, blocks))) if first.layer else "",
            first.source,
            phrases.op_hover(dataclasses.replace(first, time_s=time_s)),
        )
        for each, time_s in sorted(sums, key=lambda pair: -pair[1])
        for first in each[:1]
    ]


def exchanges(time: StepTime) -> list[ListRow]:
    """Return the exchanges between devices by kind and type, the longest first, with the time that is waited for."""
    groups: dict[tuple[str, str], list[OpTime]] = {}
    for op in time.ops:
        if op.collective:
            groups.setdefault((op.collective, op.dtype), []).append(op)
    total_s = sum(op.time_s for op in time.ops) or 1.0
    sums = [(kind, sum(op.time_s for op in each), each) for kind, each in groups.items()]
    return [
        ListRow(
            f"{kind} of {dtype}" if dtype else kind,
            phrases.seconds(time_s),
            ((time_s, KIND_COLOURS["collective"], 1.0),),
            phrases.percent(time_s / total_s),
            f"{sum(op.count for op in each):,} x, {units.format_bytes(sum(op.bytes for op in each))}",
        )
        for (kind, dtype), time_s, each in sorted(sums, key=lambda row: -row[1])
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
