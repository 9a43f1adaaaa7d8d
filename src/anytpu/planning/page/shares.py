"""Shares of a step by kind and layer, and of the memory by use, each with the same colour in every plot and table.

Rule: shares are relative to the sum of the operations. The calibration of a chip may correct that sum to another step
time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from anytpu.planning.records import KINDS, NO_LAYER, Kind, MemoryUse, OpTime, StepTime
from anytpu.report.drawing.shapes import SERIES

_NUMBER = re.compile(r"(\.\d+)+$")
KIND_COLOURS = dict(zip(KINDS, SERIES, strict=True))
"""The colour of each kind of operation."""
_USE_COLOURS = {"temporary": "c0", "batch": "c1", "state": "c2", "output": "c4", "code": "c7", "peak": "c0"}
_PART_COLOURS = {
    "weights": "c2",
    "frozen": "c5",
    "slots": "c3",
    "cache": "c2",
    "state": "c6",
    "gradients": "c4",
    "activations": "c0",
}


def kind_shares(time: StepTime) -> list[tuple[Kind, float, float]]:
    """Return (kind, share, seconds) for each kind that takes time, in the order of `KINDS`."""
    seconds = time.by(lambda op: op.kind)
    total_s = sum(seconds.values()) or 1.0
    return [(kind, seconds[kind] / total_s, seconds[kind]) for kind in KINDS if seconds.get(kind, 0.0) > 0]


def layer_shares(time: StepTime) -> list[tuple[str, str, float, float]]:
    """Return (layer, a source line of it, share, seconds), the longest first.

    The time of the host and the input pipeline belongs to no layer; it is shown by kind.
    """
    seconds = dataclasses.replace(time, ops=_on_device(time)).by(lambda op: op.layer)
    total_s = sum(op.time_s for op in time.ops) or 1.0
    sources = {op.layer: op.source for op in reversed(time.ops) if op.layer and op.source}
    return [(layer or NO_LAYER, sources.get(layer, ""), time_s / total_s, time_s) for layer, time_s in seconds.items()]


def parts_of_layer(time: StepTime, layer: str) -> list[tuple[str, float]]:
    """Return (colour, seconds) of each kind of operation of one layer, in the order of `KINDS`."""
    own = [op for op in _on_device(time) if (op.layer or NO_LAYER) == layer]
    sums = [(KIND_COLOURS[kind], sum(op.time_s for op in own if op.kind == kind)) for kind in KINDS]
    return [(colour, time_s) for colour, time_s in sums if time_s > 0]


def _on_device(time: StepTime) -> tuple[OpTime, ...]:
    return tuple(op for op in time.ops if op.kind not in ("host", "input"))


def use_shares(memory: MemoryUse) -> list[tuple[str, str, int]]:
    """Return the peak as (colour, kind of its arrays, bytes).

    Without parts: by the use of the listed buffers; the rest of the peak is "other". If the buffers add up to more than
    the peak, they do not all exist at the same time. Then the result is the whole peak as "peak".
    """
    if memory.parts:
        colours = _USE_COLOURS | _PART_COLOURS
        return [(colours[part.kind], part.kind, part.bytes) for part in memory.parts]
    sums: dict[str, int] = {}
    for buffer in memory.buffers:
        sums[buffer.use] = sums.get(buffer.use, 0) + buffer.bytes
    rest = memory.peak_bytes - sum(sums.values())
    if rest < 0 or not sums:
        sums, rest = {"peak": memory.peak_bytes}, 0
    shares = {**sums, "other": rest} if rest else sums
    return [(_USE_COLOURS.get(use, "c6"), use, size_bytes) for use, size_bytes in shares.items()]


def like_ops(ops: Sequence[OpTime]) -> list[tuple[str, OpTime]]:
    """Return operations as (name, sum), the longest first; those that differ only in the compiler's suffix are merged.

    Example:
        >>> like_ops([OpTime("copy.3", "copy", "memory", 1.0), OpTime("copy.4", "copy", "memory", 2.0)])[0][0]
        '2 x copy'
    """
    groups: dict[tuple[object, ...], list[OpTime]] = {}
    for op in ops:
        key = (_NUMBER.sub("", op.name), op.opcode, op.layer, op.source, op.is_backward)
        groups.setdefault(key, []).append(op)
    sums = [
        (
            each[0].name if len(each) == 1 else f"{len(each):,} x {_NUMBER.sub('', each[0].name)}",
            dataclasses.replace(each[0], time_s=sum(op.time_s for op in each)),
        )
        for each in groups.values()
    ]
    return sorted(sums, key=lambda pair: -pair[1].time_s)
