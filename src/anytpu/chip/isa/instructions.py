"""The instructions of the chip and their exact meaning. Encoding, assembler, documentation and machine read this file.

Idea: the paper names about a dozen instructions and what each is for; of one, MatrixMultiply, it gives the length (12
bytes: 3 of a Unified Buffer address, 2 of an accumulator address, 4 of a length, the rest opcode and flags). Encodings,
registers, rounding and tables were never published; those here are ours.

Rule: an instruction is a frozen record; what it does depends on it, on the registers when it was issued, and on the
memories. Each belongs to one unit (`unit`), which takes its instructions in order; units work side by side, and nothing
but `Sync` orders what they do in the Unified Buffer and in the accumulators. The weight FIFO and the parameter FIFO
order themselves: who pops waits until something is there.

Source: Jouppi et al. 2017, section 2.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from anytpu.chip.isa.units import Unit


@dataclasses.dataclass(frozen=True)
class Instruction:
    """What all instructions have: the unit that does it, or None for those that the issuing logic does itself."""

    unit: ClassVar[Unit | None] = None


@dataclasses.dataclass(frozen=True)
class Nop(Instruction):
    """Do nothing."""


@dataclasses.dataclass(frozen=True)
class Halt(Instruction):
    """End the program, when all units have finished. The last instruction of every program."""


@dataclasses.dataclass(frozen=True)
class DebugTag(Instruction):
    """Mark that what follows belongs to part `tag` of the program, an index into the names of its layers."""

    tag: int


@dataclasses.dataclass(frozen=True)
class InterruptHost(Instruction):
    """Wait for all units, then let the host do its step `number`, and go on when it has."""

    number: int


@dataclasses.dataclass(frozen=True)
class SetConfiguration(Instruction):
    """Set register `register` to `value` (an int, or a float for a register of that kind) for what is issued later."""

    register: int
    value: int | float


@dataclasses.dataclass(frozen=True)
class Sync(Instruction):
    """Order units: what is issued later to a unit of `waiting` starts only when all that was issued before to the units
    of `finished` is done. Both are masks, of bits `1 << Unit`.
    """

    waiting: int
    finished: int


@dataclasses.dataclass(frozen=True)
class ReadHostMemory(Instruction):
    """Copy `units` units of 32 bytes from byte `host_address` of the host's buffer to unit `address`."""

    unit: ClassVar[Unit] = Unit.READ
    host_address: int
    address: int
    units: int


@dataclasses.dataclass(frozen=True)
class WriteHostMemory(Instruction):
    """Copy `units` units of 32 bytes from unit `address` to byte `host_address` of the host's buffer."""

    unit: ClassVar[Unit] = Unit.WRITE
    host_address: int
    address: int
    units: int


@dataclasses.dataclass(frozen=True)
class ReadWeights(Instruction):
    """Send for `count` things that lie one after another in the Weight Memory, from block `address` (of 2 KiB).

    "tile": int8 (array, array), rows first, into the weight FIFO. "parameters": for each lane an int32 bias, then for
    each a finite float32 multiplier, into the parameter FIFO of the activation unit. "table": into tables `slot` and
    following, 256 bytes each, or with `wide` 65,536 little-endian int16. A thing starts at the first whole block after
    the last. The instruction is done when the address is sent (a table: when it has arrived).
    """

    unit: ClassVar[Unit] = Unit.WEIGHTS
    address: int
    count: int
    kind: Literal["tile", "parameters", "table"] = "tile"
    slot: int = 0
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class Product(Instruction):
    """What MatrixMultiply and Convolve have in common.

    Pass by pass, `rows` rows of `array` numbers from the Unified Buffer go through the array, and `rows` rows of
    `array` sums come out, added to (or, in the first pass of an instruction without `accumulate`, put in place of) rows
    `accumulator` and following. Sums are of 32 bits and wrap. Before each pass the next tile is popped from the weight
    FIFO, but with `keep` the first pass uses the tile that is in the array.

    Attributes:
        address: unit of the Unified Buffer where the source plane starts (its row 0).
        accumulator: the first row of the accumulators.
        rows: how many rows.
        repeat: how many passes, 1 to 255.
        accumulate, keep: see above.
        unsigned: bytes of the source are of 0 to 255; else of -128 to 127.
        wide: the source is of 16 bits, signed: the low bytes lie at `address`, the high bytes HIGH_OFFSET units
            further; a pass reads both and takes twice as long.
    """

    unit: ClassVar[Unit] = Unit.MATRIX
    address: int
    accumulator: int
    rows: int
    repeat: int = 1
    accumulate: bool = False
    keep: bool = False
    unsigned: bool = False
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class MatrixMultiply(Product):
    """Pass p reads rows that lie PITCH units apart from `address` + p * PLANE_STRIDE; lanes beyond 32 * PITCH are 0."""


