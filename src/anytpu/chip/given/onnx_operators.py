"""The operators of a quantized ONNX file, as nodes of an `IntegerGraph`.

Idea: an operator of integers (`QLinearConv`) is the operator of floats (`Conv`) between its scales. So there is one
function for both, which `SCALED_OPERATORS` calls with dequantized operands.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.chip.given.integer_graph import Geometry, IntegerGraph
from anytpu.chip.given.values import Held, Pending, Scaled, Value
from anytpu.chip.graph.nodes import Padding, Pair, Quantization
from anytpu.errors import QuantizationError

Operands = Sequence[Value | None]


@dataclasses.dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node of the file.

    Attributes:
        kind: its operator.
        layer: its name.
        attributes: its attributes as Python values.
        opset: version of the operators.
        graph: the graph that its nodes are added to.
        outputs: number of its results.
        batch: number of examples for which the file is written; 0: any.
    """

    kind: str
    layer: str
    attributes: Mapping[str, Any]
    opset: int
    graph: IntegerGraph
    outputs: int
    batch: int

    def refused(self, why: str, next_step: str) -> QuantizationError:
        """Return an error that names the node."""
        return QuantizationError(f"the layer {self.layer!r:.100} ({self.kind}) {why}. {next_step}.")

    def numbers(self, name: str, operands: Operands, index: int) -> list[int] | None:
        """Return integers that older versions have as an attribute, and newer ones as a constant operand."""
        value = operands[index] if index < len(operands) else None
        if value is None:
            value = self.attributes.get(name)
        if value is None:
            return None
        if isinstance(value, Held | Pending | Scaled):
            raise self.refused(f"computes its {name} from an input", _FLOAT)
        return [int(number) for number in np.asarray(value).reshape(-1)]

    def axis(self, rank: int, default: int = 0) -> int:
        """Return the attribute "axis" as an axis of the examples; `rank` counts the batch."""
        axis = self.attributes.get("axis", default)
        return self.example_axis(axis, rank)

    def example_axis(self, axis: int, rank: int) -> int:
        """Return an axis as one of the examples."""
        axis += rank if axis < 0 else 0
        if not 0 < axis < rank:
            raise self.refused("works along the batch, and the chip computes each example by itself", _FLOAT)
        return axis - 1


_FLOAT = "Compile the model that the file was exported from, with calibration="
_QUANTIZE = "Quantize it with 8 bits: quantize_static(..., weight_type=QuantType.QInt8)"

# Scales.


def quantization_of(node: OnnxNode, scale: Value | None, zero_point: Value | None) -> Quantization:
    """Return the quantization of an activation, whose unsigned integers become signed."""
    numbers, offsets = _parameters(node, scale, zero_point)
    if numbers.size != 1 or offsets.size != 1:
        raise node.refused("has a scale for each channel of an activation, and the chip has one for all", _FLOAT)
    if offsets.dtype.name not in ("int8", "uint8", "int16", "uint16"):
        raise node.refused(f"makes {offsets.dtype.name}, and the chip's activations have 8 or 16 bits", _QUANTIZE)
    bits = 8 * offsets.dtype.itemsize
    moved = int(offsets.reshape(())) - (2 ** (bits - 1) if offsets.dtype.kind == "u" else 0)
    return Quantization(float(numbers.reshape(())), moved, bits)


def _parameters(node: OnnxNode, scale: Value | None, zero_point: Value | None) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(scale, np.ndarray) or not isinstance(zero_point, np.ndarray | None):
        raise node.refused("takes a scale that is computed when it runs, and the chip's are fixed", _STATIC)
    if node.attributes.get("block_size", 0):
        raise node.refused("has a scale for each block of a channel, and the chip has one for each channel", _QUANTIZE)
    return scale.astype(np.float32), np.zeros(scale.shape, np.uint8) if zero_point is None else zero_point


_STATIC = "Fix it: onnxruntime.quantization.quantize_static(...) in place of quantize_dynamic"


