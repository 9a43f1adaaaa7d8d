"""`NetworkGraph`: a mutable graph of nodes, for lowering and simplification."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from anytpu.chip.graph.nodes import UNSCALED, Concatenate, Convolution, Node, Padding, Reshape, Shape, Slice
from anytpu.chip.graph.shapes import Geometry

Made = TypeVar("Made")


class NetworkGraph:
    """Nodes by their output tensors, and the users of each tensor.

    Args:
        shapes: shapes of the inputs.
    """

    def __init__(self, shapes: dict[str, Shape]):
        self.shapes = dict(shapes)
        self.nodes: dict[str, Node] = {}
        self.users: dict[str, dict[str, None]] = {}
        self._same: dict[str, str] = {}
        self.outputs: set[str] = set()
        self._arrays: dict[object, tuple[Any, object]] = {}
        self._order: tuple[set[str], tuple[Node, ...]] | None = None

    def tensor(self, value: str) -> str:
        """Return the tensor that holds a value."""
        while value in self._same:
            value = self._same[value]
        return value

    def add(self, node: Node, shape: Shape) -> None:
        """Add a node, or replace the node with the same output tensor."""
        if node.output in self.nodes:
            self._forget(node.output)
        self._order = None
        self.nodes[node.output] = node
        self.shapes[node.output] = shape
        for source in node.inputs:
            self.users.setdefault(source, {})[node.output] = None

    def change(self, node: Node, **changes: object) -> None:
        """Change some fields of a node."""
        self.add(dataclasses.replace(node, **changes), self.shapes[node.output])  # pyright: ignore[reportArgumentType]

    def merge(self, tensor: str, into: str) -> None:
        """Replace all uses of a tensor by another tensor."""
        for user in list(self.users.get(tensor, ())):
            node = self.nodes[user]
            self.change(node, inputs=tuple(into if source == tensor else source for source in node.inputs))
        if tensor in self.outputs:
            self.outputs.add(into)
            self.outputs.discard(tensor)
        self._same[tensor] = into
        self.drop(tensor)

    def drop(self, tensor: str) -> None:
        """Remove a node without users, and its producers that have no users then (dead-code elimination)."""
        if tensor not in self.nodes or self.users.get(tensor) or tensor in self.outputs:
            return
        node = self.nodes[tensor]
        self._forget(tensor)
        self._order = None
        del self.nodes[tensor]
        for source in node.inputs:
            self.drop(source)

    def _forget(self, tensor: str) -> None:
        for source in self.nodes[tensor].inputs:
            self.users[source].pop(tensor, None)

    def has_one_user(self, tensor: str) -> bool:
        """Return whether a tensor has a single user and is no output."""
        return len(self.users.get(tensor, ())) == 1 and tensor not in self.outputs

    def shared(self, make: Callable[..., Made], *arguments: Any) -> Made:
        """Return a function of arrays, numbers and functions; the same object for the same arguments (memoization).

        The steps of an unrolled recurrent layer share their weights and functions. So derived arrays, such as slices
        of the weights, are shared too.
        """
        key = (make, *(id(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments))
        if key not in self._arrays:
            self._arrays[key] = (make(*arguments), arguments)
        return self._arrays[key][0]

    def view(self, value: str, name: str, shape: Shape, layer: str) -> None:
        """Define a value as another value in a shape: the same tensor, or a Reshape of it."""
        source = self.tensor(value)
        if self.shapes[source] == shape:
            self._same[name] = source
        else:
            self.add(Reshape(name, layer, (source,), name), shape)

    def shaped(self, value: str, shape: Shape, layer: str) -> str:
        """Return a tensor that holds a value in a shape."""
        source = self.tensor(value)
        name = f"{source}/{'x'.join(map(str, shape))}"
        if self.shapes[source] == shape:
            return source
        if self.tensor(name) not in self.shapes:
            self.view(source, name, shape, layer)
        return self.tensor(name)

    def part(self, name: str, layer: str, source: str, axis: int, start: int, stop: int) -> str:
        """Add a slice of a tensor along an axis, and return its name."""
        shape = list(self.shapes[source])
        shape[axis] = stop - start
        self.add(Slice(name, layer, (source,), name, axis, start, stop), (shape[0], shape[1], shape[2]))
        return name

    def joined(self, name: str, layer: str, parts: Sequence[str], axis: int) -> str:
        """Add the concatenation of tensors along an axis, and return its name."""
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        self.add(Concatenate(name, layer, tuple(parts), name, axis), (shape[0], shape[1], shape[2]))
        return name

    def product(
        self, name: str, layer: str, source: str, weights: np.ndarray, bias: np.ndarray, geometry: Geometry
    ) -> None:
        """Add a convolution."""
        node = Convolution(name, layer, (source,), name, weights, UNSCALED, bias, **vars(geometry))
        self.add(node, geometry.result(self.shapes[source], (weights.shape[0], weights.shape[1]), weights.shape[3]))

    def affine(
        self,
        name: str,
        layer: str,
        source: str,
        factor: np.ndarray,
        offset: np.ndarray,
        padding: Padding = ((0, 0), (0, 0)),
    ) -> None:
        """Add a scale and an offset per channel, as a depthwise convolution."""
        weights = np.ascontiguousarray(factor.reshape(1, 1, 1, -1), np.float32)
        geometry = Geometry(padding=padding, groups=len(factor))
        self.product(name, layer, source, weights, offset.astype(np.float32), geometry)

    def ordered(self) -> Iterator[Node]:
        """Yield the nodes that an output depends on, in topological order."""
        if self._order is None or self._order[0] != self.outputs:
            self._order = (set(self.outputs), tuple(self._in_order()))
        return iter(self._order[1])

    def _in_order(self) -> Iterator[Node]:
        done: set[str] = set()
        needed = {node.output for output in self.outputs for node in self._before(output, done)}
        done = set()
        for tensor in sorted(needed, key=_place):
            yield from self._before(tensor, done)

    def _before(self, output: str, done: set[str]) -> Iterator[Node]:
        waiting: list[tuple[str, bool]] = [(output, False)]
        while waiting:
            tensor, ready = waiting.pop()
            if tensor in done or tensor not in self.nodes:
                continue
            if ready:
                done.add(tensor)
                yield self.nodes[tensor]
            else:
                waiting.append((tensor, True))
                waiting.extend((source, False) for source in reversed(self.nodes[tensor].inputs))


def _place(tensor: str) -> tuple[int, str]:
    """Return the position of a tensor in the program, as a sort key: 12 for "%12/part"."""
    number = tensor[1:].split("/")[0]
    return (int(number), tensor) if tensor.startswith("%") else (-1, tensor)


def is_affine(node: Node) -> bool:
    """Return whether a node is only a scale and an offset per channel."""
    return (
        isinstance(node, Convolution)
        and node.weights.shape[:3] == (1, 1, 1)
        and node.groups == node.weights.shape[3]
        and node.strides == (1, 1)
        and not any(map(any, node.padding))
    )


def is_plain(node: Convolution) -> bool:
    """Return whether a convolution is a dense layer at each position."""
    return (
        node.weights.shape[:2] == (1, 1)
        and node.groups == 1
        and node.strides == (1, 1)
        and not any(map(any, node.padding))
    )
