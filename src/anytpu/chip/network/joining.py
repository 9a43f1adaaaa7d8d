"""Rewrite rules for slices, concatenations and adjacent products, as recurrent layers have them; and CSE.

Idea: a recurrent layer multiplies its input and its state by weights, adds, and slices the sum into gates. The two
products become one product over the concatenated inputs. The gates are slices of its result, so that one tile of
weights serves all of them.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.graph.nodes import Concatenate, Convolution, Elementwise, Function, Node, Reshape, Slice
from anytpu.chip.network.graph import NetworkGraph, is_plain


def merge_slices(graph: NetworkGraph, node: Node) -> bool:
    """Merge a slice of a slice; remove a slice of the whole tensor."""
    if not isinstance(node, Slice):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if (node.start, node.stop) == (0, graph.shapes[source][node.axis]):
        graph.merge(node.output, source)
        return True
    if not isinstance(before, Slice) or before.axis != node.axis:
        return False
    graph.change(node, inputs=before.inputs, start=before.start + node.start, stop=before.start + node.stop)
    graph.drop(source)
    return True


def slice_concatenation(graph: NetworkGraph, node: Node) -> bool:
    """Replace a slice of a concatenation by a slice, or a concatenation, of the inputs that it covers."""
    if not isinstance(node, Slice):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not isinstance(before, Concatenate) or before.axis != node.axis:
        return False
    at, met = 0, []
    for name in before.inputs:
        size = graph.shapes[name][node.axis]
        if at < node.stop and node.start < at + size:
            met.append((name, at, size))
        at += size
    first = met[0][1]
    if len(met) == 1:
        graph.change(node, inputs=(met[0][0],), start=node.start - first, stop=node.stop - first)
    elif first == node.start and met[-1][1] + met[-1][2] == node.stop and len(met) < len(before.inputs):
        inputs = tuple(name for name, _, _ in met)
        joined = Concatenate(node.name, node.layer, inputs, node.output, node.axis)
        graph.add(joined, graph.shapes[node.output])
    else:
        return False
    graph.drop(source)
    return True


def flatten_concatenations(graph: NetworkGraph, node: Node) -> bool:
    """Flatten nested concatenations; remove a concatenation with one input."""
    if not isinstance(node, Concatenate):
        return False
    if len(node.inputs) == 1:
        graph.merge(node.output, node.inputs[0])
        return True
    inner = [graph.nodes.get(name) for name in node.inputs]
    if not any(isinstance(maker, Concatenate) and maker.axis == node.axis for maker in inner):
        return False
    inputs: list[str] = []
    for name, maker in zip(node.inputs, inner, strict=True):
        inputs += maker.inputs if isinstance(maker, Concatenate) and maker.axis == node.axis else (name,)
    graph.change(node, inputs=tuple(inputs))
    for name in node.inputs:
        graph.drop(name)
    return True


def merge_summed_products(graph: NetworkGraph, node: Node) -> bool:
    """Replace the sum of two dense layers by one dense layer over the concatenation of their inputs."""
    if not isinstance(node, Elementwise) or node.kind == "multiply":
        return False
    first, second = (graph.nodes.get(name) for name in node.inputs)
    if not _is_term(graph, first) or not _is_term(graph, second) or first is second:
        return False
    assert isinstance(first, Convolution) and isinstance(second, Convolution)
    sign = 1 if node.kind == "add" else -1
    joined = f"{node.output}/inputs"
    sources = (first.inputs[0], second.inputs[0])
    depth = sum(graph.shapes[name][2] for name in sources)
    graph.add(Concatenate(joined, node.layer, sources, joined, 2), (1, 1, depth))
    whole = dataclasses.replace(
        first,
        layer=node.layer,
        inputs=(joined,),
        output=node.output,
        weights=graph.shared(_stacked, first.weights, second.weights, sign),
        bias=graph.shared(_summed, first.bias, second.bias, sign),
        low=node.low,
        high=node.high,
    )
    graph.add(whole, graph.shapes[node.output])
    for term in (first, second):
        graph.drop(term.output)
    return True


def _stacked(first: np.ndarray, second: np.ndarray, sign: int) -> np.ndarray:
    return np.concatenate([first, second if sign > 0 else -second], axis=2)


def _summed(first: np.ndarray, second: np.ndarray, sign: int) -> np.ndarray:
    return first + second if sign > 0 else first - second


def _is_term(graph: NetworkGraph, node: Node | None) -> bool:
    return (
        isinstance(node, Convolution)
        and is_plain(node)
        and node.low is None
        and node.high is None
        and graph.has_one_user(node.output)
        and graph.shapes[node.inputs[0]][:2] == (1, 1)
    )


def eliminate_common_nodes(graph: NetworkGraph) -> bool:
    """Merge equal slices, concatenations, reshapes and functions of equal inputs (CSE)."""
    met: dict[object, str] = {}
    changed = False
    for node in list(graph.ordered()):
        if graph.nodes.get(node.output) is not node or not isinstance(node, Slice | Concatenate | Reshape | Function):
            continue
        more = node.apply if isinstance(node, Function) else (getattr(node, "axis", 0), getattr(node, "start", 0))
        key = (type(node), node.inputs, more, graph.shapes[node.output])
        other = met.setdefault(key, node.output)
        if other != node.output and node.output not in graph.outputs:
            graph.merge(node.output, other)
            changed = True
    return changed