def scaled(node: OnnxNode, reals: np.ndarray, scale: Value | None, zero_point: Value | None) -> np.ndarray:
    """Return a constant of real numbers in integers: QuantizeLinear."""
    numbers, offsets = _parameters(node, scale, zero_point)
    along, ends = (
        Scaled(reals, numbers, offsets, node.attributes.get("axis", 1) % max(reals.ndim, 1)),
        np.iinfo(offsets.dtype),
    )
    steps = np.rint(reals / along.spread(numbers)) + along.spread(offsets).astype(np.float64)
    return np.clip(steps, ends.min, ends.max).astype(offsets.dtype)


def dequantized(node: OnnxNode, operands: Operands) -> Value:
    """Return a value with its scales: DequantizeLinear."""
    value, scale, zero_point = (*operands, None)[:3]
    if isinstance(value, np.ndarray):
        numbers, offsets = _parameters(node, scale, zero_point)
        if value.dtype.name not in ("int8", "uint8", "int32"):
            raise node.refused(f"has a constant of {value.dtype.name}, and the chip's weights are int8", _QUANTIZE)
        axis = node.attributes.get("axis", 1) % max(value.ndim, 1)
        for array in (numbers, offsets):
            if array.size != 1 and array.size != (value.shape[axis] if value.ndim else 1):
                raise ValueError(f"{array.size} scales of {node.layer!r:.100} for {list(value.shape)}")
        if not bool((numbers > 0).all() and np.isfinite(numbers).all()):
            raise ValueError(f"a scale of {node.layer!r:.100} is not above 0")
        return Scaled(value, numbers.reshape(-1), offsets.astype(np.int64).reshape(-1), axis)
    assert isinstance(value, Held | Pending)
    if isinstance(zero_point, np.ndarray | None) and zero_point is None:
        own = node.graph.of(node.graph.held(value))
        zero_point = np.zeros((), f"int{own.bits}" if own.zero_point != own.low else f"uint{own.bits}")
    return node.graph.reread(node.graph.held(value), quantization_of(node, scale, zero_point))


# Products.


def _weights(node: OnnxNode, value: Value | None) -> Scaled:
    if not isinstance(value, Scaled):
        kind = "weights without scales" if isinstance(value, np.ndarray) else "an activation as its weights"
        raise node.refused(f"has {kind}, and the chip multiplies activations with weights of 8 bits", _QUANTIZE)
    return value


def _scales(node: OnnxNode, weights: Scaled, axis: int) -> np.ndarray:
    """Return the scales of each output channel."""
    if weights.scale.size > 1 and weights.axis != axis:
        raise node.refused(
            "has a scale for each input channel, and the chip has one for each output channel", _QUANTIZE
        )
    return weights.scale


def _bias(value: Value | None, outputs: int, own: Quantization, scales: np.ndarray) -> np.ndarray:
    """Return a bias as integers in steps of input scale * weight scale, or as real numbers.

    An operator of integers has its bias in these steps by definition, as an array of integers.
    """
    if value is None:
        return np.zeros(outputs, np.int64)
    if isinstance(value, Scaled):
        same = np.allclose(value.scale, np.float64(own.scale) * scales, rtol=1e-3, atol=0)
        return (
            value.integers.astype(np.int64).reshape(-1)
            if same and not value.zero_point.any()
            else value.reals.reshape(-1)
        )
    assert isinstance(value, np.ndarray)
    return value.reshape(-1)