@dataclasses.dataclass(frozen=True)
class Convolve(Product):
    """Pass p takes the taps FIRST_TAP + p * TAPS and following, TAPS of them or as many as the window has left.

    Row i of the pass is row r = FIRST_ROW + i of the result: position (oh, ow) = divmod(r // BATCH, OUT_WIDTH), example
    n = r % BATCH. Tap t = kh * KERNEL_WIDTH + kw reads position (oh * STRIDE_HEIGHT - PAD_TOP + kh * DILATION_HEIGHT,
    the same for the width) of the source, whose row is (h * IN_WIDTH + w) * BATCH + n, PITCH units apart. Its first
    LANES lanes go to lanes j * LANES and following of the array, for the j-th tap of the pass; the lanes that no tap
    fills are 0. A position outside of the source reads as ZERO_POINT in each of those lanes, which must be a number
    that the source can hold: of -128 to 127, with `unsigned` of 0 to 255, with `wide` of 16 bits.
    """


@dataclasses.dataclass(frozen=True)
class Activate(Instruction):
    """Make `rows` rows of the result at unit `target`, OUT_PITCH units apart, 32 * OUT_PITCH lanes each.

    First a number for each lane, of accumulator row `source` + i or of row i of the plane at unit `source`:

    - "scale" (from accumulators): f32(sum + bias, wrapping at 32 bits) * multiplier of the lane, where the
      parameters are the next of the parameter FIFO; with `keep` those of the last Activate.
    - "copy" (from the buffer): the integer as it is; it is only clipped and looked up.
    - "add", "subtract", "multiply" (from the buffer): f32(a - ZERO_POINT) * SCALE  op  f32(b - SECOND_ZERO_POINT) *
      SECOND_SCALE, divided by OUT_SCALE; b is row i % SECOND_ROWS of the plane at unit `second`.
    - "max" (from the buffer): the greatest integer of the window, of the positions inside, and ZERO_POINT if there are
      none; the window is that of Convolve, KERNEL_HEIGHT by KERNEL_WIDTH taps, for result row FIRST_ROW + i.
    - "average" (from the buffer): f32(int32 sum over the window's positions inside of (a - ZERO_POINT)) * SCALE; with
      `counted`, which nothing else may be, the multiplier is f32(f32(SCALE * f32(1 / number of positions inside)) /
      OUT_SCALE) in place of SCALE, and SCALE / OUT_SCALE at most 2**100.

    Then, but for "copy" and "max", rint (half to even) + OUT_ZERO_POINT. Then the clip to LOW and HIGH. Then, with
    `table`, table[q + 128] of the table TABLE (of 16 bits: q + 32768). Of the result, the low byte is kept, or the two
    low bytes. The number (of "copy" and "max": the integer) of a lane that the source, the second operand or the array
    does not have is 0. Each operation is rounded to float32.

    Attributes:
        wide: the source (and the second operand) in the buffer are of 16 bits, as for a product.
        wide_out: the result is of 16 bits: low bytes at `target`, high bytes OUT_HIGH_OFFSET units further, past the
            last row of low bytes. A table that is looked up then is a wide one: q, of 16 bits, gives 16 bits. Without
            it q and the entry are bytes.
    """

    unit: ClassVar[Unit] = Unit.ACTIVATE
    operation: Literal["scale", "copy", "add", "subtract", "multiply", "max", "average"]
    source: int
    target: int
    rows: int
    second: int = 0
    keep: bool = False
    table: bool = False
    counted: bool = False
    wide: bool = False
    wide_out: bool = False
