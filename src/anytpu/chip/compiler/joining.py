"""Fusion of nodes: a table into the instruction that makes its input, a concatenation's input into the whole."""

from __future__ import annotations

from collections import Counter

from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Network,
    Node,
    Pool,
    Reshape,
    Table,
)

_MAKERS = Convolution | Elementwise | Pool | Table


def fusable_tables(network: Network) -> dict[str, Table]:
    """Return the tables that can be fused into the instruction that makes their input, by the input tensor.

    The table must be the only user of its input, and have as many bits.
    """
    uses = Counter(name for node in network.nodes for name in node.inputs)
    uses.update(port.tensor for port in network.outputs)
    makers = {node.output: node for node in network.nodes}
    tables = {}
    for node in network.nodes:
        if not isinstance(node, Table) or uses[node.inputs[0]] != 1:
            continue
        bits = {network.quantizations[name].bits for name in (node.inputs[0], node.output)}
        if isinstance(makers.get(node.inputs[0]), Convolution | Elementwise | Pool) and len(bits) == 1:
            tables[node.inputs[0]] = node
    return tables


def written_in_place(network: Network) -> dict[str, tuple[str, int]]:
    """Return the tensors that are written directly into a concatenation: its output, and the first position there.

    The concatenation must be along the height, or along the width of a sequence. Each input is then a range of rows.
    """
    makers = {node.output: node for node in network.nodes}
    parts: dict[str, tuple[str, int]] = {}
    for node in network.nodes:
        if not isinstance(node, Concatenate) or node.axis == 2:
            continue
        if node.axis == 1 and network.shapes[node.output][0] > 1:
            continue
        first = 0
        for name in node.inputs:
            height, width, _ = network.shapes[name]
            origin = _origin(name, makers, network)
            if origin is not None and origin not in parts:
                parts[origin] = (node.output, first)
            first += height * width
    return parts


def _origin(tensor: str, makers: dict[str, Node], network: Network) -> str | None:
    """Return the tensor that an instruction writes and `tensor` is a reshape of; None: no instruction writes it."""
    node = makers.get(tensor)
    while isinstance(node, Reshape) and network.shapes[node.inputs[0]][2] == network.shapes[tensor][2]:
        tensor = node.inputs[0]
        node = makers.get(tensor)
    return tensor if isinstance(node, _MAKERS) or (isinstance(node, Concatenate) and node.axis != 2) else None