def _conv(node: OnnxNode, operands: Operands) -> Value:
    value, weights, bias = (*operands, None)[:3]
    kernel = _weights(node, weights)
    source = node.graph.picture(_activation(node, value))
    spatial = kernel.integers.ndim - 2
    if spatial != len(source.dims) - 1:
        raise ValueError(f"{node.layer!r:.100} convolves {list(source.dims)} by {list(kernel.integers.shape)}")
    centered = kernel.centered.transpose(*range(2, 2 + spatial), 1, 0)
    centered = centered if spatial == 2 else centered[None]
    groups, scales = node.attributes.get("group", 1), _scales(node, kernel, 0)
    if groups < 1 or centered.shape[2] * groups != source.dims[0] or centered.shape[3] % groups:
        raise ValueError(f"{node.layer!r:.100} has {groups} groups of {list(kernel.integers.shape)}")
    geometry = _geometry(node, source, (centered.shape[0], centered.shape[1]), groups)
    shape = geometry.result(node.graph.shapes[source.tensor], (centered.shape[0], centered.shape[1]), centered.shape[3])
    dims = (shape[2], shape[0], shape[1]) if spatial == 2 else (shape[2], shape[1])
    offsets = _bias(bias, shape[2], node.graph.of(source), scales)
    return node.graph.product(source, centered, scales, offsets, geometry, dims, True)


