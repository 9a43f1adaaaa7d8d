"""Steps: instructions with all their dependencies resolved, as the machine carries them out.

Idea: registers, popped tiles and addresses do not depend on the data. So they are resolved once per image
(`decoding.py`), and a run only moves numbers.

Rule: a step is a frozen record. Rows and lanes as in `isa/instructions.py`; addresses of the Unified Buffer in units of
32 bytes, of the Weight Memory in blocks.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from anytpu.chip.isa.design import UNIT_BYTES


@dataclasses.dataclass(frozen=True)
class WindowRegisters:
    """The geometry registers of a convolution or a pool, and the index of the first row of the result."""

    batch: int
    in_height: int
    in_width: int
    out_width: int
    first_row: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    dilation_height: int
    dilation_width: int
    pad_top: int
    pad_left: int

    def later(self, rows: int) -> WindowRegisters:
        """Return the window without the first rows of the result."""
        return dataclasses.replace(self, first_row=self.first_row + rows)


@dataclasses.dataclass(frozen=True)
class BufferPlane:
    """Rows in the Unified Buffer.

    Attributes:
        address: unit where row 0 starts.
        pitch: units from a row to the next.
        high_offset: units from the low bytes to the high bytes; None for 8-bit numbers.
    """

    address: int
    pitch: int
    high_offset: int | None = None

    @property
    def lanes(self) -> int:
        """Number of lanes of a row."""
        return self.pitch * UNIT_BYTES

    def later(self, rows: int) -> BufferPlane:
        """Return the plane without its first rows."""
        return dataclasses.replace(self, address=self.address + rows * self.pitch)


@dataclasses.dataclass(frozen=True)
class PassInput:
    """The input of one pass: for each row, `lanes` lanes of each of `taps` taps side by side.

    Attributes:
        plane: the source plane.
        lanes: number of lanes of each tap.
        window: the geometry; None: row i of the pass is row i of the plane (one tap).
        first_tap: index of the first tap of this pass.
        taps: number of taps.
        fill: value of a position outside of the plane.
        unsigned: whether bytes are 0 to 255; otherwise they are -128 to 127.
    """

    plane: BufferPlane
    lanes: int
    window: WindowRegisters | None = None
    first_tap: int = 0
    taps: int = 1
    fill: int = 0
    unsigned: bool = False

    @property
    def depth(self) -> int:
        """Rows of the array that the pass uses."""
        return self.lanes * self.taps

    def later(self, rows: int) -> PassInput:
        """Return the feed without its first rows."""
        if rows == 0:
            return self
        if self.window is None:
            return dataclasses.replace(self, plane=self.plane.later(rows))
        return dataclasses.replace(self, window=self.window.later(rows))


@dataclasses.dataclass(frozen=True)
class MachineStep:
    """The base of all steps; `number` is the index of its instruction (of the first, if several were joined)."""

    number: int


@dataclasses.dataclass(frozen=True)
class ProductStep(MachineStep):
    """Passes whose sums go to the same accumulators.

    Attributes:
        feeds, tiles: for each pass, its input, and the block of the Weight Memory where its tile starts.
        accumulator, rows: first accumulator row and number of rows of the sums.
        accumulate: whether the sums are added to those in the accumulators.
    """

    feeds: tuple[PassInput, ...]
    tiles: tuple[int, ...]
    accumulator: int
    rows: int
    accumulate: bool


@dataclasses.dataclass(frozen=True)
class ActivateStep(MachineStep):
    """An `Activate`, with the registers that it reads.

    Attributes:
        accumulator: first accumulator row, for "scale"; `plane` is the source of all other operations.
        parameters: block of the Weight Memory with the parameters, for "scale".
        second, second_rows, second_zero_point, second_scale: the other operand, for "add", "subtract" and "multiply".
        window: the geometry, for "max" and "average".
        target: plane of the result; 16-bit if it has a `high_offset`.
        table: slot of the table to look up; None: no table.
    """

    operation: Literal["scale", "copy", "add", "subtract", "multiply", "max", "average"]
    rows: int
    target: BufferPlane
    accumulator: int = 0
    parameters: int = 0
    plane: BufferPlane | None = None
    zero_point: int = 0
    scale: float = 0.0
    second: BufferPlane | None = None
    second_rows: int = 0
    second_zero_point: int = 0
    second_scale: float = 0.0
    window: WindowRegisters | None = None
    counted: bool = False
    out_scale: float = 0.0
    out_zero_point: int = 0
    low: int = 0
    high: int = 0
    table: int | None = None

    def later(self, rows: int) -> ActivateStep:
        """Return a "scale" without its first rows; `accumulator` is unchanged, as a layer does not read it."""
        return dataclasses.replace(self, target=self.target.later(rows), rows=self.rows - rows)


@dataclasses.dataclass(frozen=True)
class TableStep(MachineStep):
    """Load tables `slot` and following from block `address` of the Weight Memory."""

    address: int
    count: int
    slot: int
    wide: bool


@dataclasses.dataclass(frozen=True)
class TransferStep(MachineStep):
    """Copy `units` units between byte `host_address` of the host's buffer and unit `address`, `inwards` or outwards."""

    host_address: int
    address: int
    units: int
    inwards: bool


@dataclasses.dataclass(frozen=True)
class ServiceStep(MachineStep):
    """Let the host do its service `service`."""

    service: int
