"""Readable names: nodes are named after their layers, tensors after the nodes that make them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from anytpu.chip.graph.names import Names
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Function,
    HostStep,
    Network,
    Node,
    Pool,
    Port,
    Reshape,
    Slice,
)
from anytpu.chip.network.graph import NetworkGraph, is_affine

_WORDS: dict[type[Node], str] = {Concatenate: "concatenate", Slice: "slice", Reshape: "reshape"}


def named(name: str, graph: NetworkGraph, inputs: Mapping[str, Port], outputs: Sequence[Port]) -> Network:
    """Return the network of a graph, its nodes and tensors named after the layers they came from.

    Args:
        name: name of the network.
        graph: its nodes.
        inputs: the inputs, by the user's names.
        outputs: the outputs, in order.
    """
    tensors = {port.tensor: called for called, port in inputs.items()}
    shapes = {called: graph.shapes[port.tensor] for called, port in inputs.items()}
    names = Names(inputs)
    nodes = []
    for node in graph.ordered():
        wanted = f"{node.layer}/{_word(node, graph)}" if node.layer else _word(node, graph)
        unique = names.unused(wanted)
        tensors[node.output] = unique
        shapes[unique] = graph.shapes[node.output]
        sources = tuple(tensors[source] for source in node.inputs)
        nodes.append(dataclasses.replace(node, name=unique, inputs=sources, output=unique))
    ports = tuple(dataclasses.replace(port, tensor=tensors[port.tensor]) for port in outputs)
    sources = tuple(dataclasses.replace(port, tensor=called) for called, port in inputs.items())
    return Network(name, sources, ports, shapes, {}, tuple(nodes))


def _word(node: Node, graph: NetworkGraph) -> str:
    if isinstance(node, Convolution):
        if is_affine(node):
            return "scale"
        whole = graph.shapes[node.output][:2] == (1, 1) and node.groups == 1 and not any(map(any, node.padding))
        return (
            "dense"
            if whole or (node.weights.shape[:2] == (1, 1) and graph.shapes[node.output][0] == 1)
            else "convolution"
        )
    if isinstance(node, Pool):
        return f"{node.kind}_pool"
    if isinstance(node, Function | HostStep | Elementwise):
        return node.kind.replace(", ", "_").replace(" ", "_")
    return _WORDS[type(node)]
