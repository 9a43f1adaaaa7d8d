"""Rewrite rules that fuse a node with an adjacent node. Each returns whether it changed the graph."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from anytpu.chip.graph.nodes import Concatenate, Convolution, Elementwise, Function, Node, Reshape, Slice
from anytpu.chip.network import functions
from anytpu.chip.network.graph import NetworkGraph, is_affine, is_plain

MAX_SPREAD = 4
"""Maximum ratio of the largest channel scale to the median, to fold scales into the next layer's weights. All input
channels share the 8 bits of an output channel's weights, so an outlier would cost the others their precision."""


def name_function(graph: NetworkGraph, node: Node) -> bool:
    """Name a function by its values; remove an identity."""
    if not isinstance(node, Function) or node.kind != "function":
        return False
    if graph.shared(functions.is_identity, node.apply):
        graph.merge(node.output, node.inputs[0])
        return True
    kind = graph.shared(functions.kind_of, node.apply)
    if kind != "function":
        graph.change(node, kind=kind)
    return kind != "function"


def fold_affine_function(graph: NetworkGraph, node: Node) -> bool:
    """Fold an affine function or a clip into the convolution or elementwise operation before it."""
    if not isinstance(node, Function):
        return False
    (source,) = node.inputs
    before, affine = graph.nodes.get(source), graph.shared(functions.affine_bounds_of, node.apply)
    if affine is None or not isinstance(before, Convolution | Elementwise) or not graph.has_one_user(source):
        return False
    factor, offset, low, high = affine
    if before.low is not None or before.high is not None:
        return False
    changes = {"output": node.output}
    if (low, high) != (-math.inf, math.inf):
        changes |= {"low": low, "high": high}
    if isinstance(before, Convolution):
        changes |= {"weights": graph.shared(_times, before.weights, factor)}
        changes |= {"bias": graph.shared(_plus, graph.shared(_times, before.bias, factor), offset)}
    elif (factor, offset) != (1, 0):
        return False
    graph.add(dataclasses.replace(before, **changes), graph.shapes[node.output])
    graph.drop(source)
    return True


def _times(array: np.ndarray, factor: float) -> np.ndarray:
    return array if factor == 1 else array * np.float32(factor)


def _plus(array: np.ndarray, offset: float) -> np.ndarray:
    return array + np.float32(offset)


def move_before_parts(graph: NetworkGraph, node: Node) -> bool:
    """Move a function, or a scale and an offset per channel, before a concatenation of positions of convolutions.

    There it is folded into each of them. The parts of a transposed convolution are concatenated.
    """
    if not (isinstance(node, Function) or (isinstance(node, Convolution) and is_affine(node))):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not graph.has_one_user(source) or not _is_of_convolutions(graph, before):
        return False
    assert isinstance(before, Concatenate | Reshape | Slice)
    if isinstance(before, Reshape) and graph.shapes[before.inputs[0]][2] != graph.shapes[source][2]:
        return False
    names = {name: f"{name}/{node.output}" for name in before.inputs}
    for name, moved in names.items():
        graph.add(dataclasses.replace(node, inputs=(name,), output=moved), graph.shapes[name])
    graph.add(dataclasses.replace(before, inputs=tuple(names.values()), output=node.output), graph.shapes[node.output])
    graph.drop(source)
    return True


def _is_of_convolutions(graph: NetworkGraph, node: Node | None) -> bool:
    """Return whether a node only concatenates, cuts or reshapes positions of convolutions of several parts."""
    met_parts, waiting = False, [node]
    while waiting:
        node = waiting.pop()
        if (isinstance(node, Concatenate | Slice) and node.axis != 2) or isinstance(node, Reshape):
            met_parts |= isinstance(node, Concatenate)
            if not all(graph.has_one_user(name) for name in node.inputs):
                return False
            waiting += [graph.nodes.get(name) for name in node.inputs]
        elif not isinstance(node, Convolution) or node.low is not None or node.high is not None:
            return False
    return met_parts


