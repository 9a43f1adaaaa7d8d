"""The registers that `SetConfiguration` sets. An instruction works with the values they had when it was issued.

Idea: the twelve bytes of a product hold its addresses and its length. Values that are constant over a layer (the
geometry of a convolution, the zero points) are in registers, set once for the layer.

Rule: this table is the definition; the encoder, the assembler, the page of documentation and the machine read it. All
registers are 0 at the start. "Units" are of 32 bytes of the Unified Buffer. "Rows" of a plane are in position-major
order: row (h * width + w) * batch + n holds the lanes of position (h, w) of example n.
"""

from __future__ import annotations

import dataclasses
import enum


class Register(enum.IntEnum):
    """The number of a register, as encoded in the instruction."""

    # Read by Convolve, by a pool of Activate, and in part by MatrixMultiply.
    PITCH = 0
    PLANE_STRIDE = 1
    HIGH_OFFSET = 2
    LANES = 3
    BATCH = 4
    IN_HEIGHT = 5
    IN_WIDTH = 6
    OUT_WIDTH = 7
    FIRST_ROW = 8
    KERNEL_HEIGHT = 9
    KERNEL_WIDTH = 10
    STRIDE_HEIGHT = 11
    STRIDE_WIDTH = 12
    DILATION_HEIGHT = 13
    DILATION_WIDTH = 14
    PAD_TOP = 15
    PAD_LEFT = 16
    TAPS = 17
    FIRST_TAP = 18
    # Read by Activate, in addition to the geometry above for a pool.
    ZERO_POINT = 32
    SECOND_PITCH = 33
    SECOND_ROWS = 34
    SECOND_HIGH_OFFSET = 35
    SECOND_ZERO_POINT = 36
    OUT_PITCH = 37
    OUT_HIGH_OFFSET = 38
    OUT_ZERO_POINT = 39
    LOW = 40
    HIGH = 41
    SCALE = 42
    SECOND_SCALE = 43
    OUT_SCALE = 44
    TABLE = 45
    SOURCE_LANE = 46
    OUT_UNITS = 47


class RegisterKind(enum.Enum):
    """The data type of a register's 32 bits."""

    UNSIGNED = "unsigned"
    SIGNED = "signed"
    FLOAT = "float32"


@dataclasses.dataclass(frozen=True)
class RegisterMeaning:
    """The meaning of a register.

    Attributes:
        kind: data type of its 32 bits.
        minimum, maximum: bounds of its value; a float must be above `minimum`.
        text: a phrase for the documentation.
    """

    kind: RegisterKind
    minimum: int
    maximum: int
    text: str


MAX_SCALE = 2**100
"""Maximum of a scale: scaled operands stay finite in float32, so no operation on two of them makes a NaN."""


def power_text(power: int) -> str:
    """Write a power of 2.

    Example:
        >>> power_text(MAX_SCALE)
        '2**100'
    """
    return f"2**{power.bit_length() - 1}"


_U, _S, _F = RegisterKind.UNSIGNED, RegisterKind.SIGNED, RegisterKind.FLOAT
_WORD = 2**32 - 1

MEANINGS: dict[Register, RegisterMeaning] = {
    Register.PITCH: RegisterMeaning(_U, 0, 64, "units from a source row to the next"),
    Register.PLANE_STRIDE: RegisterMeaning(
        _U, 0, 2**24 - 1, "units from the plane of a MatrixMultiply pass to the next"
    ),
    Register.HIGH_OFFSET: RegisterMeaning(
        _U, 0, 2**24 - 1, "units from the plane of low bytes to the plane of high bytes (16 bits)"
    ),
    Register.LANES: RegisterMeaning(_U, 0, 2048, "lanes of a row that a tap of Convolve feeds into the array"),
    Register.BATCH: RegisterMeaning(_U, 0, _WORD, "rows for each position: the number of examples"),
    Register.IN_HEIGHT: RegisterMeaning(_U, 0, _WORD, "height of the source, in positions"),
    Register.IN_WIDTH: RegisterMeaning(_U, 0, _WORD, "width of the source, in positions"),
    Register.OUT_WIDTH: RegisterMeaning(_U, 0, _WORD, "width of the result, in positions"),
    Register.FIRST_ROW: RegisterMeaning(_U, 0, _WORD, "first result row that the instruction makes"),
    Register.KERNEL_HEIGHT: RegisterMeaning(_U, 0, 65535, "height of the window, in taps"),
    Register.KERNEL_WIDTH: RegisterMeaning(_U, 0, 65535, "width of the window, in taps"),
    Register.STRIDE_HEIGHT: RegisterMeaning(_U, 0, 65535, "positions from a window to the next, down"),
    Register.STRIDE_WIDTH: RegisterMeaning(_U, 0, 65535, "positions from a window to the next, right"),
    Register.DILATION_HEIGHT: RegisterMeaning(_U, 0, 65535, "positions from a tap to the next, down"),
    Register.DILATION_WIDTH: RegisterMeaning(_U, 0, 65535, "positions from a tap to the next, right"),
    Register.PAD_TOP: RegisterMeaning(_S, -32768, 32767, "positions of padding above the source"),
    Register.PAD_LEFT: RegisterMeaning(_S, -32768, 32767, "positions of padding left of the source"),
    Register.TAPS: RegisterMeaning(_U, 0, 65535, "taps that a pass of Convolve places side by side"),
    Register.FIRST_TAP: RegisterMeaning(_U, 0, _WORD, "first tap of the first pass of Convolve"),
    Register.ZERO_POINT: RegisterMeaning(
        _S, -32768, 32767, "zero point of the source; Convolve reads it outside of the source"
    ),
    Register.SECOND_PITCH: RegisterMeaning(_U, 0, 64, "units from a row of the second operand to the next"),
    Register.SECOND_ROWS: RegisterMeaning(_U, 0, _WORD, "rows of the second operand, used cyclically"),
    Register.SECOND_HIGH_OFFSET: RegisterMeaning(_U, 0, 2**24 - 1, "HIGH_OFFSET of the second operand"),
    Register.SECOND_ZERO_POINT: RegisterMeaning(_S, -32768, 32767, "zero point of the second operand"),
    Register.OUT_PITCH: RegisterMeaning(_U, 0, 64, "units from a row of the result to the next"),
    Register.OUT_HIGH_OFFSET: RegisterMeaning(_U, 0, 2**24 - 1, "HIGH_OFFSET of the result"),
    Register.OUT_ZERO_POINT: RegisterMeaning(_S, -32768, 32767, "zero point of the result"),
    Register.LOW: RegisterMeaning(_S, -32768, 32767, "lower clip bound of the result"),
    Register.HIGH: RegisterMeaning(_S, -32768, 32767, "upper clip bound of the result"),
    Register.SCALE: RegisterMeaning(
        _F, 0, MAX_SCALE, "scale of the source; multiplier of an average without `counted`"
    ),
    Register.SECOND_SCALE: RegisterMeaning(_F, 0, MAX_SCALE, "scale of the second operand"),
    Register.OUT_SCALE: RegisterMeaning(_F, 0, MAX_SCALE, "scale of the result"),
    Register.TABLE: RegisterMeaning(_U, 0, 255, "index of the table that Activate uses"),
    Register.SOURCE_LANE: RegisterMeaning(_U, 0, 2047, "first lane of the sums and parameters that a scale reads"),
    Register.OUT_UNITS: RegisterMeaning(_U, 0, 64, "units of a result row that are written; 0: all of its OUT_PITCH"),
}
"""The meaning of each register, in order of their numbers."""
