"""Rules that make two nodes one. Each says whether it changed something."""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.network import functions
from anytpu.chip.network.graph import Graph, is_affine, is_plain
from anytpu.chip.network.nodes import Convolution, Elementwise, Function, Node, Reshape


def function(graph: Graph, node: Node) -> bool:
    """Name a function; leave out one that does nothing."""
    if not isinstance(node, Function) or node.kind != "function":
        return False
    if functions.is_identity(node.apply):
        graph.merge(node.output, node.inputs[0])
        return True
    kind = functions.kind_of(node.apply)
    if kind != "function":
        graph.change(node, kind=kind)
    return kind != "function"


def clip(graph: Graph, node: Node) -> bool:
    """Let what comes before a clip do it."""
    if not isinstance(node, Function) or node.kind not in ("relu", "relu6", "clip"):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not isinstance(before, Convolution | Elementwise) or not graph.has_one_user(source):
        return False
    found = functions.clip_of(node.apply)
    if found is None or before.low is not None or before.high is not None:
        return False
    graph.add(dataclasses.replace(before, output=node.output, low=found[0], high=found[1]), graph.shapes[node.output])
    graph.drop(source)
    return True


def affine(graph: Graph, node: Node) -> bool:
    """Make a factor and a summand for each channel part of the weights before them."""
    if not isinstance(node, Convolution) or not is_affine(node):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not isinstance(before, Convolution) or before.low is not None or not graph.has_one_user(source):
        return False
    factor = node.weights.reshape(-1)
    merged = dataclasses.replace(
        before,
        output=node.output,
        weights=(before.weights * factor).astype(np.float32),
        bias=(before.bias * factor + node.bias).astype(np.float32),
        low=node.low,
        high=node.high,
    )
    graph.add(merged, graph.shapes[node.output])
    graph.drop(source)
    return True


def reshape(graph: Graph, node: Node) -> bool:
    """Make two reshapes one, and none of one that changes nothing."""
    if not isinstance(node, Reshape):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if isinstance(before, Reshape):
        graph.change(node, inputs=before.inputs)
        graph.drop(source)
        return True
    if graph.shapes[source] == graph.shapes[node.output]:
        graph.merge(node.output, source)
        return True
    return False


def flatten(graph: Graph, node: Node) -> bool:
    """Make a dense layer of a picture laid out in a line a convolution whose kernel is the whole picture."""
    if not isinstance(node, Convolution) or not is_plain(node):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not isinstance(before, Reshape) or graph.shapes[source][:2] != (1, 1):
        return False
    height, width, channels = graph.shapes[before.inputs[0]]
    weights = node.weights.reshape(height, width, channels, -1)
    graph.change(node, inputs=before.inputs, weights=weights)
    graph.drop(source)
    return True


def padding(graph: Graph, node: Node) -> bool:
    """Make zeros around a tensor the padding of the convolution after them."""
    if not isinstance(node, Convolution):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not isinstance(before, Convolution) or not _is_only_padding(before):
        return False
    sums = [(a + c, b + d) for (a, b), (c, d) in zip(before.padding, node.padding, strict=True)]
    # Zeros that were put around and cut off again would come back as numbers of the picture.
    if any(min(pair) < 0 for pair in (*before.padding, *node.padding)):
        return False
    graph.change(node, inputs=before.inputs, padding=(sums[0], sums[1]))
    graph.drop(source)
    return True


def _is_only_padding(node: Convolution) -> bool:
    return (
        node.weights.shape[:3] == (1, 1, 1)
        and node.groups == node.weights.shape[3]
        and node.strides == (1, 1)
        and any(map(any, node.padding))
        and bool((node.weights == 1).all() and (node.bias == 0).all())
        and node.low is None
    )
