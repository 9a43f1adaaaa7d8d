"""`Cuts`: at which channels the planes of a tensor are cut, so that the parts of it that are wanted can be reached."""

from __future__ import annotations

from anytpu.chip.quantized.nodes import QuantizedNetwork


class Cuts:
    """The cuts of each tensor of a network."""

    def __init__(self, network: QuantizedNetwork):
        self._cuts: dict[str, frozenset[int]] = {}

    def of(self, tensor: str) -> frozenset[int]:
        """Return the channels at which a part starts."""
        return self._cuts.get(tensor, frozenset())
