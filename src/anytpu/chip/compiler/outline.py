"""`Outline`: cuts, fused tables and in-place parts of a network, for any batch and before any address is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from anytpu.chip.compiler.cutting import ChannelCuts
from anytpu.chip.compiler.joining import are_gates, fusable_tables, joint_products, shared_rows, written_in_place
from anytpu.chip.graph.nodes import Convolution, Network, Table
from anytpu.chip.graph.splitting import split_products
from anytpu.chip.isa.design import Design


@dataclasses.dataclass(frozen=True)
class Outline:
    """Facts about a network that do not depend on the batch or on addresses.

    Attributes:
        network: the network, in which gates are products of their own.
        cuts: the channels at which tensors are cut.
        fused: maps a tensor to the table that the instruction that makes it also looks up.
        parts: maps a tensor that is written into a concatenation to its output, first position and channel there.
        shared: concatenations of channels that are copied, so that their channels share rows.
        joints: maps the result of a convolution to those that are made side by side with it.
    """

    network: Network
    cuts: ChannelCuts
    fused: Mapping[str, Table]
    parts: Mapping[str, tuple[str, int, int]]
    shared: Collection[str]
    joints: Mapping[str, Sequence[Convolution]]


def outline_of(network: Network, batch: int, design: Design, *, in_place: bool) -> Outline:
    """Return the outline of a network.

    Args:
        network, batch: as in `compile_image`.
        design: the chip.
        in_place: whether a storage may be written by several jobs, and a job may write several storages. Otherwise
            inputs of concatenations are copied, and each product is by itself.
    """
    if not in_place:
        return Outline(network, ChannelCuts(network), fusable_tables(network), {}, (), {})
    network = split_products(network, lambda alike: are_gates(network, alike))
    cuts = ChannelCuts(network)
    shared = shared_rows(network, cuts, batch, design)
    parts, joints = written_in_place(network, shared), joint_products(network, design.array)
    return Outline(network, cuts, fusable_tables(network), parts, shared, joints)
