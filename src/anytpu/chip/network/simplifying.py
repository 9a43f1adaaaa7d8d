"""`simplify`: peephole optimization of a graph.

Idea: each rule examines one node and its neighbours. All rules are applied until a fixed point.

Rule: no rule changes the function that the graph computes, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anytpu.chip.graph.nodes import Network, Node, Port
from anytpu.chip.network import folding, joining
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.naming import named

_RULES: tuple[Callable[[NetworkGraph, Node], bool], ...] = (
    folding.name_function,
    folding.merge_reshapes,
    folding.fold_flatten,
    folding.fold_padding,
    folding.fold_channel_scale,
    folding.fold_affine_function,
    folding.move_before_parts,
    joining.merge_slices,
    joining.slice_concatenation,
    joining.flatten_concatenations,
    joining.merge_summed_products,
    folding.fold_scale_forward,
)


def simplify(name: str, graph: NetworkGraph, inputs: Mapping[str, Port], outputs: Sequence[Port]) -> Network:
    """Return the simplified network of a graph, with readable names."""
    graph.outputs = {port.tensor for port in outputs}
    while any([joining.eliminate_common_nodes(graph), *(_pass(graph, rule) for rule in _RULES)]):
        pass
    ports = [Port(graph.tensor(port.tensor), port.shape, port.dtype) for port in outputs]
    return named(name, graph, inputs, ports)


def _pass(graph: NetworkGraph, rule: Callable[[NetworkGraph, Node], bool]) -> bool:
    changed = False
    for node in list(graph.ordered()):
        if graph.nodes.get(node.output) is node:
            changed = rule(graph, node) or changed
    return changed