def _geometry(node: OnnxNode, source: Held, window: Pair, groups: int = 1) -> Geometry:
    """Return the window of a node; `auto_pad` and `ceil_mode` become padding."""
    spatial = len(source.dims) - 1

    def pair(name: str) -> Pair:
        numbers = node.attributes.get(name, [1] * spatial)
        return (1, numbers[0]) if spatial == 1 else (numbers[0], numbers[1])

    strides, dilation, sizes = pair("strides"), pair("dilations"), node.graph.shapes[source.tensor]
    if min(*strides, *dilation, *window) < 1:
        raise ValueError(f"{node.layer!r:.100} has a window of {window} in steps of {strides}")
    pads = list(node.attributes.get("pads", [0] * 2 * spatial))
    low, high = ([0, pads[0]], [0, pads[1]]) if spatial == 1 else (pads[:2], pads[2:])
    auto = node.attributes.get("auto_pad", b"NOTSET").decode()
    for axis in (0, 1):
        reach = (window[axis] - 1) * dilation[axis] + 1
        if auto.startswith("SAME"):
            total = max((-(-sizes[axis] // strides[axis]) - 1) * strides[axis] + reach - sizes[axis], 0)
            low[axis] = total // 2 if auto == "SAME_UPPER" else total - total // 2
            high[axis] = total - low[axis]
        if node.attributes.get("ceil_mode", 0):
            rest = (sizes[axis] + low[axis] + high[axis] - reach) % strides[axis]
            added = strides[axis] - rest if rest else 0
            # A window that starts in the padding after the picture is left out.
            starts = (sizes[axis] + low[axis] + high[axis] + added - reach) // strides[axis] * strides[axis]
            high[axis] += added if starts < sizes[axis] + low[axis] else 0
    padding: Padding = ((low[0], high[0]), (low[1], high[1]))
    return Geometry(strides, dilation, padding, groups)


def _matmul(node: OnnxNode, operands: Operands) -> Value:
    value, weights = operands[:2]
    if isinstance(weights, Held | Pending):
        return _host_step(node, operands)
    kernel = _weights(node, weights)
    if kernel.integers.ndim != 2:
        raise node.refused(f"has weights of {kernel.integers.ndim} axes, and the chip's dense layers have two", _FLOAT)
    zeros = np.zeros(kernel.integers.shape[1], np.int64)
    return node.graph.dense(_activation(node, value), kernel.centered, _scales(node, kernel, 1), zeros)


def _gemm(node: OnnxNode, operands: Operands) -> Value:
    value, weights, bias = (*operands, None)[:3]
    kernel, held = _weights(node, weights), node.graph.held(_activation(node, value))
    plain = node.attributes.get("alpha", 1.0) == 1 and node.attributes.get("beta", 1.0) == 1
    if not plain or node.attributes.get("transA", 0):
        raise node.refused("has another alpha, beta or transA than 1, 1 and 0", _FLOAT)
    if node.attributes.get("transB", 0):
        kernel = kernel.reshaped(kernel.integers.T, 1 - kernel.axis)
    scales = _scales(node, kernel, 1)
    offsets = _bias(bias, kernel.integers.shape[1], node.graph.of(held), scales)
    return node.graph.dense(held, kernel.centered, scales, offsets)


def _activation(node: OnnxNode, value: Value | None) -> Held | Pending:
    if not isinstance(value, Held | Pending):
        raise node.refused("takes a constant where an activation is expected", _FLOAT)
    return value


# Elementwise operations.


def _binary(kind: str) -> Callable[[OnnxNode, Operands], Value]:
    ufunc = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}[kind]

    def write(node: OnnxNode, operands: Operands) -> Value:
        first, second = operands[:2]
        for value, other, turned in ((first, second, False), (second, first, True)):
            known = other.reals if isinstance(other, Scaled) else other
            if isinstance(value, Held | Pending) and isinstance(known, np.ndarray) and known.size == 1:
                number = known.astype(np.float32).reshape(())
                apply = functools.partial(ufunc, number) if turned else functools.partial(_swapped, ufunc, number)
                return node.graph.function(value, kind, apply)
        if kind == "divide":
            return _host_step(node, operands)
        return _of_tensors(node, kind, first, second)

    return write


def _swapped(ufunc: Callable[..., np.ndarray], second: np.ndarray, first: np.ndarray) -> np.ndarray:
    return ufunc(first, second)


def _of_tensors(node: OnnxNode, kind: str, first: Value | None, second: Value | None) -> Value:
    graph, turned = node.graph, not isinstance(first, Held | Pending)
    if turned and kind != "subtract":
        first, second = second, first
        turned = False
    if turned or not isinstance(first, Held | Pending):
        raise node.refused("subtracts a tensor from constants", _FLOAT)
    held = _in_order(graph, graph.held(first))
    if isinstance(second, Held | Pending):
        other = _in_order(graph, graph.held(second))
        if math.prod(other.dims) > math.prod(held.dims) and kind != "subtract":
            held, other = other, held
        if held.channels_first != other.channels_first and len(other.dims) == len(held.dims):
            held, other = graph.picture(held), graph.picture(other)
        graph.of(held), graph.of(other)  # both need a scale
        shape, tensor = graph.shapes[held.tensor], other.tensor
        if graph.shapes[tensor] == shape and other.channels_first == held.channels_first:
            return graph.elementwise(kind, held, tensor)
        if graph.shapes[tensor] == (1, 1, shape[2]) and _per_channel(other.dims, held):
            return graph.elementwise(kind, held, tensor)
        raise node.refused(
            f"combines {list(held.dims)} with {list(other.dims)}, and the chip repeats a number per channel only",
            _FLOAT,
        )
    if not isinstance(second, Scaled):
        raise node.refused("takes constants without scales", _QUANTIZE)
    own = quantization_of(node, second.scale, second.zero_point.astype(second.integers.dtype))
    integers = second.integers.astype(np.int64) - (128 if second.integers.dtype.kind == "u" else 0)
    if second.integers.dtype.itemsize > 1:
        raise node.refused(f"takes constants of {second.integers.dtype.name}", _QUANTIZE)
    dims = integers.shape[1:] if integers.ndim == len(held.dims) + 1 and integers.shape[0] == 1 else integers.shape
    if _per_channel(dims, held):
        return graph.elementwise(kind, held, graph.constant(held, integers.reshape(1, 1, -1), own))
    whole = np.broadcast_to(integers.reshape(dims), held.dims)
    ordered = np.moveaxis(whole, 0, -1) if held.channels_first else whole
    return graph.elementwise(kind, held, graph.constant(held, ordered.reshape(graph.shapes[held.tensor]), own))


def _in_order(graph: IntegerGraph, held: Held) -> Held:
    """Return a picture with channels last, or another value in the file's order."""
    if held.channels_first and len(held.dims) in (2, 3) and graph.shapes[held.tensor][2] == held.dims[0]:
        return graph.picture(held)
    return graph.rows(held)


def _per_channel(dims: tuple[int, ...], held: Held) -> bool:
    """Return whether a shape broadcasts as one number per channel."""
    padded = (*[1] * (len(held.dims) - len(dims)), *dims)
    channel = 0 if held.channels_first else len(held.dims) - 1
    return len(padded) == len(held.dims) and all(
        size == (held.dims[axis] if axis == channel else 1) for axis, size in enumerate(padded)
    )


def _number(node: OnnxNode, operands: Operands, index: int, name: str) -> float | None:
    value = operands[index] if index < len(operands) else None
    if isinstance(value, Scaled):
        value = value.reals
    value = node.attributes.get(name) if value is None else value
    if isinstance(value, Held | Pending):
        raise node.refused(f"computes its {name} from an input", _FLOAT)
    return None if value is None else float(np.asarray(value).reshape(()))


def _clip(node: OnnxNode, operands: Operands) -> Value:
    low, high = _number(node, operands, 1, "min"), _number(node, operands, 2, "max")
    return node.graph.clipped(_activation(node, operands[0]), low, high)


def _relu(node: OnnxNode, operands: Operands) -> Value:
    return node.graph.clipped(_activation(node, operands[0]), 0.0, None)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_FUNCTIONS: dict[str, Callable[[Mapping[str, Any]], Callable[[np.ndarray], np.ndarray]]] = {
    "Abs": lambda _: np.abs,
    "Elu": lambda given: lambda x: np.where(x < 0, given.get("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x),
    "Erf": lambda _: lambda x: np.asarray(jax.lax.erf(x)),
    "Exp": lambda _: np.exp,
    "Gelu": lambda given: (
        lambda x: np.asarray(jax.nn.gelu(x, approximate=given.get("approximate", b"none") == b"tanh"))
    ),
    "HardSigmoid": lambda given: lambda x: np.clip(given.get("alpha", 0.2) * x + given.get("beta", 0.5), 0, 1),
    "HardSwish": lambda _: lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "LeakyRelu": lambda given: lambda x: np.where(x < 0, np.float32(given.get("alpha", 0.01)) * x, x),
    "Neg": lambda _: np.negative,
    "Selu": lambda _: lambda x: np.asarray(jax.nn.selu(x)),
    "Sigmoid": lambda _: _sigmoid,
    "Softplus": lambda _: lambda x: np.logaddexp(x, np.float32(0)),
    "Softsign": lambda _: lambda x: x / (1 + np.abs(x)),
    "Sqrt": lambda _: np.sqrt,
    "Tanh": lambda _: np.tanh,
}
"""Functions of one number, by the attributes of the node."""


def _function(node: OnnxNode, operands: Operands) -> Value:
    return node.graph.function(
        _activation(node, operands[0]), node.kind.lower(), _FUNCTIONS[node.kind](node.attributes)
    )


# Pools.


def _pool(kind: str, whole: bool = False) -> Callable[[OnnxNode, Operands], Value]:
    def write(node: OnnxNode, operands: Operands) -> Value:
        if node.attributes.get("channels_last", 0):
            raise node.refused("has its channels last", _FLOAT)
        source = node.graph.picture(_activation(node, operands[0]))
        height, width, _ = node.graph.shapes[source.tensor]
        if whole:
            made = node.graph.pool(kind, source, (height, width), Geometry())
            assert isinstance(made, Held | Pending)
            return made
        sizes = node.attributes["kernel_shape"]
        window = (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
        geometry = _geometry(node, source, window)
        if geometry.dilation != (1, 1):
            raise node.refused("is a dilated pool, and the chip's windows have no gaps", _FLOAT)
        counted = kind == "average" and bool(node.attributes.get("count_include_pad", 0))
        if counted and node.attributes.get("ceil_mode", 0):
            raise node.refused("counts padding beyond the picture (ceil_mode and count_include_pad)", _FLOAT)
        return node.graph.pool(kind, source, window, geometry, counted)

    return write


def _reduce_mean(node: OnnxNode, operands: Operands) -> Value:
    value = node.graph.held(_activation(node, operands[0]))
    axes = sorted(axis % (len(value.dims) + 1) for axis in node.numbers("axes", operands, 1) or [])
    if len(value.dims) not in (2, 3) or axes != list(range(2, len(value.dims) + 1)):
        return _host_step(node, operands)
    made = _pool("average", whole=True)(node, [value])
    assert isinstance(made, Pending)
    return made if node.attributes.get("keepdims", 1) else dataclasses.replace(made, dims=made.dims[:1])


# Data movement.


def _same(node: OnnxNode, operands: Operands) -> Value:
    value = operands[0]
    assert value is not None
    return value


def _reshape(node: OnnxNode, operands: Operands) -> Value:
    held = node.graph.held(_activation(node, operands[0]))
    size = math.prod(held.dims)
    if node.kind == "Flatten":
        axis = node.attributes.get("axis", 1)
        dims = [size] if axis == 1 else None
    elif node.kind == "Reshape":
        wanted = node.numbers("shape", operands, 1) or []
        dims = [held.dims[n - 1] if n and number == 0 else number for n, number in enumerate(wanted)][1:]
        if not wanted or wanted[0] not in (0, -1, node.batch or -1):
            dims = None
    else:
        dims = _with_axes(node, held, node.numbers("axes", operands, 1))
    if dims is not None and dims.count(-1) == 1:
        dims[dims.index(-1)] = size // max(-math.prod(dims), 1)
    if dims is None or math.prod(dims) != size or min(dims, default=1) < 1:
        raise node.refused(
            f"makes another batch of {list(held.dims)}, and the chip computes each example by itself", _FLOAT
        )
    return dataclasses.replace(held, dims=tuple(dims))


def _with_axes(node: OnnxNode, held: Held, axes: list[int] | None) -> list[int] | None:
    """Return the dims after Squeeze or Unsqueeze; None if the batch is concerned."""
    rank = len(held.dims) + 1 + (len(axes or []) if node.kind == "Unsqueeze" else 0)
    places = sorted(axis % rank for axis in axes or [n + 1 for n, size in enumerate(held.dims) if size == 1])
    if 0 in places:
        return None
    dims = [0, *held.dims]
    if node.kind == "Unsqueeze":
        for place in places:
            dims.insert(place, 1)
    else:
        if any(dims[place] != 1 for place in places):
            return None
        dims = [size for place, size in enumerate(dims) if place not in places]
    return dims[1:]


def _transpose(node: OnnxNode, operands: Operands) -> Value:
    value = operands[0]
    if isinstance(value, Scaled):
        order = node.attributes.get("perm", list(range(value.integers.ndim))[::-1])
        return value.reshaped(value.integers.transpose(order), list(order).index(value.axis))
    held = node.graph.held(_activation(node, value))
    rank = len(held.dims) + 1
    order = list(node.attributes.get("perm", range(rank)[::-1]))
    if order[:1] != [0] or sorted(order) != list(range(rank)):
        raise node.refused("moves the batch, and the chip computes each example by itself", _FLOAT)
    dims, shape = tuple(held.dims[axis - 1] for axis in order[1:]), node.graph.shapes[held.tensor]
    if order == [0, *range(2, rank), 1] and held.channels_first and rank in (3, 4) and shape[2] == held.dims[0]:
        return Held(held.tensor, dims)
    if (
        order == [0, rank - 1, *range(1, rank - 1)]
        and not held.channels_first
        and rank in (3, 4)
        and shape[2] == held.dims[-1]
    ):
        return dataclasses.replace(held, dims=dims, channels_first=True)
    moved = [axis for axis in order if axis and held.dims[axis - 1] != 1]
    if moved == sorted(moved):
        return dataclasses.replace(held, dims=dims)
    return _host_step(node, operands)


def _parts(node: OnnxNode, operands: Operands) -> tuple[list[Held], int]:
    """Return activations in one order of numbers, and the attribute "axis"."""
    values = [_in_order(node.graph, node.graph.held(_activation(node, value))) for value in operands]
    if any(value.channels_first for value in values):
        values = [node.graph.picture(value) for value in values]
    return values, node.axis(len(values[0].dims) + 1, 1)


def _concat(node: OnnxNode, operands: Operands) -> Value:
    values, axis = _parts(node, operands)
    return node.graph.concatenation(values, axis)


def _split(node: OnnxNode, operands: Operands) -> list[Value]:
    (value,), axis = _parts(node, operands[:1])
    size = value.dims[axis]
    share = -(-size // max(node.outputs, 1))
    sizes = node.numbers("split", operands, 1) or [min(share, size - start) for start in range(0, size, share)]
    ends = np.cumsum([0, *sizes])
    return [node.graph.part(value, axis, int(start), int(end)) for start, end in itertools.pairwise(ends)]


def _slice(node: OnnxNode, operands: Operands) -> Value:
    value = _in_order(node.graph, node.graph.held(_activation(node, operands[0])))
    starts, ends = node.numbers("starts", operands, 1) or [], node.numbers("ends", operands, 2) or []
    axes = node.numbers("axes", operands, 3) or list(range(len(starts)))
    if set(node.numbers("steps", operands, 4) or [1]) != {1}:
        raise node.refused("takes every so many numbers", _FLOAT)
    for start, end, axis in zip(starts, ends, axes, strict=True):
        place = node.example_axis(axis, len(value.dims) + 1)
        first, last, _ = slice(start, end).indices(value.dims[place])
        value = node.graph.part(value, place, first, last)
    return value


def _pad(node: OnnxNode, operands: Operands) -> Value:
    pads, value = node.numbers("pads", operands, 1) or [], _activation(node, operands[0])
    fill = _number(node, operands, 2, "value") or 0.0
    source, mode = node.graph.picture(value), node.attributes.get("mode", b"constant")
    rank = len(source.dims) + 1
    if mode != b"constant" or fill != 0 or any(pads[n] for n in (0, 1, rank, rank + 1)) or len(operands) > 3:
        raise node.refused("pads with something else than zeros around a picture", _FLOAT)
    pairs = list(zip(pads[2:rank], pads[rank + 2 :], strict=True))
    padding = ((0, 0), pairs[0]) if rank == 3 else (pairs[0], pairs[1])
    return node.graph.padded(source, padding)


# The host.


def _normalized(given: Mapping[str, Any]) -> Callable[..., Any]:
    def function(x: Any, scale: Any, bias: Any = 0.0) -> Any:
        axes = tuple(range(given.get("axis", -1) % x.ndim, x.ndim))
        mean = x.mean(axes, keepdims=True)
        variance = jnp.square(x - mean).mean(axes, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + given.get("epsilon", 1e-5)) * scale + bias

    return function


_HOST: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], Callable[..., Any]]]] = {
    "Softmax": (
        "softmax",
        "it divides by a sum over channels",
        lambda given: lambda x: jax.nn.softmax(x, given.get("axis", -1)),
    ),
    "LogSoftmax": (
        "log softmax",
        "it needs a sum over channels",
        lambda given: lambda x: jax.nn.log_softmax(x, given.get("axis", -1)),
    ),
    "Transpose": (
        "transpose",
        "it moves numbers between channels and positions",
        lambda given: lambda x: jnp.transpose(x, given.get("perm")),
    ),
    "MatMul": (
        "product of activations",
        "it multiplies two activations, and the chip multiplies activations with weights",
        lambda _: jnp.matmul,
    ),
    "Div": ("divide", "it divides one tensor by another", lambda _: jnp.divide),
    "LayerNormalization": ("layer normalization", "it needs the mean and the variance over channels", _normalized),
    "ReduceMean": (
        "mean",
        "it reduces over channels",
        lambda given: (
            lambda x, axes=None: x.mean(tuple(given.get("axes", axes)), keepdims=bool(given.get("keepdims", 1)))
        ),
    ),
}
"""Operators that the host computes: kind, reason, and the JAX function by the attributes of the node."""


def _host_step(node: OnnxNode, operands: Operands) -> Value:
    kind, why, maker = _HOST[node.kind]
    given = dict(node.attributes)
    if "softmax" in node.kind.lower() and node.opset < 13:
        given.setdefault("axis", 1)
    function, held = maker(given), [node.graph.held(x) for x in operands if isinstance(x, Held | Pending)]

    def computed(*arrays: Any) -> Any:
        left = list(arrays)
        return function(
            *(
                left.pop(0) if isinstance(x, Held | Pending) else x.reals if isinstance(x, Scaled) else x
                for x in operands
            )
        )

    specs = [jax.ShapeDtypeStruct((2, *value.dims), np.float32) for value in held]
    shape = jax.eval_shape(computed, *specs).shape
    if shape[:1] != (2,):
        raise node.refused("works along the batch, and the chip computes each example by itself", _FLOAT)
    return node.graph.host(kind, why, computed, held, tuple(shape[1:]))


OPERATORS: dict[str, Callable[[OnnxNode, Operands], Value | list[Value]]] = {
    "Add": _binary("add"),
    "AveragePool": _pool("average"),
    "Cast": _same,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _binary("divide"),
    "Dropout": _same,
    "Flatten": _reshape,
    "Gemm": _gemm,
    "GlobalAveragePool": _pool("average", whole=True),
    "GlobalMaxPool": _pool("max", whole=True),
    "Identity": _same,
    "MatMul": _matmul,
    "MaxPool": _pool("max"),
    "Mul": _binary("multiply"),
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "Relu": _relu,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _reshape,
    "Sub": _binary("subtract"),
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
    **dict.fromkeys(_FUNCTIONS, _function),
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "Softmax"), _host_step),
}
"""Operators of floats, and those that only move numbers."""


