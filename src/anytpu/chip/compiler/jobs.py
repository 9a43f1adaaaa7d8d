"""Jobs: what the chip is to do, in order, over planes that have no addresses yet.

Idea: which instructions are made depends on the network, where things lie depends on all of it at once. So nodes become
jobs first; then the Unified Buffer is shared out among what they touch; then instructions are written.

Rule: a job names the storages that it reads and writes; nothing else of the Unified Buffer is touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from anytpu.chip.compiler.planes import Layout, Plane
from anytpu.chip.image import Tag
from anytpu.chip.isa.registers import Register

Settings = Mapping[Register, int | float]


@dataclasses.dataclass(frozen=True)
class Window:
    """The geometry of a convolution or a pool.

    Attributes:
        source, target: (height, width).
        kernel, strides, dilation: (height, width).
        pad: (top, left).
    """

    source: tuple[int, int]
    target: tuple[int, int]
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def is_plain(self) -> bool:
        """Whether row i of the result sees row i of the source and nothing else."""
        return self.taps == 1 and self.strides == (1, 1) and self.pad == (0, 0) and self.source == self.target

    def settings(self, batch: int) -> dict[Register, int | float]:
        """Return the registers that say so."""
        return {
            Register.BATCH: batch,
            Register.IN_HEIGHT: self.source[0],
            Register.IN_WIDTH: self.source[1],
            Register.OUT_WIDTH: self.target[1],
            Register.KERNEL_HEIGHT: self.kernel[0],
            Register.KERNEL_WIDTH: self.kernel[1],
            Register.STRIDE_HEIGHT: self.strides[0],
            Register.STRIDE_WIDTH: self.strides[1],
            Register.DILATION_HEIGHT: self.dilation[0],
            Register.DILATION_WIDTH: self.dilation[1],
            Register.PAD_TOP: self.pad[0],
            Register.PAD_LEFT: self.pad[1],
        }


@dataclasses.dataclass(frozen=True)
class Job:
    """What all jobs have.

    Attributes:
        tag: the part of the network that it belongs to.
        reads, writes: the storages that it touches.
    """

    tag: Tag
    reads: frozenset[int]
    writes: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Feed:
    """One plane as it goes through the array, tap by tap.

    Attributes:
        plane: its first rows.
        lanes: of each tap.
        taps: how many go side by side in a pass.
        window: None: row by row (MatrixMultiply), one pass.
    """

    plane: Plane
    lanes: int
    taps: int = 1
    window: Window | None = None

    @property
    def passes(self) -> int:
        """Tiles that it takes."""
        return 1 if self.window is None else -(-self.window.taps // self.taps)


@dataclasses.dataclass(frozen=True)
class Column:
    """One block of outputs of a product.

    Attributes:
        target: the plane that is made.
        feeds: what is summed up, in the order of the tiles.
        tiles: the block of the Weight Memory where the first of them lies; they follow one another.
        parameters: the block where its parameters lie.
    """

    target: Plane
    feeds: tuple[Feed, ...]
    tiles: int
    parameters: int

    @property
    def passes(self) -> int:
        """Tiles of the column."""
        return sum(feed.passes for feed in self.feeds)


@dataclasses.dataclass(frozen=True)
class ProductJob(Job):
    """A convolution, a dense layer, or channels put in other places.

    Attributes:
        columns: its blocks of outputs.
        rows: of the result.
        settings: registers of the Convolve (ZERO_POINT) and of the Activate.
        wide, wide_out: the source, the result are of 16 bits.
        table: whether `settings` names a table that is looked up.
    """

    columns: tuple[Column, ...]
    rows: int
    settings: Settings
    wide: bool
    wide_out: bool
    table: bool


@dataclasses.dataclass(frozen=True)
class Step:
    """One plane made by Activate from one or two planes in the Unified Buffer.

    Attributes:
        operation: of the Activate.
        source, second, target: planes.
        rows: of the target.
        settings: registers.
        window: of a pool.
        second_rows: rows of the second operand, when there is one.
        wide, wide_out, table, counted: as in `Activate`.
    """

    operation: str
    source: Plane
    target: Plane
    rows: int
    settings: Settings
    second: Plane | None = None
    second_rows: int = 0
    window: Window | None = None
    wide: bool = False
    wide_out: bool = False
    table: bool = False
    counted: bool = False


@dataclasses.dataclass(frozen=True)
class StepsJob(Job):
    """What Activate does by itself: steps one after another."""

    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class ExportJob(Job):
    """Write a tensor to the host's buffer: its compact planes, from byte `host_address` on."""

    layout: Layout
    rows: int
    host_address: int


@dataclasses.dataclass(frozen=True)
class HostServiceJob(Job):
    """Let the host do its step `number`; `results` are then in the host's buffer."""

    number: int
    results: frozenset[int]


def storages_of(layouts: Iterable[Iterable[Plane]]) -> frozenset[int]:
    """Return the storages that layouts lie in."""
    return frozenset(plane.storage for layout in layouts for plane in layout)
