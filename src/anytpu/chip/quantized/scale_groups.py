"""`ScaleGroups`: the partition of tensors into groups; all tensors of a group share one scale and zero point.

Tensors share a group for one of four reasons:

1. Same integers: slice, reshape and max-pool outputs share their input's scale and zero point.
2. Unrolled loops: the steps of a loop apply one layer repeatedly. Corresponding tensors of the steps form one group,
   so that all steps share scales, multipliers and tables.
3. Concatenation: all inputs must have the output's scale and zero point. `choices.py` joins an input with the output,
   unless the input has other users and a much finer scale. A table then requantizes the input instead.
4. Masks: what a masked layer replaces, what it keeps and its state are one tensor for different examples.

This module forms the groups of reasons 1, 2 and 4.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping

from anytpu.chip.graph.nodes import (
    Convolution,
    Elementwise,
    Function,
    HostStep,
    Network,
    Node,
    Pool,
    Reshape,
    Slice,
)

_DEPTH = 3
"""Number of producer levels that are compared to find corresponding tensors of an unrolled loop."""


class ScaleGroups:
    """A partition of tensors into groups; the name of one member identifies its group.

    Attributes:
        members: maps the name of a group to its tensors.
    """

    def __init__(self, names: Iterable[str]):
        self._group = {name: name for name in names}
        self.members = {name: [name] for name in self._group}

    def of(self, name: str) -> str:
        """Return the name of the group of a tensor."""
        return self._group[name]

    def join(self, names: Iterable[str]) -> None:
        """Join the groups of some tensors."""
        largest, *others = sorted({self.of(name) for name in names}, key=lambda group: -len(self.members[group]))
        for group in others:
            for member in self.members[group]:
                self._group[member] = largest
            self.members[largest] += self.members.pop(group)


def keeps_integers(node: Node) -> bool:
    """Return whether a node only selects or moves integers of its input: slice, reshape or max pool."""
    return isinstance(node, Slice | Reshape) or (isinstance(node, Pool) and node.kind == "max")


def initial_groups(network: Network, tensors: Iterable[str]) -> ScaleGroups:
    """Return the groups before concatenations are considered: same integers, masks and unrolled loops."""
    scale_groups = ScaleGroups(tensors)
    for node in network.nodes:
        if keeps_integers(node):
            scale_groups.join([*node.inputs, node.output])
    for chosen in _choices_by_masks(network):
        scale_groups.join(chosen)
    for alike in corresponding(network):
        scale_groups.join(alike)
    return scale_groups


def _choices_by_masks(network: Network) -> Iterator[list[str]]:
    """Yield the tensors of each sum of two products with masks: both parts, the result, and a state that is kept.

    Their own ranges would come only from the examples that a mask picked at one step, and would clip others.
    """
    masks: set[str] = set()
    parts: dict[str, list[str]] = {}
    states: set[str] = set()
    for node in network.nodes:
        if (isinstance(node, HostStep) and node.kind == "mask") or (node.inputs and masks.issuperset(node.inputs)):
            masks.add(node.output)
        elif isinstance(node, Elementwise) and node.kind == "multiply" and not masks.isdisjoint(node.inputs):
            parts[node.output] = [name for name in node.inputs if name not in masks]
            states.add(node.output)
        elif isinstance(node, Elementwise) and node.kind == "add" and parts.keys() >= set(node.inputs):
            kept = [name for part in node.inputs for name in parts[part] if name in states]
            states.add(node.output)
            yield [*node.inputs, node.output, *kept]


def corresponding(network: Network) -> list[list[str]]:
    """Return groups of corresponding tensors in unrolled loops; a loop's layer uses the same weights repeatedly."""
    keys = {node.name: _weights_key(node) for node in network.nodes if isinstance(node, Convolution)}
    repeated = {layer for (layer, _), count in collections.Counter(keys.values()).items() if layer and count > 1}
    makers = {node.output: node for node in network.nodes if node.layer in repeated}
    alike: dict[Hashable, list[str]] = collections.defaultdict(list)
    for name, node in makers.items():
        if isinstance(node, Convolution | Elementwise | Function):
            alike[network.shapes[name], _likeness(node, makers, keys, _DEPTH)].append(name)
        if isinstance(node, Convolution):
            alike["input", keys[node.name]].append(node.inputs[0])
    return [list(dict.fromkeys(names)) for names in alike.values() if len(names) > 1]


def _weights_key(node: Convolution) -> tuple[str, Hashable]:
    digest = hashlib.sha256(node.weights.tobytes())
    digest.update(node.bias.tobytes())
    return node.layer, (node.weights.shape, digest.digest())


def _likeness(node: Node, makers: Mapping[str, Node], keys: Mapping[str, Hashable], depth: int) -> Hashable:
    """Return a key of a node and of its producers, `depth` levels back; corresponding nodes have equal keys."""
    own = (type(node).__name__, node.layer, getattr(node, "kind", None), keys.get(node.name))
    if isinstance(node, Slice):
        # Each step slices another time index, but the same channels.
        own = (*own, node.axis, node.stop - node.start, node.start if node.axis == 2 else None)
    if depth == 0 or isinstance(node, Convolution):
        return own
    back = [_likeness(makers[name], makers, keys, depth - 1) if name in makers else None for name in node.inputs]
    return (*own, *back)
