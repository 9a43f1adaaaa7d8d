"""`lowered`: lower all nodes of a network to jobs, with its inputs and outputs."""

from __future__ import annotations

from anytpu.chip.compiler import convolutions, hosting, pointwise, rearranging
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Tag
from anytpu.chip.isa.design import Design

_ = convolutions, pointwise, rearranging  # Imported to register the functions that lower their nodes.


def lowered(network: Network, batch: int, design: Design, *, by_content: bool, in_place: bool) -> Lowering:
    """Return the jobs of a network, with their storages, layouts and weights.

    Args:
        network, batch, design: as in `compile_image`.
        by_content: whether equal weights are found by content; otherwise, faster, by object identity.
        in_place: whether inputs of a concatenation are written directly into its output. Its storage is then written by
            several jobs, so it cannot be spilled in between.
    """
    lowering = Lowering(network, batch, design, by_content, in_place)
    # 1. Inputs come from the host's buffer.
    network = lowering.network
    outputs = {port.tensor for port in network.outputs} & network.quantizations.keys()
    for port in network.inputs:
        if port.tensor in network.quantizations:
            hosting.receive(port.tensor, port.tensor, lowering)
    # 2. Nodes in topological order; an output is exported right after the node that makes it.
    for node in network.nodes:
        lower(node, lowering)
        table = lowering.fused.get(node.output)
        made = node.output if table is None else table.output
        if made in outputs:
            hosting.export(made, node, Tag(node.name, node.layer, "output"), lowering)
    return lowering
