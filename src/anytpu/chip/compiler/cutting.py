"""`Cuts`: at which channels the planes of a tensor are cut, so that the parts of it that are wanted can be reached.

Idea: a slice of channels costs nothing where the part starts at a whole unit of 32 lanes; whoever makes the tensor can
put it there. So where parts start is told from each tensor to those that have the same channels, until all know.

Rule: number by number, tensors are cut alike; a product makes its output anew, and tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from anytpu.chip.network.nodes import Node
from anytpu.chip.quantized.nodes import QConcatenate, QElementwise, QPool, QReshape, QSlice, QTable, QuantizedNetwork

_TELLING = QConcatenate | QElementwise | QPool | QReshape | QSlice | QTable


class Cuts:
    """The cuts of each tensor of a network.

    Example:
        >>> from anytpu.chip.network.nodes import Port
        >>> from anytpu.chip.quantized.nodes import QSlice
        >>> part = QSlice("part", "", ("x",), "y", 2, 100, 200)
        >>> network = QuantizedNetwork("n", (), (), {"x": (1, 1, 300), "y": (1, 1, 100)}, {}, (part,))
        >>> sorted(Cuts(network).of("x"))
        [100, 200]
    """

    def __init__(self, network: QuantizedNetwork):
        self._shapes = network.shapes
        self._cuts: dict[str, set[int]] = {name: set() for name in network.shapes}
        nodes = [node for node in network.nodes if isinstance(node, _TELLING)]
        while any([self._tell(node) for node in (*nodes, *reversed(nodes))]):
            pass

    def of(self, tensor: str) -> set[int]:
        """Return the channels at which a part starts, without the first."""
        return self._cuts[tensor]

    def _add(self, tensor: str, cuts: Iterable[int]) -> bool:
        """Cut a tensor, and return whether it was not cut there yet."""
        own, channels = self._cuts[tensor], self._shapes[tensor][2]
        before = len(own)
        own.update(cut for cut in cuts if 0 < cut < channels)
        return len(own) > before

    def _tell(self, node: Node) -> bool:
        if isinstance(node, QConcatenate) and node.axis == 2:
            return self._tell_concatenate(node)
        if isinstance(node, QSlice) and node.axis == 2:
            source = self._cuts[node.inputs[0]]
            has_changed = self._add(node.output, [cut - node.start for cut in source])
            back = [node.start, node.stop, *(cut + node.start for cut in self._cuts[node.output])]
            return self._add(node.inputs[0], back) or has_changed
        if isinstance(node, QReshape):
            return self._tell_reshape(node)
        union = set().union(*(self._cuts[name] for name in (*node.inputs, node.output)))
        return any([self._add(name, union) for name in (*node.inputs, node.output)])

    def _tell_concatenate(self, node: QConcatenate) -> bool:
        has_changed, first = False, 0
        for name in node.inputs:
            has_changed |= self._add(node.output, [first, *(first + cut for cut in self._cuts[name])])
            has_changed |= self._add(name, [cut - first for cut in self._cuts[node.output]])
            first += self._shapes[name][2]
        return has_changed

    def _tell_reshape(self, node: QReshape) -> bool:
        source, target = node.inputs[0], node.output
        few, many = sorted((self._shapes[source][2], self._shapes[target][2]))
        if many % few:
            return False
        narrow, wide = (source, target) if self._shapes[source][2] == few else (target, source)
        has_changed = self._add(narrow, [cut % few for cut in self._cuts[wide]])
        edges = {0, *self._cuts[narrow]}
        return self._add(wide, [first + edge for first in range(0, many, few) for edge in edges]) or has_changed
