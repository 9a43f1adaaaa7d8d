"""`ChannelCuts`: the channels at which the planes of a tensor are cut, so that each slice of channels is addressable.

Idea: a slice of channels is a view, without a copy, if it starts at a multiple of 32 lanes. The node that makes the
tensor can place the slice so. Therefore cuts are propagated between tensors with the same channels, forwards and
backwards through the graph, until a fixed point.

Rule: elementwise operations need equal cuts in all their tensors. A product makes new channels, so cuts do not pass
through it.
"""

from __future__ import annotations

from collections.abc import Iterable

from anytpu.chip.graph.nodes import Concatenate, Elementwise, Network, Node, Pool, Reshape, Slice, Table

_PROPAGATING = Concatenate | Elementwise | Pool | Reshape | Slice | Table


class ChannelCuts:
    """The cuts of each tensor of a network.

    Example:
        >>> from anytpu.chip.graph.nodes import Port
        >>> from anytpu.chip.graph.nodes import Slice
        >>> part = Slice("part", "", ("x",), "y", 2, 100, 200)
        >>> network = Network("n", (), (), {"x": (1, 1, 300), "y": (1, 1, 100)}, {}, (part,))
        >>> sorted(ChannelCuts(network).of("x"))
        [100, 200]
    """

    def __init__(self, network: Network):
        self._shapes = network.shapes
        self._cuts: dict[str, set[int]] = {name: set() for name in network.shapes}
        nodes = [node for node in network.nodes if isinstance(node, _PROPAGATING)]
        # Each round only adds cuts, and a tensor has finitely many channels, so the loop ends.
        while any([self._propagate(node) for node in (*nodes, *reversed(nodes))]):
            pass

    def of(self, tensor: str) -> set[int]:
        """Return the channels at which a slice starts, without channel 0."""
        return self._cuts[tensor]

    def _add(self, tensor: str, cuts: Iterable[int]) -> bool:
        """Add cuts to a tensor, and return whether one of them is new."""
        own, channels = self._cuts[tensor], self._shapes[tensor][2]
        before = len(own)
        own.update(cut for cut in cuts if 0 < cut < channels)
        return len(own) > before

    def _propagate(self, node: Node) -> bool:
        if isinstance(node, Concatenate) and node.axis == 2:
            return self._propagate_concatenate(node)
        if isinstance(node, Slice) and node.axis == 2:
            source = self._cuts[node.inputs[0]]
            has_changed = self._add(node.output, [cut - node.start for cut in source])
            back = [node.start, node.stop, *(cut + node.start for cut in self._cuts[node.output])]
            return self._add(node.inputs[0], back) or has_changed
        if isinstance(node, Reshape):
            return self._propagate_reshape(node)
        union = set().union(*(self._cuts[name] for name in (*node.inputs, node.output)))
        return any([self._add(name, union) for name in (*node.inputs, node.output)])

    def _propagate_concatenate(self, node: Concatenate) -> bool:
        has_changed, first = False, 0
        for name in node.inputs:
            has_changed |= self._add(node.output, [first, *(first + cut for cut in self._cuts[name])])
            has_changed |= self._add(name, [cut - first for cut in self._cuts[node.output]])
            first += self._shapes[name][2]
        return has_changed

    def _propagate_reshape(self, node: Reshape) -> bool:
        source, target = node.inputs[0], node.output
        few, many = sorted((self._shapes[source][2], self._shapes[target][2]))
        if many % few:
            return False
        narrow, wide = (source, target) if self._shapes[source][2] == few else (target, source)
        has_changed = self._add(narrow, [cut % few for cut in self._cuts[wide]])
        edges = {0, *self._cuts[narrow]}
        return self._add(wide, [first + edge for first in range(0, many, few) for edge in edges]) or has_changed
