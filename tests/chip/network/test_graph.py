"""The order of a graph's nodes, while they are being changed."""

from __future__ import annotations

import anytpu  # noqa: F401  # isort: skip
from anytpu.chip.graph.nodes import Elementwise
from anytpu.chip.network.graph import NetworkGraph


def add(graph: NetworkGraph, output: str, first: str, second: str) -> None:
    graph.add(Elementwise(output, "", (first, second), output, "add"), (1, 1, 4))


def order(graph: NetworkGraph) -> list[str]:
    return [node.output for node in graph.ordered()]


def test_the_order_follows_each_change():
    graph = NetworkGraph({"x": (1, 1, 4)})
    add(graph, "%0", "x", "x")
    add(graph, "%2", "%0", "x")
    graph.outputs = {"%2"}
    assert order(graph) == ["%0", "%2"]
    add(graph, "%1", "%0", "%0")
    assert order(graph) == ["%0", "%2"]
    graph.change(graph.nodes["%2"], inputs=("%0", "%1"))
    assert order(graph) == ["%0", "%1", "%2"]
    assert next(iter(reversed(list(graph.ordered())))).inputs == ("%0", "%1")
    graph.outputs = {"%1"}
    assert order(graph) == ["%0", "%1"]
    graph.merge("%1", "%0")
    assert order(graph) == ["%0"]
