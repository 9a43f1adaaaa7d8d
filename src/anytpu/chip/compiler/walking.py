"""`lowered`: all nodes of a network as jobs, its inputs and outputs included."""

from __future__ import annotations

from anytpu.chip.compiler import convolutions, hosting, pointwise, rearranging
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.design import Design
from anytpu.chip.image import Tag
from anytpu.chip.quantized.nodes import QuantizedNetwork

_ = convolutions, pointwise, rearranging  # They say how their nodes are lowered.


def lowered(
    network: QuantizedNetwork, batch: int, design: Design, convolution: str, *, by_content: bool, in_place: bool
) -> Lowering:
    """Return the jobs of a network, and what they work on.

    Args:
        network, batch, design, convolution: as in `compile_image`.
        by_content: weights are compared by their content; else, faster, by which arrays they are.
        in_place: parts of a concatenation are written where the whole lies, so that it is not written at once.
    """
    lowering = Lowering(network, batch, design, convolution, by_content, in_place)
    outputs = {port.tensor for port in network.outputs} & network.quantizations.keys()
    for port in network.inputs:
        if port.tensor in network.quantizations:
            hosting.receive(port.tensor, port.tensor, lowering)
    for node in network.nodes:
        lower(node, lowering)
        table = lowering.fused.get(node.output)
        made = node.output if table is None else table.output
        if made in outputs:
            hosting.export(made, node, Tag(node.name, node.layer, "output"), lowering)
    return lowering
