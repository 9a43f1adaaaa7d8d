"""`Design`: the parameters of a chip. The defaults are those of the first TPU.

Source: N. P. Jouppi et al., "In-Datacenter Performance Analysis of a Tensor Processing Unit", ISCA 2017 (arXiv
1704.04760): section 2, Table 2 and section 7. The host's two rates are labels of its Figure 1. The paper gives neither
the unit of an address nor the widths of the tables; they are chosen here.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from anytpu._calls import explain_methods
from anytpu.errors import SettingError

UNIT_BYTES = 32
"""Bytes per address of the Unified Buffer: 24 MiB are 786,432 units, a 20-bit address in 3 bytes."""

BLOCK_BYTES = 2048
"""Bytes per address of the Weight Memory: 8 GiB are 4,194,304 blocks, a 22-bit address in 3 bytes."""

COMPILED_FOR = ("array", "accumulator_rows", "unified_buffer_bytes", "weight_memory_bytes")
"""Parameters that the instructions depend on; the others only change the predicted time."""

MAX_COUNTS = {
    "array": 2048,
    "unified_buffer_bytes": 2**24 * UNIT_BYTES,
    "accumulator_rows": 2**16,
    "weight_memory_bytes": 2**24 * BLOCK_BYTES,
    "weight_fifo_tiles": 2**20,
    "dies": 2**20,
}
"""Maximum of each count: the limit of the instructions' fields; a million for waiting tiles and dies."""

_RATES = ("clock_hz", "weight_bytes_per_s", "host_bytes_per_s")
_MIN_RATE, _MAX_RATE = 1e-3, 1e18


@explain_methods
@dataclasses.dataclass(frozen=True)
class Design:
    """A chip: the sizes and rates of its parts.

    Attributes:
        array: rows and columns of the matrix unit, which is also the number of lanes of every row.
        clock_hz: clock rate of all units.
        unified_buffer_bytes: size of the on-chip memory for activations.
        accumulator_rows: number of rows of `array` 32-bit sums; one half is filled while the other is read.
        weight_fifo_tiles: number of weight tiles that can wait on the chip.
        weight_memory_bytes: size of the off-chip memory for weights.
        weight_bytes_per_s: read rate of the weight memory (34 GB/s: Table 2; the counters of Table 3 favour it over
            the 30 GiB/s of Figure 1).
        host_bytes_per_s: transfer rate between the host's memory and the Unified Buffer, in each direction (10
            GiB/s: Figure 1, Host Interface to Unified Buffer).
        dies: number of chips per server, each with its own memory and host link.

    Raises:
        SettingError: a number is not positive, a count is not an integer up to `MAX_COUNTS`, or a rate is not 0.001 to
            1e18.

    Example:
        >>> round(TPU_V1.peak_ops_per_s / 1e12, 2), round(TPU_V1.tile_cycles, 1)
        (91.75, 1349.3)
        >>> dataclasses.replace(TPU_V1, weight_bytes_per_s=4 * 34e9).tile_bytes
        65536
    """

    array: int = 256
    clock_hz: float = 700e6
    unified_buffer_bytes: int = 24 * 2**20
    accumulator_rows: int = 4096
    weight_fifo_tiles: int = 4
    weight_memory_bytes: int = 8 * 2**30
    weight_bytes_per_s: float = 34e9
    host_bytes_per_s: float = 10 * 2**30
    dies: int = 4

    def __post_init__(self):
        for name, maximum in MAX_COUNTS.items():
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 1 <= int(value) <= maximum:
                raise SettingError(f"{name} of a chip must be an integer from 1 to {maximum:,}, not {value!r}.")
        for name in _RATES:
            value = getattr(self, name)
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not is_number or value < _MIN_RATE or not value <= _MAX_RATE:
                raise SettingError(f"{name} of a chip must be a number from 0.001 to 1e18, not {value!r}.")

    def turned(self, knobs: Mapping[str, Any]) -> Design:
        """Return the chip with some numbers changed.

        Raises:
            SettingError: an unknown name, or an invalid value.

        Example:
            >>> TPU_V1.turned({"clock_hz": 1.4e9}).clock_hz
            1400000000.0
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in knobs:
            if name not in known:
                raise SettingError(f"a chip has no parameter {name!r}; the parameters are {', '.join(known)}.")
        return dataclasses.replace(self, **knobs)

    @property
    def compiled_for(self) -> tuple[int, ...]:
        """The values of `COMPILED_FOR`: chips with equal values run the same instructions."""
        return tuple(getattr(self, name) for name in COMPILED_FOR)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a weight tile, one per cell of the array."""
        return self.array * self.array

    @property
    def tile_blocks(self) -> int:
        """Size of a tile in blocks of the Weight Memory."""
        return -(-self.tile_bytes // BLOCK_BYTES)

    @property
    def parameter_blocks(self) -> int:
        """Size of a parameter block, 8 bytes per lane, in blocks of the Weight Memory."""
        return -(-8 * self.array // BLOCK_BYTES)

    @property
    def tile_cycles(self) -> float:
        """Cycles to read a weight tile from the Weight Memory."""
        return self.tile_bytes / self.weight_bytes_per_s * self.clock_hz

    @property
    def peak_ops_per_s(self) -> float:
        """Peak operations per second; a multiply-add counts two."""
        return 2 * self.array * self.array * self.clock_hz

    @property
    def ridge_macs_per_byte(self) -> float:
        """Multiply-adds per byte of weights above which the array, not the Weight Memory, is the limit (1350)."""
        return self.array * self.array * self.clock_hz / self.weight_bytes_per_s

    @property
    def buffer_units(self) -> int:
        """Size of the Unified Buffer, in units of `UNIT_BYTES`."""
        return self.unified_buffer_bytes // UNIT_BYTES


TPU_V1 = Design()
"""The first TPU."""
