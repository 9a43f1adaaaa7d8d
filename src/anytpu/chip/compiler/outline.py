"""`Outline`: cuts, fused tables and in-place parts of a network, for any batch and before any address is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from anytpu.chip.compiler.cutting import ChannelCuts
from anytpu.chip.compiler.joining import fusable_tables, written_in_place
from anytpu.chip.graph.nodes import Network, Table


@dataclasses.dataclass(frozen=True)
class Outline:
    """Facts about a network that do not depend on the batch or on addresses.

    Attributes:
        cuts: the channels at which tensors are cut.
        fused: maps a tensor to the table that the instruction that makes it also looks up.
        parts: maps a tensor that is written into a concatenation to its output and the first position there.
    """

    cuts: ChannelCuts
    fused: Mapping[str, Table]
    parts: Mapping[str, tuple[str, int]]


def outline_of(network: Network, *, in_place: bool) -> Outline:
    """Return the outline of a network; without `in_place`, inputs of concatenations are copied."""
    return Outline(ChannelCuts(network), fusable_tables(network), written_in_place(network) if in_place else {})
