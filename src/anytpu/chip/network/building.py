"""`build`: a trace as a network."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu.chip.graph.nodes import Network, Port
from anytpu.chip.network.drafting import TraceLowering
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.placement import place_operations
from anytpu.chip.network.simplifying import simplify
from anytpu.chip.network.trace import OperationTrace


def build(name: str, trace: OperationTrace, names: Sequence[str]) -> Network:
    """Return the network of a trace; `names` are the names of its inputs."""
    graph = NetworkGraph({value: trace.shape(value) for value in trace.inputs})
    TraceLowering(trace, place_operations(trace), graph).run()
    outputs = [Port(graph.tensor(value), trace.example(value), trace.dtype(value).name) for value in trace.outputs]
    inputs = [Port(value, trace.example(value), trace.dtype(value).name) for value in trace.inputs]
    return simplify(name, graph, dict(zip(names, inputs, strict=True)), outputs)
