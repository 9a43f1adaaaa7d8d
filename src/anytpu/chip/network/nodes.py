"""`Network`: a model as the few kinds of layers that the chip knows, in floating point, for one example.

Idea: a Program is hundreds of small operations of StableHLO. `read` folds them into these nodes. A product of any kind
is a `Convolution`, and a chain of functions of one number is a `Function`. Operations without an instruction of the
chip are a `HostStep`. Calibration runs this network; `quantize` turns it into integers node by node.

Rule: every tensor of the chip is `(height, width, channels)` for one example. A vector is `(1, 1, channels)`, and a
sequence is `(1, time, channels)`. A tensor of more axes is `(1, all the others, the last)`. The batch is not part of a
shape. Nodes are in topological order, and each tensor is made by one node or is an input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

Shape = tuple[int, int, int]
"""(height, width, channels) of one example."""

Pair = tuple[int, int]
"""Values of the two spatial axes: (height, width)."""

Padding = tuple[Pair, Pair]
"""((top, bottom), (left, right)); negative numbers crop."""


@dataclasses.dataclass(frozen=True)
class Node:
    """The base of all nodes.

    Attributes:
        name: name of the node, unique in the network ("conv2d_1/convolution").
        layer: the layer of the user's model that it came from ("conv2d_1"); "" if unknown.
        inputs: names of its input tensors.
        output: name of its output tensor.
    """

    name: str
    layer: str
    inputs: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution(Node):
    """A convolution or a dense layer (a kernel of one position), with its bias and the clip of its result.

    Attributes:
        weights: `(kernel height, kernel width, input channels / groups, output channels)`, float32.
        bias: `(output channels,)`, float32.
        strides, dilation, padding, groups: as usual; outputs are blocked by group, as in XLA.
        low, high: bounds that the result is clipped to, `(0, inf)` for ReLU; None: no clip.
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
        window, strides, padding: as usual; the window of a global pool is the whole image.
        counts_padding: whether an average divides by the size of the whole window at the border too. Otherwise it
            divides by the number of positions inside.
    """

    kind: Literal["max", "average"]
    window: Pair
    strides: Pair
    padding: Padding = ((0, 0), (0, 0))
    counts_padding: bool = False


@dataclasses.dataclass(frozen=True)
class Elementwise(Node):
    """An elementwise operation of two tensors; the second may be `(1, 1, channels)`, broadcast over all positions.

    Attributes:
        kind: the operation: first + second, first - second, first * second.
        low, high: bounds that the result is clipped to; None: no clip.
    """

    kind: Literal["add", "subtract", "multiply"]
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Function(Node):
    """A function of one number, applied to each element: sigmoid, tanh, gelu, or any chain of such. Becomes a table.

    Attributes:
        kind: its common name ("sigmoid", "tanh", "clip", ...); "function" if it has none.
        apply: float32 array -> float32 array of the same shape.
    """

    kind: str
    apply: Callable[[np.ndarray], np.ndarray] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Concatenate(Node):
    """A concatenation of tensors along an axis.

    Attributes:
        axis: 0 height, 1 width (time of a sequence), 2 channels.
    """

    axis: int


@dataclasses.dataclass(frozen=True)
class Slice(Node):
    """A part of a tensor: from `start` up to `stop`, excluded, along an axis (0 height, 1 width, 2 channels)."""

    axis: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Reshape(Node):
    """The same numbers, in the same row-major order of (height, width, channels), as another shape."""


@dataclasses.dataclass(frozen=True, eq=False)
class HostStep(Node):
    """Operations that the chip has no instruction for, computed by the host in float32.

    Attributes:
        kind: its kind, for the listing ("softmax", "embedding", or the name of the operation).
        why: the reason why the chip cannot, for the listing ("it divides one tensor by another").
        steps: the operations, as `network/operations.py` evaluates and writes them.
    """

    kind: str
    why: str
    steps: Any = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or an output of the user's program.

    Attributes:
        tensor: name of its tensor in the network.
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
        name: name of the model.
        inputs, outputs: inputs and outputs of the user's program.
        shapes: shape of each tensor, the inputs included.
        nodes: nodes in topological order.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    shapes: Mapping[str, Shape]
    nodes: tuple[Node, ...]
