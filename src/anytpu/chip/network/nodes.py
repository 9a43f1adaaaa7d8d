"""`Network`: what a model computes, in the few kinds of layers that the chip knows; in floating point, of one example.

Idea: a Program is hundreds of small operations of StableHLO. `read` folds them into these nodes: a product of any kind
is a `Convolution`, a chain of functions of one number is a `Function`, and whatever the chip has no instruction for is
a `HostStep`. Calibration runs this network, `quantize` turns it into whole numbers node by node.

Rule: every tensor of the chip is `(height, width, channels)` for one example; a vector is `(1, 1, channels)`, a
sequence `(1, time, channels)`, anything of more axes `(1, all the others, the last)`. The batch is no part of a shape.
Nodes stand in an order in which they can be computed, and each tensor is made by one node or is an input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

Shape = tuple[int, int, int]
"""(height, width, channels) of one example."""

Pair = tuple[int, int]
"""Of the two spatial axes: (height, width)."""

Padding = tuple[Pair, Pair]
"""((top, bottom), (left, right)); negative numbers crop."""


@dataclasses.dataclass(frozen=True)
class Node:
    """What all nodes have.

    Attributes:
        name: unique in the network ("conv2d_1/convolution").
        layer: the layer of the user's model that it came from ("conv2d_1"); "" where none is known.
        inputs: names of the tensors that it takes.
        output: name of the tensor that it makes.
    """

    name: str
    layer: str
    inputs: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution(Node):
    """A convolution or a dense layer (a kernel of one position), with its bias and with what clips its result.

    Attributes:
        weights: `(kernel height, kernel width, input channels / groups, output channels)`, float32.
        bias: `(output channels,)`, float32.
        strides, dilation, padding, groups: as usual; outputs are blocked by group, as in XLA.
        low, high: the result is clipped to these, `(0, inf)` for ReLU; None: it is not.
    """

    weights: np.ndarray
    bias: np.ndarray
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Padding = ((0, 0), (0, 0))
    groups: int = 1
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Pool(Node):
    """A maximum or an average over windows.

    Attributes:
        kind: "max" or "average".
        window, strides, padding: as usual; a global pool has the window of the whole picture.
        counts_padding: an average divides by the whole window at the border too; else by what lies inside.
    """

    kind: Literal["max", "average"]
    window: Pair
    strides: Pair
    padding: Padding = ((0, 0), (0, 0))
    counts_padding: bool = False


@dataclasses.dataclass(frozen=True)
class Elementwise(Node):
    """Two tensors, number by number; the second may be `(1, 1, channels)`, which goes with every position.

    Attributes:
        kind: what is done: first + second, first - second, first * second.
        low, high: the result is clipped to these; None: it is not.
    """

    kind: Literal["add", "subtract", "multiply"]
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Function(Node):
    """A function of one number, applied to each: sigmoid, tanh, gelu, or any chain of such. Becomes a table.

    Attributes:
        kind: what people call it ("sigmoid", "tanh", "clip", ...); "function" where it has no name.
        apply: float32 array -> float32 array of the same shape.
    """

    kind: str
    apply: Callable[[np.ndarray], np.ndarray] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Concatenate(Node):
    """Tensors side by side.

    Attributes:
        axis: 0 height, 1 width (time of a sequence), 2 channels.
    """

    axis: int


@dataclasses.dataclass(frozen=True)
class Slice(Node):
    """A part of a tensor: from `start` up to and without `stop` along one axis (0 height, 1 width, 2 channels)."""

    axis: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Reshape(Node):
    """The same numbers, in the same row-major order of (height, width, channels), as another shape."""


@dataclasses.dataclass(frozen=True, eq=False)
class HostStep(Node):
    """What the chip has no instruction for, computed by the host in float32.

    Attributes:
        kind: what it is, for the listing ("softmax", "embedding", or the name of the operation).
        why: why the chip cannot, for the listing ("it divides one tensor by another").
        steps: the operations, as `network/operations.py` evaluates and writes them.
    """

    kind: str
    why: str
    steps: Any = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or an output of the user's program.

    Attributes:
        tensor: the tensor of the network that it is.
        shape: the user's shape of one example, `()` for a number.
        dtype: the user's dtype ("float32", "int32").
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """A model.

    Attributes:
        name: what people call it.
        inputs, outputs: what goes in and comes out.
        shapes: of each tensor, the inputs' included.
        nodes: in an order in which they can be computed.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    shapes: Mapping[str, Shape]
    nodes: tuple[Node, ...]