def _between(kind: str, operands: int, more: str = "") -> Callable[[OnnxNode, Operands], Value]:
    """Return an operator between scales: so many operands with scale and zero point, the result's, and others."""

    def write(node: OnnxNode, given: Operands) -> Value:
        taken = 3 * operands
        parts = [dequantized(_along(node, index), given[3 * index : 3 * index + 3]) for index in range(operands)]
        rest, target = list(given[taken:]), slice(0, 2)
        if more == "bias after":  # QLinearConv: the result's scale, then the bias
            parts += [rest[2]] if len(rest) > 2 and rest[2] is not None else []
        elif more == "bias before":  # QGemm
            parts += [rest[0]] if rest[0] is not None else []
            target = slice(1, 3)
        result = OPERATORS[kind](dataclasses.replace(node, kind=kind), parts)
        assert isinstance(result, Held | Pending)
        if rest[target] == [] or rest[target][0] is None:
            return result
        return node.graph.quantized(result, quantization_of(node, *rest[target]))

    def _along(node: OnnxNode, index: int) -> OnnxNode:
        """Return the node with the axis of its weights' scales."""
        axis = 0 if kind == "Conv" or node.attributes.get("transB") else 1
        return dataclasses.replace(node, attributes={**node.attributes, "axis": axis}) if index else node

    return write


def _joined(node: OnnxNode, given: Operands) -> Value:
    parts = [dequantized(node, given[start : start + 3]) for start in range(2, len(given), 3)]
    result = _concat(node, parts)
    assert isinstance(result, Pending)
    return node.graph.quantized(result, quantization_of(node, given[0], given[1]))


SCALED_OPERATORS: dict[str, Callable[[OnnxNode, Operands], Value]] = {
    "QGemm": _between("Gemm", 2, "bias before"),
    "QLinearAdd": _between("Add", 2),
    "QLinearAveragePool": _between("AveragePool", 1),
    "QLinearConcat": _joined,
    "QLinearConv": _between("Conv", 2, "bias after"),
    "QLinearGlobalAveragePool": _between("GlobalAveragePool", 1),
    "QLinearLeakyRelu": _between("LeakyRelu", 1),
    "QLinearMatMul": _between("MatMul", 2),
    "QLinearMul": _between("Mul", 2),
    "QLinearSigmoid": _between("Sigmoid", 1),
    "QLinearSoftmax": _between("Softmax", 1),
}
"""Operators of integers: an operator of floats between its scales."""
