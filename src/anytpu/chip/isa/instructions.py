"""The instructions of the chip and their exact meaning. Encoding, assembler, documentation and machine read this file.

Idea: the paper names about a dozen instructions and their purpose. It gives the length of MatrixMultiply only: 12
bytes. These are 3 of a Unified Buffer address, 2 of an accumulator address, 4 of a length, the rest opcode and flags.
Encodings, registers, rounding and tables were never published; those here are ours.

Rule: an instruction is a frozen record. Its effect depends on it, on the registers when it was issued, and on the
memories. Each belongs to one unit (`unit`), which executes its instructions in order. Units work concurrently; only
`Sync` orders their accesses to the Unified Buffer and the accumulators. A pop of the weight FIFO or of the parameter
FIFO waits for an entry.

Source: Jouppi et al. 2017, section 2.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from anytpu.chip.isa.units import Unit


@dataclasses.dataclass(frozen=True)
class Instruction:
    """The base of all instructions; `unit` executes it, or None if the issuing logic does."""

    unit: ClassVar[Unit | None] = None


@dataclasses.dataclass(frozen=True)
class Nop(Instruction):
    """Do nothing."""


@dataclasses.dataclass(frozen=True)
class Halt(Instruction):
    """End the program when all units have finished. It is the last instruction of every program."""


@dataclasses.dataclass(frozen=True)
class DebugTag(Instruction):
    """Mark the following instructions as part `tag` of the program, an index into the names of its layers."""

    tag: int


@dataclasses.dataclass(frozen=True)
class InterruptHost(Instruction):
    """Wait for all units, let the host do its step `number`, and continue when it is done."""

    number: int


@dataclasses.dataclass(frozen=True)
class SetConfiguration(Instruction):
    """Set register `register` for the instructions that are issued later.

    The value is a float for a register of kind float32, otherwise an integer.
    """

    register: int
    value: int | float


@dataclasses.dataclass(frozen=True)
class Sync(Instruction):
    """Make the units in `waiting` wait for the units in `finished`.

    An instruction issued later to a waiting unit starts only when everything issued earlier to the finished units is
    done. Both fields are masks of bits `1 << Unit`.
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
    """Request `count` consecutive items of the Weight Memory, from block `address` (of 2 KiB).

    - "tile": int8 (array, array), rows first, into the weight FIFO.
    - "parameters": an int32 bias for each lane, then a finite float32 multiplier for each lane, into the activation
      unit's parameter FIFO.
    - "table": into tables `slot` and following; 256 bytes each, or 65,536 little-endian int16 with `wide`.

    Each item starts at the first block boundary after the previous item. The instruction is done when its address is
    sent, except for a table: then it is done when the table has arrived.
    """

    unit: ClassVar[Unit] = Unit.WEIGHTS
    address: int
    count: int
    kind: Literal["tile", "parameters", "table"] = "tile"
    slot: int = 0
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class ArrayInstruction(Instruction):
    """Passes and fields of MatrixMultiply and Convolve.

    In each of `repeat` passes, `rows` rows of `array` values from the Unified Buffer go through the array; `array` is
    its size, 256 on the first TPU. The pass makes `rows` rows of `array` sums and adds them to rows `accumulator` and
    following of the accumulators. Without `accumulate`, the first pass overwrites these rows instead. Sums are of 32
    bits and wrap.

    Each pass first pops the next tile from the weight FIFO. With `keep`, the first pass pops none and uses the tile in
    the array.

    Attributes:
        address: unit of the Unified Buffer where row 0 of the source plane starts.
        accumulator: index of the first accumulator row.
        rows: number of rows in a pass.
        repeat: number of passes, 1 to 255.
        accumulate: whether the first pass adds to the sums.
        keep: whether the first pass uses the tile in the array.
        unsigned: whether source bytes are 0 to 255; otherwise they are -128 to 127.
        wide: whether the source is signed 16-bit. Low bytes start at `address`, high bytes HIGH_OFFSET units further.
            A pass reads both and takes twice as long.
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
class MatrixMultiply(ArrayInstruction):
    """Multiply planes of rows by tiles.

    Pass p reads rows PITCH units apart, from unit `address` + p * PLANE_STRIDE on. Lanes beyond 32 * PITCH are 0.
    """


@dataclasses.dataclass(frozen=True)
class Convolve(ArrayInstruction):
    """Multiply the windows of a tensor by tiles.

    Pass p takes TAPS taps of the window from tap FIRST_TAP + p * TAPS on, or as many as the window has left.

    Row i of a pass is row r = FIRST_ROW + i of the result. Its position is (oh, ow) = divmod(r // BATCH, OUT_WIDTH),
    and its example is n = r % BATCH. Tap t = kh * KERNEL_WIDTH + kw reads position (h, w) of the source:

    - h = oh * STRIDE_HEIGHT - PAD_TOP + kh * DILATION_HEIGHT
    - w = ow * STRIDE_WIDTH - PAD_LEFT + kw * DILATION_WIDTH

    That position is row (h * IN_WIDTH + w) * BATCH + n of the source, whose rows are PITCH units apart. For tap j of
    the pass, counted from 0, the row's first LANES lanes go to lanes j * LANES and following of the array. Lanes of the
    array without a tap are 0.

    A position outside of the source reads as ZERO_POINT in these lanes. The source must be able to hold ZERO_POINT:
    -128 to 127, 0 to 255 with `unsigned`, 16 bits with `wide`.
    """


@dataclasses.dataclass(frozen=True)
class Activate(Instruction):
    """Write `rows` rows of a result to unit `target`, OUT_PITCH units apart, of 32 * OUT_UNITS lanes each.

    OUT_UNITS 0 stands for OUT_PITCH. Fewer units leave the other lanes of a row as they are; such a result has at most
    4,096 rows. For each lane of row i, in order:

    1. Compute a value from accumulator row `source` + i, or from row i of the plane at unit `source` (see below).
    2. Except for "copy" and "max": round with rint (half to even) and add OUT_ZERO_POINT.
    3. Clip to LOW and HIGH.
    4. With `table`: replace q by table[q + 128] of table TABLE (16 bits: table[q + 32768]).
    5. Store the low byte, or with `wide_out` the two low bytes.

    The operation defines the value of step 1:

    - "scale" (accumulators): f32(sum + bias, wrapping at 32 bits) * multiplier of the lane. The parameters are the next
      in the parameter FIFO, or with `keep` those of the last Activate. Lane 0 is that of lane SOURCE_LANE of the sums
      and parameters.
    - "copy" (buffer): the integer itself.
    - "add", "subtract", "multiply" (buffer): f32(a - ZERO_POINT) * SCALE  op  f32(b - SECOND_ZERO_POINT) *
      SECOND_SCALE, divided by OUT_SCALE. Operand b is row i % SECOND_ROWS of the plane at unit `second`.
    - "max" (buffer): the maximum over the window's positions inside the source, or ZERO_POINT if there are none. The
      window is that of Convolve, KERNEL_HEIGHT by KERNEL_WIDTH taps, for result row FIRST_ROW + i.
    - "average" (buffer): f32(int32 sum of (a - ZERO_POINT) over the same positions) * SCALE. With `counted` the
      multiplier is f32(f32(SCALE * f32(1 / number of positions inside)) / OUT_SCALE). SCALE / OUT_SCALE is then at most
      2**100. Only an average may be `counted`.

    A lane that the source, the second operand or the array lacks has the value 0 after step 1. Each floating-point
    operation is rounded to float32.

    Attributes:
        wide: whether the source (and the second operand) in the buffer are 16-bit, as for a product.
        wide_out: whether the result is 16-bit. Low bytes start at `target`, high bytes OUT_HIGH_OFFSET units further,
            after the last row of low bytes. A table is then wide: 16-bit q and entries; otherwise both are bytes.
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