def fold_channel_scale(graph: NetworkGraph, node: Node) -> bool:
    """Fold a scale and an offset per channel into the weights of the convolution before (batch normalization)."""
    if not isinstance(node, Convolution) or not is_affine(node):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not isinstance(before, Convolution) or before.low is not None or not graph.has_one_user(source):
        return False
    merged = dataclasses.replace(
        before,
        output=node.output,
        weights=graph.shared(_scaled, before.weights, node.weights),
        bias=graph.shared(_moved, before.bias, node.weights, node.bias),
        low=node.low,
        high=node.high,
    )
    graph.add(merged, graph.shapes[node.output])
    graph.drop(source)
    return True


def fold_scale_forward(graph: NetworkGraph, node: Node) -> bool:
    """Fold a scale and an offset into the weights of the convolutions after, if no rule could fold it backwards."""
    affine = _affine_of(graph, node)
    if affine is None or node.output in graph.outputs or not graph.users.get(node.output):
        return False
    factor, offset = affine
    sizes = np.abs(factor)
    if sizes.max() > MAX_SPREAD * np.median(sizes):
        return False
    after = [graph.nodes[user] for user in graph.users[node.output]]
    if not all(isinstance(user, Convolution) and not is_affine(user) for user in after):
        return False
    # With zero padding an offset cannot be folded: it would not apply to the padding.
    if np.any(offset) and any(isinstance(user, Convolution) and any(map(any, user.padding)) for user in after):
        return False
    for user in after:
        assert isinstance(user, Convolution)
        before = graph.shared(_spread, user.weights, np.broadcast_to(factor, (_depth(user),)), user.groups)
        moved = graph.shared(_spread, user.weights, np.broadcast_to(offset, (_depth(user),)), user.groups)
        bias = (user.bias + moved.astype(np.float64).sum((0, 1, 2))).astype(np.float32)
        graph.change(user, inputs=node.inputs, weights=before, bias=bias)
    graph.drop(node.output)
    return True


def _affine_of(graph: NetworkGraph, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    if isinstance(node, Convolution) and is_affine(node) and node.low is None and node.high is None:
        return node.weights.reshape(-1), node.bias
    if isinstance(node, Function) and node.kind == "scale":
        affine = graph.shared(functions.affine_bounds_of, node.apply)
        return (np.array(affine[:1], np.float32), np.array(affine[1:2], np.float32)) if affine is not None else None
    return None


def _depth(node: Convolution) -> int:
    return node.weights.shape[2] * node.groups


def _spread(weights: np.ndarray, factor: np.ndarray, groups: int) -> np.ndarray:
    """Multiply weights by a factor per input channel."""
    inputs, outputs = weights.shape[2:]
    blocks = factor.reshape(groups, inputs).T
    return (weights * np.repeat(blocks, outputs // groups, axis=1)).astype(np.float32)


def _scaled(weights: np.ndarray, factor: np.ndarray) -> np.ndarray:
    return weights if bool((factor == 1).all()) else (weights * factor.reshape(-1)).astype(np.float32)


def _moved(bias: np.ndarray, factor: np.ndarray, offset: np.ndarray) -> np.ndarray:
    return (bias * factor.reshape(-1) + offset).astype(np.float32)


def merge_reshapes(graph: NetworkGraph, node: Node) -> bool:
    """Merge two reshapes; remove an identity."""
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


def fold_flatten(graph: NetworkGraph, node: Node) -> bool:
    """Replace a flatten and a dense layer by a convolution whose kernel is the whole image."""
    if not isinstance(node, Convolution) or not is_plain(node):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not isinstance(before, Reshape) or graph.shapes[source][:2] != (1, 1):
        return False
    height, width, channels = graph.shapes[before.inputs[0]]
    weights = graph.shared(np.reshape, node.weights, (height, width, channels, node.weights.shape[3]))
    # The dilation of a kernel of one position has no effect, but that of the new kernel would.
    graph.change(node, inputs=before.inputs, weights=weights, dilation=(1, 1))
    graph.drop(source)
    return True


def fold_padding(graph: NetworkGraph, node: Node) -> bool:
    """Fold zero padding into the convolution after it."""
    if not isinstance(node, Convolution):
        return False
    (source,) = node.inputs
    before = graph.nodes.get(source)
    if not isinstance(before, Convolution) or not _is_only_padding(before):
        return False
    sums = [(a + c, b + d) for (a, b), (c, d) in zip(before.padding, node.padding, strict=True)]
    # Padding and cropping do not add up: cropped zeros would be replaced by values of the image.
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
