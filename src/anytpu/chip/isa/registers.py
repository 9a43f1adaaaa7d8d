"""The registers that `SetConfiguration` sets. An instruction works with the values they had when it was issued.

Idea: the twelve bytes of a product hold its addresses and its length. Values that are constant over a layer (the
geometry of a convolution, the zero points) are in registers, set once for the layer.

Rule: this table is the definition; the encoder, the assembler, the page of documentation and the machine read it. All
registers are 0 at the start. "Units" are of 32 bytes of the Unified Buffer. "Rows" of a plane are in position-major
order: row (h * width + w) * batch + n holds the lanes of position (h, w) of example n.
"""

from __future__ import annotations

import enum
from typing import Self


class RegisterKind(enum.Enum):
    """The data type of a register's 32 bits."""

    UNSIGNED = "unsigned"
    SIGNED = "signed"
    FLOAT = "float32"


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


class Register(enum.IntEnum):
    """A register: its number as encoded in the instruction, and its meaning.

    Attributes:
        kind: data type of its 32 bits.
        minimum, maximum: bounds of its value; a float must be above `minimum`.
        text: a phrase for the documentation.
    """

    kind: RegisterKind
    minimum: int
    maximum: int
    text: str

    def __new__(cls, number: int, kind: RegisterKind, minimum: int, maximum: int, text: str) -> Self:
        """Make the member of a number."""
        register = int.__new__(cls, number)
        register._value_ = number
        register.kind, register.minimum, register.maximum, register.text = kind, minimum, maximum, text
        return register

    # Read by Convolve, by a pool of Activate, and in part by MatrixMultiply.
    PITCH = 0, _U, 0, 64, "units from a source row to the next"
    PLANE_STRIDE = 1, _U, 0, 2**24 - 1, "units from the plane of a MatrixMultiply pass to the next"
    HIGH_OFFSET = 2, _U, 0, 2**24 - 1, "units from the plane of low bytes to the plane of high bytes (16 bits)"
    LANES = 3, _U, 0, 2048, "lanes of a row that a tap of Convolve feeds into the array"
    BATCH = 4, _U, 0, _WORD, "rows for each position: the number of examples"
    IN_HEIGHT = 5, _U, 0, _WORD, "height of the source, in positions"
    IN_WIDTH = 6, _U, 0, _WORD, "width of the source, in positions"
    OUT_WIDTH = 7, _U, 0, _WORD, "width of the result, in positions"
    FIRST_ROW = 8, _U, 0, _WORD, "first result row that the instruction makes"
    KERNEL_HEIGHT = 9, _U, 0, 65535, "height of the window, in taps"
    KERNEL_WIDTH = 10, _U, 0, 65535, "width of the window, in taps"
    STRIDE_HEIGHT = 11, _U, 0, 65535, "positions from a window to the next, down"
    STRIDE_WIDTH = 12, _U, 0, 65535, "positions from a window to the next, right"
    DILATION_HEIGHT = 13, _U, 0, 65535, "positions from a tap to the next, down"
    DILATION_WIDTH = 14, _U, 0, 65535, "positions from a tap to the next, right"
    PAD_TOP = 15, _S, -32768, 32767, "positions of padding above the source"
    PAD_LEFT = 16, _S, -32768, 32767, "positions of padding left of the source"
    TAPS = 17, _U, 0, 65535, "taps that a pass of Convolve places side by side"
    FIRST_TAP = 18, _U, 0, _WORD, "first tap of the first pass of Convolve"
    # Read by Activate, in addition to the geometry above for a pool.
    ZERO_POINT = 32, _S, -32768, 32767, "zero point of the source; Convolve reads it outside of the source"
    SECOND_PITCH = 33, _U, 0, 64, "units from a row of the second operand to the next"
    SECOND_ROWS = 34, _U, 0, _WORD, "rows of the second operand, used cyclically"
    SECOND_HIGH_OFFSET = 35, _U, 0, 2**24 - 1, "HIGH_OFFSET of the second operand"
    SECOND_ZERO_POINT = 36, _S, -32768, 32767, "zero point of the second operand"
    OUT_PITCH = 37, _U, 0, 64, "units from a row of the result to the next"
    OUT_HIGH_OFFSET = 38, _U, 0, 2**24 - 1, "HIGH_OFFSET of the result"
    OUT_ZERO_POINT = 39, _S, -32768, 32767, "zero point of the result"
    LOW = 40, _S, -32768, 32767, "lower clip bound of the result"
    HIGH = 41, _S, -32768, 32767, "upper clip bound of the result"
    SCALE = 42, _F, 0, MAX_SCALE, "scale of the source; multiplier of an average without `counted`"
    SECOND_SCALE = 43, _F, 0, MAX_SCALE, "scale of the second operand"
    OUT_SCALE = 44, _F, 0, MAX_SCALE, "scale of the result"
    TABLE = 45, _U, 0, 255, "index of the table that Activate uses"
    SOURCE_LANE = 46, _U, 0, 2047, "first lane of the sums and parameters that a scale reads"
    OUT_UNITS = 47, _U, 0, 64, "units of a result row that are written; 0: all of its OUT_PITCH"
