"""The events of a run as a page's timeline draws them: few enough, in a few bytes each.

Idea: a picture cannot show a hundred thousand events side by side. Where there are more than a page should carry, short
ones that follow each other closely become one strip, which says how many it stands for; long ones stay as they are.

Rule: strips of a lane never overlap and keep their order. Cycles are whole numbers here; the trace has them exactly.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from anytpu.chip.timing.record import Timing
from anytpu.report.chip.lanes import LANES, lane_of

MOST = 60_000
"""Strips that a page carries at most."""

_BUCKET, _PATIENCE = 8.0, 6
_WORD = 2**32 - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Strips:
    """The strips of a lane, each an element of all arrays.

    Attributes:
        start, stop: cycles.
        kind: an index into the kinds of the run.
        tag: part of the program; -1 for none or several.
        instruction: the first instruction; -1 for none.
        count: events that it stands for.
    """

    start: np.ndarray
    stop: np.ndarray
    kind: np.ndarray
    tag: np.ndarray
    instruction: np.ndarray
    count: np.ndarray


def kinds_of(timing: Timing) -> list[str]:
    """Return the kinds of events of a run, each once, sorted."""
    return sorted({event.kind for event in timing.events})


def strips(timing: Timing, most: int = MOST) -> list[Strips]:
    """Return the strips of each lane, at most `most` of all lanes together."""
    kinds = {kind: number for number, kind in enumerate(kinds_of(timing))}
    lanes = [_strips(timing, number, kinds) for number in range(len(LANES))]
    resolution = max(timing.cycles, 1.0) / most
    rounds = 0
    while sum(len(lane.start) for lane in lanes) > max(most, len(LANES)):
        # Layers are kept apart as long as that is possible.
        lanes = [_merged(lane, resolution, len(kinds), across_parts=rounds >= _PATIENCE) for lane in lanes]
        resolution, rounds = 2 * resolution, rounds + 1
    return lanes


def packed(lanes: Sequence[Strips], cycles: float) -> dict[str, Any]:
    """Return strips as what a script reads: base64 of little-endian arrays, and the cycles that a number counts.

    Args:
        lanes: the strips.
        cycles: of the whole run; so long a one that 32 bits cannot count them is counted in larger steps.
    """
    step = max(1.0, cycles / _WORD)
    return {"step": step, "lanes": [_packed(one.name, lane, step) for one, lane in zip(LANES, lanes, strict=True)]}


def _packed(name: str, lane: Strips, step: float) -> dict[str, Any]:
    start, stop = np.round(lane.start / step), np.round(lane.stop / step)
    arrays = {
        "start": start.astype("<u4"),
        "length": (stop - start).astype("<u4"),
        "kind": lane.kind.astype("<u1"),
        "tag": lane.tag.astype("<i2"),
        "instruction": lane.instruction.astype("<i4"),
        "count": lane.count.astype("<u4"),
    }
    return {"name": name, **{key: base64.b64encode(array.tobytes()).decode() for key, array in arrays.items()}}


def _strips(timing: Timing, number: int, kinds: dict[str, int]) -> Strips:
    own = sorted(
        (one for one in timing.events if lane_of(one) == number), key=lambda one: (one.start_cycles, one.stop_cycles)
    )
    return Strips(
        np.array([one.start_cycles for one in own], np.float64),
        np.array([one.stop_cycles for one in own], np.float64),
        np.array([kinds[one.kind] for one in own], np.int64),
        np.array([one.tag for one in own], np.int64),
        np.array([one.instruction for one in own], np.int64),
        np.ones(len(own), np.int64),
    )


def _merged(lane: Strips, resolution: float, kinds: int, across_parts: bool) -> Strips:
    """Return strips of which those shorter than a resolution are joined to what follows them as closely."""
    if len(lane.start) < 2:
        return lane
    is_short = lane.stop - lane.start < resolution
    bucket = np.floor(lane.start / (_BUCKET * resolution))
    joins = is_short[1:] & is_short[:-1] & (lane.start[1:] - lane.stop[:-1] < resolution)
    joins &= bucket[1:] == bucket[:-1]
    if not across_parts:
        joins &= lane.tag[1:] == lane.tag[:-1]
    first = np.concatenate([[0], np.flatnonzero(~joins) + 1])
    # What a strip did longest is its kind.
    busy = np.zeros((kinds, len(lane.start)))
    busy[lane.kind, np.arange(len(lane.start))] = lane.stop - lane.start
    return Strips(
        lane.start[first],
        np.maximum.reduceat(lane.stop, first),
        np.add.reduceat(busy, first, axis=1).argmax(axis=0),
        np.where(np.minimum.reduceat(lane.tag, first) == np.maximum.reduceat(lane.tag, first), lane.tag[first], -1),
        lane.instruction[first],
        np.add.reduceat(lane.count, first),
    )
