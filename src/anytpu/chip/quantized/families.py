"""`Families`: which tensors have one quantization.

Idea: a part of a tensor, the same numbers in another shape and the greatest of some of them are the same integers, so
the tensors are one family from the start. Tensors that are laid side by side must become one: whatever was used only
there is given the quantization of the whole; what is used elsewhere too keeps its own if that is much finer, and is
changed by a table on its way.

A loop that was unrolled is the same layer again and again. Its steps would each get ranges, and so scales, multipliers
and tables, of their own; corresponding tensors of the steps are made one family, and the steps share them all.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Hashable, Iterable, Mapping

from anytpu.chip.network.nodes import (
    Convolution,
    Elementwise,
    Function,
    Network,
    Node,
    Pool,
    Reshape,
    Slice,
)

_DEPTH = 3
"""How many nodes back two tensors of an unrolled loop must be made alike to correspond."""


class Families:
    """Sets of tensors, joined one by one; each is known by one of its members."""

    def __init__(self, names: Iterable[str]):
        self._family = {name: name for name in names}
        self.members = {name: [name] for name in self._family}

    def of(self, name: str) -> str:
        """Return the member by which the family of a tensor is known."""
        return self._family[name]

    def join(self, names: Iterable[str]) -> None:
        """Make the families of some tensors one."""
        largest, *others = sorted({self.of(name) for name in names}, key=lambda family: -len(self.members[family]))
        for family in others:
            for member in self.members[family]:
                self._family[member] = largest
            self.members[largest] += self.members.pop(family)


def keeps_integers(node: Node) -> bool:
    """Tell whether a node's output is made of its input's integers as they are."""
    return isinstance(node, Slice | Reshape) or (isinstance(node, Pool) and node.kind == "max")


def starting_families(network: Network, tensors: Iterable[str]) -> Families:
    """Return the families before anything is laid side by side: of the same integers, and of unrolled loops."""
    families = Families(tensors)
    for node in network.nodes:
        if keeps_integers(node):
            families.join([*node.inputs, node.output])
    for alike in corresponding(network):
        families.join(alike)
    return families


def corresponding(network: Network) -> list[list[str]]:
    """Return the tensors that correspond in the steps of unrolled loops: of layers that use weights repeatedly."""
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
    """Return what a node is and what its inputs are made by, so many nodes back; equal for alike nodes."""
    own = (type(node).__name__, node.layer, getattr(node, "kind", None), keys.get(node.name))
    if isinstance(node, Slice):
        # Each step takes its own place in time, all the same channels.
        own = (*own, node.axis, node.stop - node.start, node.start if node.axis == 2 else None)
    if depth == 0 or isinstance(node, Convolution):
        return own
    back = [_likeness(makers[name], makers, keys, depth - 1) if name in makers else None for name in node.inputs]
    return (*own, *back)
