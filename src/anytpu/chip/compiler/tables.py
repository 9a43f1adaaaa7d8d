"""`TableSlots`: the lookup tables of a program, each in a slot of the activation unit."""

from __future__ import annotations

import numpy as np

from anytpu.chip.compiler.weight_memory import WeightMemory
from anytpu.chip.isa.instructions import ReadWeights
from anytpu.errors import CapacityError

SLOTS = 256
"""Number of tables in the activation unit: the range of register TABLE."""

_ENTRIES = 65536
_WIDE_BLOCKS = 64


class TableSlots:
    """The tables of a program, in the order of their slots; equal tables share a slot."""

    def __init__(self, memory: WeightMemory):
        self._memory = memory
        self._slots: dict[bytes, int] = {}
        self._loads: list[ReadWeights] = []

    def slot(self, table: np.ndarray, wide: bool, layer: str) -> int:
        """Return the slot of a table.

        Args:
            table: the output integer for each input integer, from the minimum on: 256 entries, or 65,536 for 16 bits.
            wide: whether the table is 16-bit. With 256 entries it then serves a 16-bit lookup of 8-bit integers.
            layer: the layer that uses it, for the message.

        Raises:
            CapacityError: there is no slot left.
        """
        entries = _widened(table) if wide else table.astype(np.int8)
        key = entries.tobytes()
        if key not in self._slots:
            if len(self._slots) == SLOTS:
                raise CapacityError(
                    f"{layer!r} needs one more table, and the chip holds {SLOTS}. Split the model in two and compile "
                    "each part."
                )
            number = self._slots[key] = len(self._slots)
            blocks = _WIDE_BLOCKS if wide else 1
            address = self._memory.reserve(("table", key), 1, blocks, lambda: entries[None])
            self._loads.append(ReadWeights(address, 1, "table", number, wide))
        return self._slots[key]

    @property
    def loads(self) -> tuple[ReadWeights, ...]:
        """The instructions that load the tables."""
        return tuple(self._loads)


def _widened(table: np.ndarray) -> np.ndarray:
    """Return 65,536 little-endian int16; a table of 256 entries is in the middle, at the 8-bit integers."""
    if len(table) == _ENTRIES:
        return table.astype("<i2")
    entries = np.zeros(_ENTRIES, "<i2")
    start = _ENTRIES // 2 - len(table) // 2
    entries[start : start + len(table)] = table
    return entries
