"""Making a network smaller without changing what it computes.

Idea: rules that each look at one node and its neighbours, applied until none finds anything more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anytpu.chip.network import folding, joining
from anytpu.chip.network.graph import Graph
from anytpu.chip.network.naming import named
from anytpu.chip.network.nodes import Network, Node, Port

_RULES: tuple[Callable[[Graph, Node], bool], ...] = (
    folding.function,
    folding.reshape,
    folding.flatten,
    folding.padding,
    folding.affine,
    folding.line,
    joining.part_of_part,
    joining.part_of_join,
    joining.join_of_joins,
    joining.sum_of_products,
    joining.part_across,
    joining.part_of_product,
    folding.forward,
)


def simplify(name: str, graph: Graph, inputs: Mapping[str, Port], outputs: Sequence[Port]) -> Network:
    """Return the network of a graph, simplified and with names for people."""
    graph.outputs = {port.tensor for port in outputs}
    while any([joining.twins(graph), *(_pass(graph, rule) for rule in _RULES)]):
        pass
    ports = [Port(graph.tensor(port.tensor), port.shape, port.dtype) for port in outputs]
    return named(name, graph, inputs, ports)


def _pass(graph: Graph, rule: Callable[[Graph, Node], bool]) -> bool:
    changed = False
    for node in list(graph.ordered()):
        if graph.nodes.get(node.output) is node:
            changed = rule(graph, node) or changed
    return changed
