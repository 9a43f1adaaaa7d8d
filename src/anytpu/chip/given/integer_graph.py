"""`IntegerGraph`: build a network in integers, node by node, from a file that holds its scales.

Idea: a file has its own order of axes, batch and channels first. The graph has channels last. A value remembers both
(`HeldTensor`), so most reshapes and transposes add no node. A dense layer after a flatten gets a kernel in the graph's
order.

Rule: the numbers of the file stay as they are. If the chip needs another order of numbers, the host moves them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.chip.given.values import MAX_NUMBERS, HeldTensor, Pending, check_sums, every_integer, in_one_group
from anytpu.chip.graph.arithmetic import clip_bounds
from anytpu.chip.graph.names import Names
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    HostStep,
    Network,
    Node,
    Padding,
    Pair,
    Pool,
    Port,
    Quantization,
    Reshape,
    Shape,
    Slice,
    Table,
)
from anytpu.chip.graph.shapes import Geometry, canonical_shape
from anytpu.chip.network.operations import HostOperations
from anytpu.chip.network.reading import trace_of
from anytpu.errors import QuantizationError
from anytpu.program import of

_MOVES = "it moves numbers between channels and positions"

_ROWS = 8
"""Batch size for which a step of the host is traced."""


class IntegerGraph:
    """The nodes of a network in integers.

    Attributes:
        layer: layer of the nodes that are added.
        shapes, quantizations, nodes: as in `Network`.
    """

    def __init__(self):
        self.layer = ""
        self.shapes: dict[str, Shape] = {}
        self.quantizations: dict[str, Quantization] = {}
        self.nodes: list[Node] = []
        self._names = Names()
        self._made: dict[object, str] = {}
        self._makers: dict[str, Node] = {}
        self._moved_inputs: set[str] = set()

    def network(self, name: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> Network:
        """Return the nodes that an output needs, as a network."""
        needed, kept = {port.tensor for port in outputs}, list[Node]()
        for node in reversed(self.nodes):
            if node.output in needed:
                kept.append(node)
                needed.update(node.inputs)
        kept.reverse()
        known = {port.tensor for port in inputs} | {node.output for node in kept}
        # An input that only the host moves stays in floats: the tensors made of it are quantized.
        on_chip = {source for node in kept if node.output not in self._moved_inputs for source in node.inputs}
        on_chip |= {node.output for node in kept} | {port.tensor for port in outputs}
        quantizations = {
            tensor: given for tensor, given in self.quantizations.items() if tensor in known and tensor in on_chip
        }
        shapes = {tensor: shape for tensor, shape in self.shapes.items() if tensor in known}
        return Network(name, tuple(inputs), tuple(outputs), shapes, quantizations, tuple(kept))

    # Tensors.

    def tensor(self, wanted: str, shape: Shape, quantization: Quantization | None) -> str:
        """Declare a tensor, and return its unused name: `wanted`, or `wanted` with a number."""
        if min(shape) < 1 or math.prod(shape) > MAX_NUMBERS:
            raise QuantizationError(
                f"The layer {self.layer!r:.100} makes a tensor of {list(shape)}, which is no shape."
            )
        name = self._names.unused(wanted)
        self.shapes[name] = shape
        if quantization is not None:
            self.quantizations[name] = quantization
        return name

    def add(
        self, node_class: type[Node], inputs: Sequence[str], shape: Shape, target: Quantization | None, **fields: Any
    ) -> str:
        """Add a node, and return its output; an equal movement is added once."""
        key = (
            (node_class, tuple(inputs), shape, *fields.values())
            if node_class in (Concatenate, Reshape, Slice)
            else object()
        )
        if key in self._made:
            return self._made[key]
        word = fields.get("kind") or node_class.__name__.lower()
        name = self.tensor(f"{self.layer}/{word}" if self.layer else word, shape, target)
        self._makers[name] = node_class(name, self.layer, tuple(inputs), name, **fields)
        self.nodes.append(self._makers[name])
        self._made[key] = name
        return name

    def of(self, held: HeldTensor) -> Quantization:
        """Return the quantization of a value.

        Raises:
            QuantizationError: the file does not quantize it.
        """
        if held.is_float or held.tensor not in self.quantizations:
            raise self.unscaled()
        return self.quantizations[held.tensor]

    def unscaled(self) -> QuantizationError:
        """Return the error for a value without a scale."""
        return QuantizationError(
            f"The layer {self.layer!r:.100} takes or makes numbers that the file does not quantize, and every number "
            "of the chip has a scale. Quantize the whole model; for ONNX: quantize_static(...) without "
            "nodes_to_exclude and op_types_to_quantize."
        )

    def quantized(self, value: HeldTensor | Pending, target: Quantization) -> HeldTensor:
        """Return a value in integers of a quantization: QuantizeLinear."""
        if isinstance(value, Pending):
            return HeldTensor(value.make(target, value.low, value.high), value.dims, value.channels_first)
        if value.is_float:
            self._quantize(value.tensor, target)
        own = self.quantizations[value.tensor]
        if own == target:
            return dataclasses.replace(value, is_float=False)
        return self._looked_up(value, target, "requantize", target.quantize(own.dequantize(every_integer(own))))

    def _quantize(self, tensor: str, target: Quantization) -> None:
        """Give a tensor of floats its quantization, and the tensors whose numbers it holds."""
        if self.quantizations.setdefault(tensor, target) != target:
            raise QuantizationError(
                f"The layer {self.layer!r:.100} quantizes {tensor!r:.100} with another scale than a layer before, and "
                "a tensor of the chip has one: quantize the model with one scale for it."
            )
        maker = self._makers.get(tensor)
        if isinstance(maker, Reshape | Slice | Pool):
            self._quantize(maker.inputs[0], target)

    def reread(self, value: HeldTensor, target: Quantization) -> HeldTensor:
        """Return the same integers with another quantization: DequantizeLinear of them."""
        own = self.of(value)
        if own == target:
            return value
        if own.bits != target.bits:
            raise QuantizationError(
                f"The layer {self.layer!r:.100} takes integers of {own.bits} bits as {target.bits} bits: quantize the "
                "model again."
            )
        return self._looked_up(value, target, "same_integers", every_integer(own).astype(target.dtype))

    def held(self, value: HeldTensor | Pending) -> HeldTensor:
        """Return a value as a tensor, also if the file gives it no scale of its own and it needs none."""
        if isinstance(value, HeldTensor):
            return value
        if value.own is None:
            raise self.unscaled()
        return self.quantized(value, value.own)

    def function(self, value: HeldTensor | Pending, kind: str, apply: Callable[[np.ndarray], np.ndarray]) -> Pending:
        """Return a function of one number."""
        held = self.held(value)
        own = self.of(held)
        with np.errstate(all="ignore"):
            reals = np.asarray(apply(own.dequantize(every_integer(own))), np.float32)
        if np.isnan(reals).any():
            raise QuantizationError(
                f"The layer {self.layer!r:.100} has no value for some integers of its input: quantize the model again."
            )

        def make(target: Quantization, low: float | None, high: float | None) -> str:
            table = target.quantize(reals if low is None and high is None else np.clip(reals, low, high))
            return self._looked_up(held, target, kind, table).tensor

        return Pending(held.dims, held.channels_first, make)

    def clipped(self, value: HeldTensor | Pending, low: float | None, high: float | None) -> Pending:
        """Return a value clipped to bounds; None: no bound."""
        if isinstance(value, Pending) and value.may_clip and value.low is None and value.high is None:
            return dataclasses.replace(value, low=low, high=high)
        return self.function(value, "clip", lambda x: np.clip(x, low, high))

    def _looked_up(self, value: HeldTensor, target: Quantization, kind: str, table: np.ndarray) -> HeldTensor:
        made = self.add(Table, [value.tensor], self.shapes[value.tensor], target, kind=kind, table=table)
        return dataclasses.replace(value, tensor=made)

    # Orders of numbers.

    def is_row_major(self, value: HeldTensor) -> bool:
        """Return whether the file's order of numbers is that of the tensor."""
        height, width, channels = self.shapes[value.tensor]
        return not value.channels_first or channels == 1 or height * width == 1

    def shaped(self, tensor: str, shape: Shape) -> str:
        """Return a tensor in a shape."""
        if self.shapes[tensor] == shape:
            return tensor
        return self.add(Reshape, [tensor], shape, self.quantizations.get(tensor))

    def picture(self, value: HeldTensor | Pending) -> HeldTensor:
        """Return a value of `(channels, height, width)` or `(channels, width)` as a tensor with channels last."""
        held = self.held(value)
        if len(held.dims) not in (2, 3):
            raise QuantizationError(
                f"The layer {self.layer!r:.100} takes {len(held.dims)} axes beside the batch, and the chip's pictures "
                "have two or three. Compile the model that the file was exported from, with calibration=."
            )
        wanted = self._last(held.dims)
        height, width, channels = self.shapes[held.tensor]
        if held.channels_first and channels == wanted[2] and height * width == wanted[0] * wanted[1]:
            return dataclasses.replace(held, tensor=self.shaped(held.tensor, wanted))
        if self.is_row_major(held) and (wanted[2] == 1 or wanted[0] * wanted[1] == 1):
            return dataclasses.replace(held, tensor=self.shaped(held.tensor, wanted), channels_first=True)
        return self._moved(held, wanted, True)

    def rows(self, value: HeldTensor | Pending) -> HeldTensor:
        """Return a value as a tensor in the file's order of numbers, in its shape."""
        held = self.held(value)
        wanted = canonical_shape(held.dims)
        if self.is_row_major(held):
            return dataclasses.replace(held, tensor=self.shaped(held.tensor, wanted), channels_first=False)
        return self._moved(held, wanted, False)

    def transposed(self, value: HeldTensor, order: Sequence[int]) -> HeldTensor:
        """Return a value with its axes in another order; the host moves numbers between channels and positions.

        Args:
            value: the value.
            order: axes, the batch included and first.
        """
        rank, shape = len(order), self.shapes[value.tensor]
        dims = tuple(value.dims[axis - 1] for axis in order[1:])
        if rank in (3, 4):
            to_last, to_first = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
            if list(order) == to_last and value.channels_first and shape[2] == value.dims[0]:
                return dataclasses.replace(value, dims=dims, channels_first=False)
            if list(order) == to_first and not value.channels_first and shape[2] == value.dims[-1]:
                return dataclasses.replace(value, dims=dims, channels_first=True)
        moved = [axis for axis in order if axis and value.dims[axis - 1] != 1]
        if moved == sorted(moved):
            return dataclasses.replace(value, dims=dims)
        made = self.host("transpose", _MOVES, lambda x: jnp.transpose(x, order), [value], dims)
        return self._kept(value, made)

    @staticmethod
    def _last(dims: tuple[int, ...]) -> Shape:
        return (dims[1], dims[2], dims[0]) if len(dims) == 3 else (1, dims[1], dims[0])

    def _moved(self, held: HeldTensor, shape: Shape, channels_first: bool) -> HeldTensor:
        key = held, shape, channels_first
        if key not in self._made:
            made = self.host("transpose", _MOVES, lambda x: x, [held], held.dims, channels_first)
            self._made[key] = self._kept(held, made).tensor
        return dataclasses.replace(held, tensor=self._made[key], channels_first=channels_first)

    def _kept(self, held: HeldTensor, made: HeldTensor) -> HeldTensor:
        """Return what the host has moved, with the quantization that it had."""
        if held.tensor in self.quantizations:
            self.quantizations[made.tensor] = self.quantizations[held.tensor]
            self._moved_inputs.add(made.tensor)
        return dataclasses.replace(made, is_float=held.is_float, stored=held.stored)

    # Nodes.

    def host(
        self,
        kind: str,
        why: str,
        function: Callable[..., Any],
        inputs: Sequence[HeldTensor],
        dims: tuple[int, ...],
        channels_first: bool = False,
    ) -> HeldTensor:
        """Add a step of the host, a JAX function of arrays in the file's shapes; its result has no quantization yet."""

        def step(state: Any, batch: Any) -> Any:
            natural = [self._natural(array, held) for array, held in zip(batch, inputs, strict=True)]
            result = function(*natural)
            return state, jnp.moveaxis(result, 1, -1) if channels_first else result

        specs = [jax.ShapeDtypeStruct((_ROWS, *self.shapes[held.tensor]), np.float32) for held in inputs]
        trace = trace_of(of(step, ({}, specs), "infer", True, batch_size=_ROWS))
        steps = HostOperations(
            tuple(trace.argument(name) for name in trace.inputs), trace.operations, trace.argument(trace.outputs[0])
        )
        shape = self._last(dims) if channels_first else canonical_shape(dims)
        made = self.add(HostStep, [held.tensor for held in inputs], shape, None, kind=kind, why=why, steps=steps)
        return HeldTensor(made, dims, channels_first, is_float=True)

    @staticmethod
    def _natural(array: Any, held: HeldTensor) -> Any:
        ordered = jnp.moveaxis(array, -1, 1) if held.channels_first else array
        return ordered.reshape(array.shape[0], *held.dims)

    def product(
        self,
        source: HeldTensor,
        weights: np.ndarray,
        scales: np.ndarray,
        bias: np.ndarray,
        geometry: Geometry,
        dims: tuple[int, ...],
        channels_first: bool,
    ) -> Pending:
        """Return a convolution of a tensor.

        Args:
            source: the input, a picture or anything for a kernel as large as its tensor.
            weights: integers minus their zero point `(height, width, input channels / groups, output channels)`.
            scales: float32 scale of each output channel.
            bias: real numbers of the sum, or integers in steps of input scale * weight scale.
            geometry: the window.
            dims, channels_first: of the result, as in `HeldTensor`.
        """
        own = self.of(source)
        if geometry.groups > 1 and np.abs(weights).max(initial=0) > 127:
            weights = in_one_group(weights, geometry.groups)
            geometry = dataclasses.replace(geometry, groups=1)
        source, weights = self._in_bytes(source, weights)
        if bias.dtype.kind == "f":
            bias = np.rint(bias / (np.float64(own.scale) * scales.astype(np.float64)))
        magnitudes = np.abs(weights).sum((0, 1, 2), dtype=np.float64)
        for magnitude, offset in np.broadcast(magnitudes, np.abs(bias.astype(np.float64))):
            check_sums(self.layer, own, magnitude, offset)
        fields = {
            "weights": weights.astype(np.int8),
            "weight_scales": np.array(np.broadcast_to(scales, weights.shape[3:]), np.float32),
            "bias": np.array(np.broadcast_to(bias, weights.shape[3:])).astype(np.int32),
            **{name: getattr(geometry, name) for name in ("strides", "dilation", "padding", "groups")},
        }
        shape = geometry.result(self.shapes[source.tensor], (weights.shape[0], weights.shape[1]), weights.shape[3])

        def make(target: Quantization, low: float | None, high: float | None) -> str:
            bounds = clip_bounds(target, low, high)
            return self.add(Convolution, [source.tensor], shape, target, **fields, low=bounds[0], high=bounds[1])

        def plus(more: np.ndarray) -> Pending:
            return self.product(
                source, weights, scales, fields["bias"].astype(np.int64) + more, geometry, dims, channels_first
            )

        return Pending(dims, channels_first, make, plus=plus)

    def _in_bytes(self, source: HeldTensor, weights: np.ndarray) -> tuple[HeldTensor, np.ndarray]:
        """Return weights of -127 to 127, and their input.

        Weights with a zero point of their own reach further. They are a sum of two or three bytes, each multiplied by
        the same input.
        """
        parts, left = [], weights
        while not parts or (left.any() and len(parts) <= 3):
            parts.append(np.clip(left, -127, 127))
            left = left - parts[-1]
        if len(parts) == 1:
            return source, weights
        if len(parts) > 3 or weights.shape[2] != self.shapes[source.tensor][2]:
            raise QuantizationError(
                f"The weights of {self.layer!r:.100} go from {weights.min()} to {weights.max()} around their zero "
                "point, and those of the chip from -127 to 127. Quantize them symmetrically: quantize_static(..., "
                "weight_type=QuantType.QInt8)."
            )
        height, width, channels = self.shapes[source.tensor]
        shape = height, width, channels * len(parts)
        tensor = self.add(Concatenate, [source.tensor] * len(parts), shape, self.of(source), axis=2)
        return dataclasses.replace(source, tensor=tensor), np.concatenate(parts, axis=2)

    def dense(self, value: HeldTensor | Pending, weights: np.ndarray, scales: np.ndarray, bias: np.ndarray) -> Pending:
        """Return a product of the last axis of a value with weights `(inputs, outputs)`."""
        held = self.held(value)
        depth, outputs = weights.shape
        if not held.dims or held.dims[-1] != depth:
            raise QuantizationError(
                f"The layer {self.layer!r:.100} multiplies {list(held.dims)} by {list(weights.shape)}."
            )
        dims = (*held.dims[:-1], outputs)
        if math.prod(held.dims) == depth:  # one kernel for all positions of a flattened picture
            height, width, channels = self.shapes[held.tensor]
            if self.is_row_major(held):
                kernel = weights.reshape(height, width, channels, outputs)
            else:
                kernel = weights.reshape(channels, height, width, outputs).transpose(1, 2, 0, 3)
            return self.product(held, kernel, scales, bias, Geometry(), dims, False)
        rows = self.rows(held)
        tensor = self.shaped(rows.tensor, (1, math.prod(held.dims) // depth, depth))
        return self.product(HeldTensor(tensor, held.dims), weights[None, None], scales, bias, Geometry(), dims, False)

    def elementwise(self, kind: str, first: HeldTensor, second: str) -> Pending:
        """Return an operation of a value and a tensor of its shape, or of one number per channel."""
        shape = self.shapes[first.tensor]

        def make(target: Quantization, low: float | None, high: float | None) -> str:
            bounds = clip_bounds(target, low, high)
            return self.add(
                Elementwise, [first.tensor, second], shape, target, kind=kind, low=bounds[0], high=bounds[1]
            )

        return Pending(first.dims, first.channels_first, make)

    def pool(
        self, kind: str, source: HeldTensor, window: Pair, geometry: Geometry, counts_padding: bool = False
    ) -> HeldTensor | Pending:
        """Return a pool of a picture with channels first in the file, or in the tensor's order."""
        shape = geometry.result(self.shapes[source.tensor], window, self.shapes[source.tensor][2])
        dims = (shape[2], shape[0], shape[1]) if len(source.dims) == 3 else (shape[2], shape[1])
        fields = {"kind": kind, "window": window, "strides": geometry.strides, "padding": geometry.padding}
        fields["counts_padding"] = counts_padding

        def make(target: Quantization, *_: float | None) -> str:
            return self.add(Pool, [source.tensor], shape, target, **fields)

        if kind == "max":
            made = self.add(Pool, [source.tensor], shape, self.quantizations.get(source.tensor), **fields)
            return dataclasses.replace(source, tensor=made, dims=dims)
        check_sums(self.layer, self.of(source), window[0] * window[1])  # an average needs a scale
        return Pending(dims, True, make, may_clip=False)

    def concatenation(self, parts: Sequence[HeldTensor], axis: int) -> Pending:
        """Return values, all in one order of numbers, one after another along an axis of the file's examples."""
        tensor_axis = self.axis(parts[0], axis)
        shape, dims = list(self.shapes[parts[0].tensor]), list(parts[0].dims)
        shape[tensor_axis] = sum(self.shapes[part.tensor][tensor_axis] for part in parts)
        dims[axis] = sum(part.dims[axis] for part in parts)

        def make(target: Quantization, *_: float | None) -> str:
            tensors = [self.quantized(part, target).tensor for part in parts]
            return self.add(Concatenate, tensors, (shape[0], shape[1], shape[2]), target, axis=tensor_axis)

        own = {self.of(part) for part in parts}
        return Pending(tuple(dims), parts[0].channels_first, make, own.pop() if len(own) == 1 else None, may_clip=False)

    def part(self, value: HeldTensor, axis: int, start: int, stop: int) -> HeldTensor:
        """Return a part of a value along an axis of the file's examples."""
        tensor_axis, shape, dims = self.axis(value, axis), list(self.shapes[value.tensor]), list(value.dims)
        if (start, stop) == (0, dims[axis]):
            return value
        shape[tensor_axis] = dims[axis] = stop - start
        own = self.quantizations.get(value.tensor)
        made = self.add(
            Slice, [value.tensor], (shape[0], shape[1], shape[2]), own, axis=tensor_axis, start=start, stop=stop
        )
        return dataclasses.replace(value, tensor=made, dims=tuple(dims))

    def padded(self, value: HeldTensor, padding: Padding) -> HeldTensor:
        """Return a picture with zeros around it: a depthwise product with weight 1."""
        own, channels = self.of(value), self.shapes[value.tensor][2]
        geometry, ones = Geometry(padding=padding, groups=channels), np.ones((1, 1, 1, channels), np.int64)
        shape = geometry.result(self.shapes[value.tensor], (1, 1), channels)
        dims = (channels, shape[0], shape[1]) if len(value.dims) == 3 else (channels, shape[1])
        zeros = np.zeros(channels, np.int64)
        return self.quantized(self.product(value, ones, np.ones(1, np.float32), zeros, geometry, dims, True), own)

    def spread(self, value: HeldTensor, steps: Pair) -> HeldTensor:
        """Return a picture with zeros between its positions, which are `steps` apart.

        Rows are in position-major order, so these are positions as lines, and then rows, padded at their ends.
        """
        tensor = value.tensor
        for axis in (1, 0):
            step, (height, width, channels) = steps[axis], self.shapes[tensor]
            line = (height * width, 1, channels) if axis else (height, width, channels)
            shape = (height, width * step, channels) if axis else (height * step, width, channels)
            if step > 1:
                lines = HeldTensor(self.shaped(tensor, line), line)
                wide = self.padded(lines, ((0, 0), (0, line[1] * (step - 1)))).tensor
                tensor = self.part(HeldTensor(self.shaped(wide, shape), shape), axis, 0, shape[axis] - step + 1).tensor
        return dataclasses.replace(value, tensor=tensor)

    def axis(self, value: HeldTensor, axis: int) -> int:
        """Return the tensor's axis of an axis of the file's examples."""
        rank = len(value.dims)
        if value.channels_first:
            return 2 if axis == 0 else axis + 2 - rank
        if rank > 3:
            raise QuantizationError(
                f"The layer {self.layer!r:.100} takes {rank} axes beside the batch, and the chip's tensors have three."
            )
        return axis + 3 - rank
