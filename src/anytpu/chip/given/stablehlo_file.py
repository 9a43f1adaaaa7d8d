"""`read_stablehlo`: quantized StableHLO, with `!quant` types, as a network in integers.

Idea: the types hold every scale, as the operators of an ONNX file do. Each operation becomes a node of the same graph.
An operation on quantized tensors is, by its definition, the operation on real numbers, quantized.

Rule: what the graph has no node for is refused by name.

Source: https://openxla.org/stablehlo/spec#quantization-computations
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.interpreters import mlir

from anytpu.chip.given.combining import aligned, combined, in_order
from anytpu.chip.given.integer_graph import IntegerGraph
from anytpu.chip.given.stablehlo_text import MARK, Parameter, QuantizedType, erased
from anytpu.chip.given.values import MAX_NUMBERS, HeldTensor, Pending, Scaled, Value
from anytpu.chip.graph.nodes import Network, Port, Quantization
from anytpu.chip.graph.shapes import Geometry, canonical_shape
from anytpu.chip.isa.design import Design
from anytpu.chip.network import arrays, elementwise
from anytpu.chip.network.operations import NONSENSE
from anytpu.chip.network.parsing import MlirBlock, MlirOperation, parse
from anytpu.chip.network.products import geometry_of, pair_of
from anytpu.chip.network.repeats import picked_along, runs
from anytpu.chip.network.resampling import MAX_LINES
from anytpu.chip.quantized.checking import check_network
from anytpu.errors import AnyTPUError, ChipFileError, QuantizationError
from anytpu.files.opening import read_text

_MAX_BYTES = 2**30


def is_quantized(path: str | Path) -> bool:
    """Return whether a file is StableHLO as text with `!quant` types."""
    try:
        return MARK in read_text(Path(path), max_bytes=_MAX_BYTES)
    except (OSError, UnicodeDecodeError):
        return False


def read_stablehlo(path: str | Path, design: Design) -> Network:
    """Return the network in integers of a StableHLO file with `!quant` types, whose batch is axis 0.

    Raises:
        ChipFileError: the text cannot be parsed, or makes no sense.
        QuantizationError: it has an operation, or a scale, that the chip lacks.
    """
    text = read_text(Path(path), max_bytes=_MAX_BYTES)
    try:
        plain, arguments = erased(text)
        with mlir.make_ir_context():
            functions = parse(ir.Module.parse(plain))
        network = _StableHloReader(functions["main"], arguments).read(Path(path).stem)
        check_network(network, design)
    except AnyTPUError as error:
        raise type(error)(f"{Path(path).name}: {error}") from error
    except (ir.MLIRError, *NONSENSE) as error:
        first = (str(error) or type(error).__name__).splitlines()[-1][:200]
        raise ChipFileError(f"{str(path)!r} is no StableHLO that is understood ({first}): export it again.") from error
    return network


class _StableHloReader:
    """The state of the translation: the graph in integers, and the values by their indices."""

    def __init__(self, main: MlirBlock, arguments: Sequence[Parameter]):
        self._main, self._arguments = main, arguments
        self._graph = IntegerGraph()
        self._values: dict[int, Value] = {}
        self._types: dict[int, QuantizedType | None] = {}
        self._kinds: dict[str, int] = {}
        self._batch = next((shape[0] for given in arguments if (shape := given.shape)), 0)

    def read(self, name: str) -> Network:
        inputs = [self._input(*entry) for entry in zip(self._main.arguments, self._arguments, strict=True)]
        for operation in self._main.operations:
            kind = operation.name.removeprefix("stablehlo.")
            if kind == "custom_call":
                kind = operation.attributes["call_target_name"]
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
            self._graph.layer = f"{kind}_{self._kinds[kind]}"
            self._types[operation.results[0]] = QuantizedType.of_layer(operation.layer)
            self._values[operation.results[0]] = self._result(kind, operation)
        outputs = [self._output(index, self._values.get(number)) for index, number in enumerate(self._main.results)]
        return self._graph.network(name, inputs, outputs)

    def _input(self, number: int, argument: Parameter) -> Port:
        self._graph.layer, shape = argument.name, argument.shape
        if not shape or argument.dtype != "f32":
            raise QuantizationError(
                f"its input {argument.name!r} is {list(shape)} of {argument.dtype}, and the chip takes float32 "
                "or quantized numbers with the batch as axis 0."
            )
        own = None if argument.quantized is None else argument.quantized.quantization
        tensor = self._graph.tensor(argument.name, canonical_shape(shape[1:]), own)
        self._values[number] = HeldTensor(tensor, shape[1:], is_float=own is None)
        return Port(tensor, shape[1:])

    def _output(self, index: int, value: Value | None) -> Port:
        if not isinstance(value, HeldTensor | Pending):
            raise QuantizationError(f"its output {index} does not depend on an input: leave it out.")
        held = self._graph.rows(value)
        return Port(held.tensor, held.dims)

    def _result(self, kind: str, operation: MlirOperation) -> Value:
        if kind == "constant":
            return operation.attributes["value"]
        operands = [self._values[number] for number in operation.operands]
        own = self._types[operation.results[0]]
        if kind == "convert" and own is not None and isinstance(operands[0], np.ndarray):
            return own.constant(operands[0])
        if own is None and kind in _FOLDED and all(isinstance(operand, np.ndarray) for operand in operands):
            return _folded(kind, operation, operands)
        if kind not in _RULES and kind not in elementwise.UNARY:
            raise self._refused(kind, "is not read from a quantized file")
        rule, shape = _RULES.get(kind, _StableHloReader._unary), operation.types[0].shape
        if 0 in shape:
            raise self._refused(kind, "makes a tensor of no numbers")
        sums = own is not None and own.bits == 32 and any(isinstance(given, HeldTensor | Pending) for given in operands)
        full = own is not None and (own.low, own.high) == (-(2**31), 2**31 - 1) and not any(own.zero_points)
        if sums and not (kind in ("add", "convolution", "dot_general") and full):
            raise self._refused(kind, "makes 32 bits, and the chip's sums of 32 bits have no zero point and no bounds")
        result = rule(self, kind, operation, operands)
        if isinstance(result, HeldTensor | Pending) and shape != (self._batch, *result.dims):
            made = f"makes {list(shape)} of {self._batch} examples"
            raise self._refused(kind, f"{made}, and the chip computes each example by itself")
        return result if own is None else self._quantized(kind, result, own)

    def _refused(self, kind: str, why: str) -> QuantizationError:
        return QuantizationError(
            f"the operation {kind!r:.100} {why}. Compile the model that the file was made of, with calibration=."
        )

    def _quantized(self, kind: str, value: Value, own: QuantizedType) -> Value:
        """Return a result in the integers of its type; sums of 32 bits wait for their next scale."""
        if isinstance(value, np.ndarray):
            return own.quantized(value)
        if isinstance(value, Scaled) and kind == "uniform_quantize":
            return own.quantized(value.reals)
        if isinstance(value, Scaled) or own.bits == 32:
            return value
        target = own.quantization
        if (own.low, own.high) != (target.low, target.high):
            value = self._graph.clipped(value, *target.dequantize(np.array([own.low, own.high])).tolist())
        return self._graph.quantized(value, target)

    def _same(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        if kind == "convert" and (isinstance(operands[0], Scaled) or np.dtype(operation.types[0].dtype).kind != "f"):
            raise self._refused(kind, "makes other numbers than floats")
        return operands[0]

    def _same_scales(self, kind: str, operation: MlirOperation, scales: Any) -> None:
        """Check that sums of 32 bits have these scales."""
        own = self._types[operation.results[0]]
        if own is None or own.bits != 32:
            return
        if len(own.scales) not in (1, np.size(scales)) and np.size(scales) != 1:
            raise ValueError(f"{len(own.scales)} scales of {kind!r:.100}")
        if not np.allclose(own.scales, scales, rtol=1e-5, atol=0):
            raise self._refused(kind, "has another scale for its sums than the product of those of its operands")

    def _unary(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        return self._graph.function(self._activation(kind, operands[0]), kind, elementwise.UNARY[kind])

    def _activation(self, kind: str, value: Value) -> HeldTensor | Pending:
        if not isinstance(value, HeldTensor | Pending):
            raise self._refused(kind, "takes a constant where an activation is expected")
        return value

    def _weights(self, kind: str, value: Value, axis: int | None = None) -> tuple[Scaled, np.ndarray]:
        """Return weights, and the scales of their output channels along an axis."""
        if not isinstance(value, Scaled):
            raise self._refused(kind, "multiplies by something else than constants in integers")
        if value.scale.size > 1 and value.axis != axis:
            raise self._refused(kind, "has a scale for each input channel")
        return value, value.scale

    def _dot(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        numbers = operation.attributes["dot_dimension_numbers"]
        held = self._graph.held(self._activation(kind, operands[0]))
        contracted = sorted(zip(numbers["lhs_contracting"], numbers["rhs_contracting"], strict=True))
        batching, axes = list(numbers["rhs_batching"]), [axis for _, axis in contracted]
        shape = np.shape(operands[1].integers) if isinstance(operands[1], Scaled) else ()
        free = [axis for axis in range(len(shape)) if axis not in (*axes, *batching)]
        weights, scales = self._weights(kind, operands[1], free[0] if len(free) == 1 else None)
        kept = len(held.dims) - len(axes)
        if (
            [axis for axis, _ in contracted] != list(range(max(kept, 0) + 1, len(held.dims) + 1))
            or list(numbers["lhs_batching"]) not in ([], [0])
            or any(shape[axis] != 1 for axis in batching)  # the same weights for each example
            or not axes
        ):
            raise self._refused(kind, "contracts other axes than the last ones of each example")
        depth = math.prod(held.dims[kept:])
        matrix = weights.centered.transpose(*batching, *axes, *free).reshape(depth, -1)
        self._same_scales(kind, operation, np.float64(self._graph.of(held).scale) * scales)
        held = dataclasses.replace(held, dims=(*held.dims[:kept], depth))
        made = self._graph.dense(held, matrix, scales, np.zeros(matrix.shape[1], np.int64))
        if len(free) == 1:
            return made
        return dataclasses.replace(made, dims=(*held.dims[:kept], *(shape[axis] for axis in free)), plus=None)

    def _convolution(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        attributes, value = operation.attributes, self._activation(kind, operands[0])
        numbers = attributes["dimension_numbers"]
        rank = len(numbers["input"])
        last, first = list(range(rank)), [0, *range(2, rank), 1]
        if (
            numbers["input"] not in (last, first)
            or numbers["output"] not in (last, first)
            or attributes.get("batch_group_count", 1) != 1
            or rank not in (3, 4)
        ):
            raise self._refused(kind, "is one of three dimensions, or one over the batch")
        held = self._graph.picture(value) if numbers["input"] == first else self._graph.rows(value)
        held = self._graph.spread(held, pair_of(attributes, "lhs_dilation", rank - 2))
        weights, scales = self._weights(kind, operands[1], numbers["kernel"][-1])
        kernel = weights.centered.transpose(numbers["kernel"])
        flipped = tuple(axis for axis, turned in enumerate(attributes.get("window_reversal", [])) if turned)
        kernel = np.flip(kernel, flipped)
        kernel = kernel if rank == 4 else kernel[None]
        geometry = geometry_of(attributes, rank - 2)
        shape = geometry.result(self._graph.shapes[held.tensor], (kernel.shape[0], kernel.shape[1]), kernel.shape[3])
        spatial, turned = shape[:2] if rank == 4 else shape[1:2], numbers["output"] == first
        dims = (shape[2], *spatial) if turned else (*spatial, shape[2])
        self._same_scales(kind, operation, np.float64(self._graph.of(held).scale) * scales)
        return self._graph.product(held, kernel, scales, np.zeros(shape[2], np.int64), geometry, dims, turned)

    def _binary(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        refused, own = functools.partial(self._refused, kind), self._types[operation.results[0]]
        value, other = operands if isinstance(operands[0], HeldTensor | Pending) else operands[::-1]
        if kind == "add" and isinstance(value, Pending) and value.plus is not None and isinstance(other, Scaled):
            channel = 0 if value.channels_first else len(value.dims) - 1
            rows = np.moveaxis(other.integers, channel + 1, -1)
            bias = rows[(0,) * len(value.dims)]
            for number in operation.operands:
                known = self._types.get(number)
                self._same_scales(kind, operation, () if known is None else known.scales)
            if own is not None and own.bits == 32 and other.zero_point.any():
                raise self._refused(kind, "adds constants with a zero point to sums of 32 bits")
            if (rows == bias).all():
                return value.plus(bias)
        if own is not None and own.bits == 32 and any(isinstance(operand, Pending) for operand in operands):
            raise refused("adds more to sums of 32 bits than one constant for each channel")
        first, second = map(_one_number, operands)
        return combined(self._graph, kind, first, second, functools.partial(self._constant, kind), refused)

    def _constant(self, kind: str, value: Value | None) -> tuple[np.ndarray, Quantization]:
        """Return the integers of a constant for one example, and their quantization."""
        if not isinstance(value, Scaled) or value.scale.size > 1:
            raise self._refused(kind, "takes constants without a scale, or with a scale for each channel")
        if abs(value.integers + 0.5).max(initial=0) > 128:
            raise self._refused(kind, "takes constants of more than 8 bits")
        if (value.integers != value.integers[:1]).any():
            raise self._refused(kind, "takes constants that differ from example to example")
        return value.integers[:1], Quantization(float(value.scale[0]), int(value.zero_point[0]), 8)

    def _bounded(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        places = {"maximum": (1, 0, None), "minimum": (None, 0, 1), "clamp": (0, 1, 2)}[kind]
        if kind != "clamp" and not isinstance(operands[0], HeldTensor | Pending):
            operands = operands[::-1]
        bounds = [None if place is None else _one_number(operands[place]) for place in (places[0], places[2])]
        if any(isinstance(bound, HeldTensor | Pending) for bound in bounds):
            raise self._refused(kind, "compares two tensors")
        if not all(bound is None or (isinstance(bound, np.ndarray) and bound.size == 1) for bound in bounds):
            raise self._refused(kind, "takes constants that differ from number to number")
        low, high = (float(bound) if isinstance(bound, np.ndarray) else None for bound in bounds)
        return self._graph.clipped(self._activation(kind, operands[places[1]]), low, high)

    def _reshape(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        value, shape = operands[0], operation.types[0].shape
        if isinstance(value, Scaled):
            if value.scale.size > 1:
                raise self._refused(kind, "reshapes constants with a scale for each channel")
            return value.reshaped(value.integers.reshape(shape), 0)
        # Another batch is refused as the shape of the result is (`_result`).
        return dataclasses.replace(self._graph.held(self._activation(kind, value)), dims=tuple(shape[1:]))

    def _transpose(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        value, order = operands[0], operation.attributes["permutation"]
        if isinstance(value, Scaled):
            return value.reshaped(value.integers.transpose(order), list(order).index(value.axis))
        if order[0] != 0:
            raise self._refused(kind, "moves the batch, and the chip computes each example by itself")
        return self._graph.transposed(self._graph.held(self._activation(kind, value)), order)

    def _broadcast(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        value, shape, axes = operands[0], operation.types[0].shape, operation.attributes["broadcast_dimensions"]
        if not isinstance(value, Scaled):
            raise self._refused(kind, "repeats an activation")
        whole = arrays.compute(kind, [value.integers], operation.attributes, shape, value.integers.dtype)
        return value.reshaped(whole, axes[value.axis] if axes else 0)

    def _concatenate(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        values = aligned(self._graph, [self._activation(kind, operand) for operand in operands])
        if operation.attributes["dimension"] == 0:
            raise self._refused(kind, "works along the batch, and the chip computes each example by itself")
        return self._graph.concatenation(values, operation.attributes["dimension"] - 1)

    def _slice(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        held = in_order(self._graph, self._graph.held(self._activation(kind, operands[0])))
        parts = zip(*map(operation.attributes.get, ("start_indices", "limit_indices", "strides")), strict=True)
        for axis, (start, limit, step) in enumerate(list(parts)[1:]):  # a part of the batch has another shape
            each = ((n, n + 1) for n in range(start, limit, step))
            held = self._taken(kind, held, axis, [(start, limit)] if step == 1 else each)
        return held

    def _gather(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        held = in_order(self._graph, self._graph.held(self._activation(kind, operands[0])))
        shape = operation.types[0].shape
        known = picked_along(operation.attributes, operands[1], (self._batch, *held.dims), len(shape))
        if known is None or known[0] == 0:
            raise self._refused(kind, "takes other parts than those of each example at constant indices along one axis")
        return dataclasses.replace(self._taken(kind, held, known[0] - 1, runs(known[1])), dims=tuple(shape[1:]))

    def _taken(self, kind: str, held: HeldTensor, axis: int, taken: Iterable[tuple[int, int]]) -> HeldTensor:
        """Return the positions or channels from starts to ends along an axis of the examples."""
        taken = list(itertools.islice(taken, MAX_LINES + 1))
        if len(taken) > MAX_LINES:
            raise self._refused(kind, f"takes more than {MAX_LINES:,} parts")
        parts = [self._graph.part(held, axis, start, stop) for start, stop in taken]
        return parts[0] if len(parts) == 1 else self._graph.held(self._graph.concatenation(parts, axis))

    def _pool(self, kind: str, operation: MlirOperation, operands: list[Value]) -> Value:
        attributes, held = operation.attributes, self._graph.rows(self._activation(kind, operands[0]))
        inside = [inner.name for inner in operation.blocks[0].operations]
        sizes, rank = list(attributes["window_dimensions"]), len(attributes["window_dimensions"])
        strides = list(attributes.get("window_strides", [1] * rank))
        padding = [tuple(pair) for pair in attributes.get("padding", [[0, 0]] * rank)]
        dilations = {*attributes.get("window_dilations", []), *attributes.get("base_dilations", [])}
        spread = dilations - {1} or any(map(any, padding[::3]))
        plain = rank == 4 and sizes[::3] == strides[::3] == [1, 1] and not spread
        if inside != ["stablehlo.maximum"] or not plain or not self._is_lowest(held, operands[1]):
            raise self._refused(
                kind, "is no maximum, of nothing else, over the positions of a picture with channels last"
            )
        geometry = Geometry((strides[1], strides[2]), (1, 1), (padding[1], padding[2]))
        made = self._graph.pool("max", held, (sizes[1], sizes[2]), geometry)
        assert isinstance(made, HeldTensor)
        return dataclasses.replace(made, dims=self._graph.shapes[made.tensor])

    def _is_lowest(self, held: HeldTensor, first: Value) -> bool:
        own = self._graph.of(held)
        reals = first.reals if isinstance(first, Scaled) else first
        return isinstance(reals, np.ndarray | np.generic) and bool((reals <= own.dequantize(np.array(own.low))).all())


def _one_number(value: Value) -> Value:
    """Return a constant of equal numbers as one of one number."""
    if isinstance(value, HeldTensor | Pending):
        return value
    reals = value.reals if isinstance(value, Scaled) else value
    return np.array(reals.flat[0]) if reals.size and (reals == reals.flat[0]).all() else value


_FOLDED = ("broadcast_in_dim", "concatenate", "convert", "reshape", "slice", "transpose")
"""Operations of constants without scales, as the indices of a gather are."""


def _folded(kind: str, operation: MlirOperation, operands: list[Any]) -> np.ndarray:
    (made,) = operation.types
    if made.dtype is None or (kind != "broadcast_in_dim" and math.prod(made.shape) > MAX_NUMBERS):
        raise ValueError(f"constants of {list(made.shape)}")
    return arrays.compute(kind, operands, operation.attributes, made.shape, made.dtype)


_RULES: dict[str, Callable[[_StableHloReader, str, MlirOperation, list[Value]], Value]] = {
    "add": _StableHloReader._binary,
    "broadcast_in_dim": _StableHloReader._broadcast,
    "clamp": _StableHloReader._bounded,
    "concatenate": _StableHloReader._concatenate,
    "convert": _StableHloReader._same,
    "convolution": _StableHloReader._convolution,
    "dot_general": _StableHloReader._dot,
    "gather": _StableHloReader._gather,
    "maximum": _StableHloReader._bounded,
    "minimum": _StableHloReader._bounded,
    "multiply": _StableHloReader._binary,
    "reduce_window": _StableHloReader._pool,
    "reshape": _StableHloReader._reshape,
    "slice": _StableHloReader._slice,
    "subtract": _StableHloReader._binary,
    "transpose": _StableHloReader._transpose,
    "uniform_dequantize": _StableHloReader._same,
    "uniform_quantize": _StableHloReader._same,
}
"""Operations by their name; those of one number are functions."""
