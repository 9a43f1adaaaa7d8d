"""Jobs: the chip's work in order, over planes that have no addresses yet.

Idea: the instructions of a node depend on the node, the addresses on the whole network. So nodes become jobs first.
Then the Unified Buffer is allocated to their storages. Then instructions are written.

Rule: a job names the storages that it reads and writes; it accesses nothing else in the Unified Buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from anytpu.chip.compiler.planes import Layout, StoragePlane
from anytpu.chip.image.image import Tag
from anytpu.chip.isa.geometry import Window
from anytpu.chip.isa.registers import Register

RegisterValues = Mapping[Register, int | float]


@dataclasses.dataclass(frozen=True)
class Job:
    """The base of all jobs.

    Attributes:
        tag: the part of the network that the job belongs to.
        reads, writes: indices of the storages that the job reads and writes.
    """

    tag: Tag
    reads: frozenset[int]
    writes: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Feed:
    """A plane as the input of passes, one or more taps per pass.

    Attributes:
        plane: the source plane, or the first plane of a stack.
        first: the input channel of its first lane.
        tap_step: difference between the input indices of consecutive taps.
        taps: number of taps side by side in a pass.
        window: the geometry; None: row by row (MatrixMultiply), one pass.
    """

    plane: StoragePlane
    first: int = 0
    tap_step: int = 0
    taps: int = 1
    window: Window | None = None

    @property
    def lanes(self) -> int:
        """Number of lanes of each tap."""
        return self.plane.span

    @property
    def all_taps(self) -> int:
        """Number of taps of all passes."""
        return 1 if self.window is None else self.window.taps

    @property
    def passes(self) -> int:
        """Number of passes, and of tiles."""
        return -(-self.all_taps // self.taps)

    @property
    def channels(self) -> tuple[int, int]:
        """The first and the last channel of a tap."""
        return self.first, self.first + self.plane.channels - 1

    @property
    def key(self) -> tuple[object, ...]:
        """A key that determines its tiles, given the weights."""
        return self.first, self.tap_step, self.plane.runs, self.lanes, self.taps, self.all_taps


@dataclasses.dataclass(frozen=True)
class BlockResult:
    """A plane that is made of some columns of a block of outputs.

    Attributes:
        target: the result plane.
        settings: registers of the Activate.
        wide: whether the result is 16-bit.
        table: whether the Activate looks up the table that `settings` names.
        lane: the column of its first lane.
    """

    target: StoragePlane
    settings: RegisterValues
    wide: bool
    table: bool
    lane: int = 0


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of outputs of a product.

    Attributes:
        results: the planes that are made of it, side by side in its columns.
        feeds: the feeds that are summed, in the order of the tiles.
        tiles: block of the Weight Memory where the first tile starts; the tiles are consecutive.
        parameters: block of the Weight Memory where its parameters start.
    """

    results: tuple[BlockResult, ...]
    feeds: tuple[Feed, ...]
    tiles: int
    parameters: int

    @property
    def passes(self) -> int:
        """Number of passes, and of tiles, of the block."""
        return sum(feed.passes for feed in self.feeds)


@dataclasses.dataclass(frozen=True)
class ProductJob(Job):
    """A convolution, a dense layer, or a rearrangement of channels.

    Attributes:
        blocks: its blocks of outputs.
        rows: number of rows of the result.
        settings: registers of the Convolve (ZERO_POINT), and of the Activates where all have the same.
        wide: whether the source is 16-bit.
    """

    blocks: tuple[Block, ...]
    rows: int
    settings: RegisterValues
    wide: bool


@dataclasses.dataclass(frozen=True)
class PlaneOperation:
    """One plane made by Activate from one or two planes in the Unified Buffer.

    Attributes:
        operation: the operation of the Activate.
        source, second, target: planes; `second` is None for one operand.
        rows: number of rows of the target.
        settings: registers of the Activate.
        window: the geometry of a pool; None for other operations.
        second_rows: number of rows of the second operand, if any.
        wide, wide_out, table, counted: as in `Activate`.
    """

    operation: str
    source: StoragePlane
    target: StoragePlane
    rows: int
    settings: RegisterValues
    second: StoragePlane | None = None
    second_rows: int = 0
    window: Window | None = None
    wide: bool = False
    wide_out: bool = False
    table: bool = False
    counted: bool = False


@dataclasses.dataclass(frozen=True)
class PlaneOperationsJob(Job):
    """Consecutive steps that only Activate executes, without products."""

    steps: tuple[PlaneOperation, ...]


@dataclasses.dataclass(frozen=True)
class ExportJob(Job):
    """Write a tensor to the host's buffer: its compact planes, from byte `host_address` on."""

    layout: Layout
    rows: int
    host_address: int


@dataclasses.dataclass(frozen=True)
class HostServiceJob(Job):
    """Let the host do its step `number`; the storages `results` can then be read from the host's buffer."""

    number: int
    results: frozenset[int]


def storages_of(layouts: Iterable[Iterable[StoragePlane]]) -> frozenset[int]:
    """Return the storages that hold the planes of layouts."""
    return frozenset(plane.storage for layout in layouts for plane in layout)
