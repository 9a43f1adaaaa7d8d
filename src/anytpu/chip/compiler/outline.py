"""`Outline`: facts about a network that hold before anything is placed, for any batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from anytpu.chip.compiler.cutting import ChannelCuts
from anytpu.chip.compiler.joining import fusable_tables, written_in_place
from anytpu.chip.quantized.nodes import QTable, QuantizedNetwork


@dataclasses.dataclass(frozen=True)
class Outline:
    """Facts about a network that hold before anything is placed.

    Attributes:
        cuts: the channels at which tensors are cut.
        fused: tables that are looked up by the instruction that makes their input, by the input's name.
        parts: tensors that are written as a part of another tensor, with its name and their first position in it.
    """

    cuts: ChannelCuts
    fused: Mapping[str, QTable]
    parts: Mapping[str, tuple[str, int]]


def outline_of(network: QuantizedNetwork, *, in_place: bool) -> Outline:
    """Return the outline of a network; without `in_place`, parts are written by themselves, and copied."""
    return Outline(ChannelCuts(network), fusable_tables(network), written_in_place(network) if in_place else {})
