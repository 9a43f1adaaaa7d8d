"""Split products whose result is only used in slices of channels, as the gates of a recurrent layer.

Idea: a product with a slice of the weights makes a slice of the result. In floats such products may have scales of
their own; in integers each may look up a table of its own. The compiler puts products of one input side by side in the
same tiles, so a split costs no tile. Slices that overlap would need some weights twice: their product stays whole.

Rule: parts with equal weights share their arrays. The steps of an unrolled loop do.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anytpu.chip.graph.nodes import Convolution, Network, Slice

Parts = dict[str, list[Slice]]
"""The slices of the result of each product, by the name of the result."""


def products_in_slices(network: Network) -> Parts:
    """Return the slices of channels of each product whose result has no other use; they do not overlap."""
    outputs = {port.tensor for port in network.outputs}
    products = {node.output: node for node in network.nodes if isinstance(node, Convolution) and node.groups == 1}
    parts: Parts = {name: [] for name in products if name not in outputs}
    for node in network.nodes:
        for name in node.inputs:
            if isinstance(node, Slice) and node.axis == 2 and name in parts:
                parts[name].append(node)
            else:
                parts.pop(name, None)
    return {name: slices for name, slices in parts.items() if slices and not _overlap(slices)}


def _overlap(slices: Sequence[Slice]) -> bool:
    ordered = sorted(slices, key=lambda part: (part.start, part.stop))
    return any(part.stop > other.start for part, other in itertools.pairwise(ordered))


def split_products(network: Network, is_split: Callable[[Sequence[Sequence[Slice]]], bool]) -> Network:
    """Return a network in which products are split into a product for each slice of their result.

    Args:
        network: a network in floats or in integers.
        is_split: decides for the slices of some products of the same weights, the same slices of each.
    """
    # 1. The products by their weights: those of an unrolled loop are split alike.
    parts = products_in_slices(network)
    makers = {node.output: node for node in network.nodes if isinstance(node, Convolution)}
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name, slices in parts.items():
        cuts = tuple((part.start, part.stop) for part in slices)
        alike.setdefault((id(makers[name].weights), id(makers[name].bias), cuts), []).append(name)
    chosen = {name for names in alike.values() if is_split([parts[name] for name in names]) for name in names}
    if not chosen:
        return network
    # 2. Each of their slices becomes a product with the slice's weights.
    made, arrays = [], dict[tuple[int, int, int], np.ndarray]()

    def cut(array: np.ndarray, part: Slice) -> np.ndarray:
        key = id(array), part.start, part.stop
        if key not in arrays:
            arrays[key] = array[..., part.start : part.stop]
        return arrays[key]

    for node in network.nodes:
        if isinstance(node, Convolution) and node.output in chosen:
            for part in parts[node.output]:
                is_first = part is parts[node.output][0]
                name = node.name if is_first else f"{node.name}/{part.start}to{part.stop}"
                fields = {field: cut(getattr(node, field), part) for field in ("weights", "weight_scales", "bias")}
                made.append(dataclasses.replace(node, name=name, output=part.output, **fields))
        elif not (isinstance(node, Slice) and node.inputs[0] in chosen):
            made.append(node)
    shapes = {tensor: shape for tensor, shape in network.shapes.items() if tensor not in chosen}
    return dataclasses.replace(network, shapes=shapes, nodes=tuple(made))
