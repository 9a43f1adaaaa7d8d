"""Planes: the layout of a tensor's channels in the lanes of Unified Buffer rows, and views of a part of them.

Idea: a tensor is a list of planes, each a block of rows in position-major order (row (h * width + w) * batch + n). A
plane is only an address, a pitch and lanes. So a part of a tensor (some positions, some channels) or a concatenation
of channels is a list of planes too, and costs nothing.

Rule: the channels of a tensor are those of its planes in order, and within a plane those of its runs in order. A run
may start at any unit of 32 lanes, so that a part that is used alone is addressable. The lanes between are padding.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from anytpu.chip.image.image import pitch_of
from anytpu.chip.isa.design import UNIT_BYTES


class LaneRun(NamedTuple):
    """`count` channels from lane `lane` of a plane on."""

    lane: int
    count: int


LaneRuns = tuple[LaneRun, ...]
LayoutStructure = tuple[LaneRuns, ...]
"""The runs of each plane of a tensor."""


@dataclasses.dataclass(frozen=True)
class StoragePlane:
    """A block of rows in a storage.

    Attributes:
        storage: index of the storage that the plane is part of.
        offset: units from the start of the storage to row 0 of the plane.
        pitch: units from a row to the next.
        high: units from the low bytes to the high bytes, for 16 bits; otherwise 0.
        shift: units from the start of the row as written to `offset`; 0 except for a view of later lanes.
        runs: lanes of its channels.
    """

    storage: int
    offset: int
    pitch: int
    high: int
    shift: int
    runs: LaneRuns

    @property
    def span(self) -> int:
        """Lanes from the first channel to the last."""
        return self.runs[-1].lane + self.runs[-1].count

    @property
    def channels(self) -> int:
        """Number of channels of the plane."""
        return sum(run.count for run in self.runs)

    @property
    def units(self) -> int:
        """Units of a row that hold channels."""
        return pitch_of(self.span)

    @property
    def is_whole(self) -> bool:
        """Whether the rows hold no lanes of other planes."""
        return self.shift == 0 and self.units == self.pitch

    def row(self, number: int) -> StoragePlane:
        """Return the rows from `number` on."""
        return dataclasses.replace(self, offset=self.offset + number * self.pitch)


Layout = tuple[StoragePlane, ...]


@dataclasses.dataclass(frozen=True)
class Storage:
    """A buffer: a range of the Unified Buffer that is allocated and freed as a whole.

    Attributes:
        number: index of the storage.
        tensor: the tensor that it holds.
        units: size in units.
        layer: the layer that asked for it, for messages.
    """

    number: int
    tensor: str
    units: int
    layer: str


def structure_of(layout: Layout) -> LayoutStructure:
    """Return the runs of each plane."""
    return tuple(plane.runs for plane in layout)


def structure_for(channels: int, cuts: Iterable[int], array: int, *, compact: bool = False) -> LayoutStructure:
    """Assign channels to planes of at most `array` lanes, so that each part between cuts starts a run.

    Args:
        channels: number of channels.
        cuts: channels at which a part starts that is used alone.
        array: maximum lanes of a plane.
        compact: whether to leave no padding between runs.

    Example:
        >>> structure_for(300, (), 256)
        ((LaneRun(lane=0, count=256),), (LaneRun(lane=0, count=44),))
        >>> structure_for(200, (100,), 256)
        ((LaneRun(lane=0, count=100), LaneRun(lane=128, count=100)),)
    """
    planes: list[list[LaneRun]] = []
    edges = sorted({0, channels, *cuts})
    for start, stop in itertools.pairwise(edges):
        for first in range(start, stop, array):
            count = min(array, stop - first)
            end = planes[-1][-1].lane + planes[-1][-1].count if planes else array
            lane = pitch_of(end) * UNIT_BYTES
            if planes and lane + count <= array and not (compact and lane != end):
                planes[-1].append(LaneRun(lane, count))
            else:
                planes.append([LaneRun(0, count)])
    return tuple(map(tuple, planes))


def place_planes(storage: int, structure: LayoutStructure, rows: int, bits: int) -> tuple[Layout, int]:
    """Return consecutive planes and their size in units; a 16-bit plane has its low bytes, then its high bytes."""
    planes, offset = [], 0
    for runs in structure:
        pitch = pitch_of(runs[-1].lane + runs[-1].count)
        planes.append(StoragePlane(storage, offset, pitch, rows * pitch if bits == 16 else 0, 0, runs))
        offset += rows * pitch * (bits // 8)
    return tuple(planes), offset


def channels_of(layout: Layout, start: int, stop: int) -> Layout | None:
    """Return the channels from `start` up to `stop`, or None when they do not start at a unit of 32 lanes."""
    parts, first = [], 0
    for plane in layout:
        kept = []
        for run in plane.runs:
            low, high = max(start, first), min(stop, first + run.count)
            if low < high:
                kept.append(LaneRun(run.lane + low - first, high - low))
            first += run.count
        if not kept:
            continue
        shift, rest = divmod(kept[0].lane, UNIT_BYTES)
        if rest:
            return None
        runs = tuple(LaneRun(run.lane - shift * UNIT_BYTES, run.count) for run in kept)
        parts.append(dataclasses.replace(plane, offset=plane.offset + shift, shift=plane.shift + shift, runs=runs))
    return tuple(parts)


def split(layout: Layout, structure: LayoutStructure) -> Layout | None:
    """Return a view whose planes hold as many channels as those of `structure`, each in one run, or None."""
    parts, first = [], 0
    for runs in structure:
        for run in runs:
            part = channels_of(layout, first, first + run.count)
            if part is None or len(part) != 1 or len(part[0].runs) != 1:
                return None
            parts.append(part[0])
            first += run.count
    return tuple(parts)


def common_runs(layouts: Iterable[Layout]) -> LayoutStructure:
    """Return the coarsest runs, one a plane, that no boundary of a run of any of the layouts divides."""
    edges = {0}
    for layout in layouts:
        first = 0
        for plane in layout:
            for run in plane.runs:
                first += run.count
                edges.add(first)
    ends = sorted(edges)
    return tuple((LaneRun(0, stop - start),) for start, stop in itertools.pairwise(ends))


def is_compact(layout: Layout) -> bool:
    """Return whether the rows hold their channels consecutively and nothing else, as in the host's buffer."""
    return all(plane.pitch == plane.units and plane.channels == plane.span for plane in layout)


def stacks(layout: Layout, rows: int, maximum: int | None = None) -> list[list[StoragePlane]]:
    """Group consecutive planes of the same structure, so that each group is one plane of more rows.

    Args:
        layout: planes.
        rows: number of rows of each plane.
        maximum: maximum number of planes in a group; None: any number.
    """
    groups: list[list[StoragePlane]] = []
    for plane in layout:
        if groups and (maximum is None or len(groups[-1]) < maximum):
            last = groups[-1][-1]
            if dataclasses.replace(last, offset=last.offset + rows * last.pitch) == plane:
                groups[-1].append(plane)
                continue
        groups.append([plane])
    return groups
