"""Steps: instructions with all that they depend on written into them, as the machine carries them out.

Idea: nothing in a program depends on the numbers that flow through it: not the registers, not which tile the weight
FIFO hands out, not an address. So all of it is found once per image (`decoding.py`), and a run only moves numbers.

Rule: a step is a frozen record. Rows and lanes as in `isa/instructions.py`; addresses of the Unified Buffer in units of
32 bytes, of the Weight Memory in blocks.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from anytpu.chip.design import UNIT_BYTES


@dataclasses.dataclass(frozen=True)
class Window:
    """The geometry registers of a convolution or a pool, and which row of the result comes first."""

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

    def later(self, rows: int) -> Window:
        """Return the window without the first rows of the result."""
        return dataclasses.replace(self, first_row=self.first_row + rows)


@dataclasses.dataclass(frozen=True)
class Plane:
    """Where rows lie in the Unified Buffer.

    Attributes:
        address: unit of row 0.
        pitch: units from a row to the next.
        high_offset: units from the low bytes to the high ones; None for numbers of 8 bits.
    """

    address: int
    pitch: int
    high_offset: int | None = None

    @property
    def lanes(self) -> int:
        """Numbers that a row has."""
        return self.pitch * UNIT_BYTES

    def later(self, rows: int) -> Plane:
        """Return the plane without its first rows."""
        return dataclasses.replace(self, address=self.address + rows * self.pitch)


@dataclasses.dataclass(frozen=True)
class Feed:
    """What one pass sends into the array: of each row, `lanes` lanes of each of `taps` taps side by side.

    Attributes:
        window: None where row i of the pass is simply row i of the plane (one tap).
        first_tap: the first tap of this pass.
        fill: what a position outside of the plane reads as.
        unsigned: bytes are of 0 to 255.
    """

    plane: Plane
    lanes: int
    window: Window | None = None
    first_tap: int = 0
    taps: int = 1
    fill: int = 0
    unsigned: bool = False

    @property
    def depth(self) -> int:
        """Rows of the array that the pass uses."""
        return self.lanes * self.taps

    def later(self, rows: int) -> Feed:
        """Return the feed without its first rows."""
        if rows == 0:
            return self
        if self.window is None:
            return dataclasses.replace(self, plane=self.plane.later(rows))
        return dataclasses.replace(self, window=self.window.later(rows))


@dataclasses.dataclass(frozen=True)
class Step:
    """What all steps have: the number of the instruction (of the first one, if several were joined)."""

    number: int


@dataclasses.dataclass(frozen=True)
class ProductStep(Step):
    """Passes whose sums go to the same accumulators.

    Attributes:
        feeds, tiles: of each pass, what goes in, and the block of the Weight Memory where its tile starts.
        accumulator, rows: where the sums go.
        accumulate: they are added to what stands there.
    """

    feeds: tuple[Feed, ...]
    tiles: tuple[int, ...]
    accumulator: int
    rows: int
    accumulate: bool


@dataclasses.dataclass(frozen=True)
class ActivateStep(Step):
    """An `Activate`, with the registers that it reads.

    Attributes:
        accumulator: the first row, of "scale"; `plane` is the source of all others.
        parameters: block of the Weight Memory with the parameters, of "scale".
        second, second_rows, second_zero_point, second_scale: the other operand, of "add", "subtract" and "multiply".
        window: of "max" and "average".
        target: where the result goes; its `high_offset` says that it is of 16 bits.
        table: the slot to look up; None for none.
    """

    operation: Literal["scale", "copy", "add", "subtract", "multiply", "max", "average"]
    rows: int
    target: Plane
    accumulator: int = 0
    parameters: int = 0
    plane: Plane | None = None
    zero_point: int = 0
    scale: float = 0.0
    second: Plane | None = None
    second_rows: int = 0
    second_zero_point: int = 0
    second_scale: float = 0.0
    window: Window | None = None
    counted: bool = False
    out_scale: float = 0.0
    out_zero_point: int = 0
    low: int = 0
    high: int = 0
    table: int | None = None

    def later(self, rows: int) -> ActivateStep:
        """Return what is left of a "scale" after its first rows, which its sums follow elsewhere."""
        return dataclasses.replace(self, target=self.target.later(rows), rows=self.rows - rows)


@dataclasses.dataclass(frozen=True)
class TableStep(Step):
    """Load tables `slot` and following from block `address` of the Weight Memory."""

    address: int
    count: int
    slot: int
    wide: bool


@dataclasses.dataclass(frozen=True)
class TransferStep(Step):
    """Copy `units` units between byte `host_address` of the host's buffer and unit `address`, `inwards` or outwards."""

    host_address: int
    address: int
    units: int
    inwards: bool


@dataclasses.dataclass(frozen=True)
class ServiceStep(Step):
    """Let the host do its service `service`."""

    service: int
