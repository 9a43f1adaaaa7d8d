"""`TableSlots`: the functions of one number that a program looks up, each in a slot of the activation unit."""

from __future__ import annotations

import numpy as np

from anytpu.chip.compiler.weight_memory import WeightMemory
from anytpu.chip.isa.instructions import ReadWeights
from anytpu.errors import CapacityError

SLOTS = 256
"""Tables that the activation unit holds, by the range of register TABLE."""

_ENTRIES = 65536
_WIDE_BLOCKS = 64


class TableSlots:
    """The tables of a program, in the order of their slots. Those that are equal share a slot."""

    def __init__(self, memory: WeightMemory):
        self._memory = memory
        self._slots: dict[bytes, int] = {}
        self._loads: list[ReadWeights] = []

    def slot(self, table: np.ndarray, wide: bool, layer: str) -> int:
        """Return the slot of a table.

        Args:
            table: one integer for each that may be looked up, from the least on: 256 or, of 16 bits, 65,536.
            wide: of 16 bits. A table of 256 entries then answers for the integers of 8 bits, which are all that comes.
            layer: who looks it up, for the message.

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
        """The instructions that load them."""
        return tuple(self._loads)


def _widened(table: np.ndarray) -> np.ndarray:
    """Return 65,536 little-endian int16: a table of 256 stands in the middle, where the integers of 8 bits are."""
    if len(table) == _ENTRIES:
        return table.astype("<i2")
    entries = np.zeros(_ENTRIES, "<i2")
    start = _ENTRIES // 2 - len(table) // 2
    entries[start : start + len(table)] = table
    return entries
