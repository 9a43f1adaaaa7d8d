"""`Outline`: what is known of a network before anything is placed, whatever the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from anytpu.chip.compiler.cutting import Cuts
from anytpu.chip.compiler.joining import fusable, written_in_place
from anytpu.chip.quantized.nodes import QTable, QuantizedNetwork


@dataclasses.dataclass(frozen=True)
class Outline:
    """What is known of a network before anything is placed.

    Attributes:
        cuts: where channels are cut.
        fused: tables that are looked up by the instruction that makes what they take, by the name of that.
        parts: tensors that are written as a part of another one, with that and the first position.
    """

    cuts: Cuts
    fused: Mapping[str, QTable]
    parts: Mapping[str, tuple[str, int]]


def outline_of(network: QuantizedNetwork, *, in_place: bool) -> Outline:
    """Return the outline of a network; not `in_place`: parts are written by themselves, and copied."""
    return Outline(Cuts(network), fusable(network), written_in_place(network) if in_place else {})
