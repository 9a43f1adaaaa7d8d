"""`parse`: an MLIR module of StableHLO as plain Python records.

Idea: the body of an unrolled loop is evaluated hundreds of times, and reading an attribute from MLIR takes longer than
computing with it. So a module is read once, into Python records.

Rule: nothing is decided here. An unknown operation keeps the text of a module with that operation only, so that XLA can
run it (`foreign.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

_DTYPES = {
    "i1": np.dtype(bool),
    **{f"{sign}i{bits}": np.dtype(f"{kind}{bits}") for sign, kind in (("", "int"), ("u", "uint")) for bits in (8, 16)},
    **{f"{sign}i{bits}": np.dtype(f"{kind}{bits}") for sign, kind in (("", "int"), ("u", "uint")) for bits in (32, 64)},
    **{"f16": np.dtype("float16"), "f32": np.dtype("float32"), "f64": np.dtype("float64")},
    **{"bf16": np.dtype(ml_dtypes.bfloat16), "complex<f32>": np.dtype("complex64")},
    "complex<f64>": np.dtype("complex128"),
}
_NO_LAYERS = {
    "call_exported",
    "while",
    "body",
    "cond",
    "closed_call",
    "core_call",
    "eval_jaxpr",
    "remat",
    "checkpoint",
    "scan",
    "vmap",
    "pjit",
}


@dataclasses.dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a tensor; the dtype is None if NumPy has no equivalent."""

    shape: tuple[int, ...]
    dtype: np.dtype | None


@dataclasses.dataclass(frozen=True, eq=False)
class MlirBlock:
    """A block: the body of a function, a loop, a condition or a branch.

    Attributes:
        arguments, types: indices of the values of its arguments, and their types.
        operations: its operations, in order.
        results: indices of the values that it returns.
    """

    arguments: tuple[int, ...]
    operations: tuple[MlirOperation, ...]
    results: tuple[int, ...]
    types: tuple[TensorType, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class MlirOperation:
    """An operation of the module.

    Attributes:
        name: name with its dialect ("stablehlo.add").
        operands, results: indices of values.
        types: types of the results.
        attributes: attributes as Python numbers, strings and lists; constants are arrays.
        layer: the layer that it came from, by its location; "" if unknown.
        blocks: the first block of each of its regions.
        text: returns the text of a module with this operation only, as a function of its operands. It works only while
            MLIR's module is alive.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[TensorType, ...]
    attributes: dict[str, Any]
    layer: str
    blocks: tuple[MlirBlock, ...]
    text: Callable[[], str]


def parse(module: ir.Module) -> dict[str, MlirBlock]:
    """Return the functions of a module, by name. Call it, and `text`, within the module's context."""
    numbers = itertools.count()
    return {
        ir.StringAttr(function.operation.attributes["sym_name"]).value: _block(
            function.operation.regions[0].blocks[0], {}, numbers
        )
        for function in module.body.operations
        if function.operation.name == "func.func"
    }


def _block(block: Any, known: dict[Any, int], numbers: Iterator[int]) -> MlirBlock:
    known = dict(known)
    for argument in block.arguments:
        known[argument] = next(numbers)
    operations, results = [], ()
    for view in block.operations:
        operation = view.operation
        operands = tuple(known[value] for value in operation.operands)
        if operation.name in ("func.return", "stablehlo.return"):
            results = operands
            break
        for result in operation.results:
            known[result] = next(numbers)
        operations.append(_instruction(operation, operands, known, numbers))
    types = tuple(_type(argument.type) for argument in block.arguments)
    return MlirBlock(tuple(known[argument] for argument in block.arguments), tuple(operations), results, types)


def _instruction(
    operation: Any, operands: tuple[int, ...], known: dict[Any, int], numbers: Iterator[int]
) -> MlirOperation:
    blocks = tuple(_block(region.blocks[0], known, numbers) for region in operation.regions if len(region.blocks))
    return MlirOperation(
        name=operation.name,
        operands=operands,
        results=tuple(known[result] for result in operation.results),
        types=tuple(_type(result.type) for result in operation.results),
        attributes={name: _value(name, operation.attributes[name]) for name in operation.attributes},
        layer=layer_of(operation.location, whole=operation.name == "func.call"),
        blocks=blocks,
        text=lambda: _alone(operation),
    )


def _type(mlir_type: Any) -> TensorType:
    if not isinstance(mlir_type, ir.RankedTensorType) and not str(mlir_type).startswith("tensor<"):
        return TensorType((), None)
    ranked = ir.RankedTensorType(mlir_type)
    return TensorType(tuple(ranked.shape), _DTYPES.get(str(ranked.element_type)))


def layer_of(location: Any, whole: bool = False) -> str:
    """Return the layer that a location names: "block/conv" of "jit(step)/block/conv/conv_general_dilated".

    Args:
        location: location of an operation.
        whole: whether all parts are layers; otherwise the last part is a primitive.
    """
    name = getattr(location, "name_str", "")
    parts = name.split("/") if whole else name.split("/")[:-1]
    return "/".join(part for part in parts if part not in _NO_LAYERS and not set(part) & set("()->,:"))


def _value(name: str, attribute: Any) -> Any:
    if name == "value":
        return _constant(attribute)
    if name in _READERS:
        return _READERS[name](attribute)
    if isinstance(attribute, ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr | ir.StringAttr | ir.FlatSymbolRefAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseI64ArrayAttr | ir.DenseBoolArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return np.array(attribute).tolist()
    return str(attribute)


def _constant(attribute: Any) -> np.ndarray | None:
    """Return the array of a constant; None if NumPy's buffers lack its type, so that XLA runs its text."""
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    ranked = ir.RankedTensorType(attribute.type)
    dtype = _DTYPES.get(str(ranked.element_type))
    if dtype is None:
        return None
    if dtype == np.dtype(ml_dtypes.bfloat16):
        whole = attribute.is_splat
        return np.full(ranked.shape, ir.FloatAttr(attribute.get_splat_value()).value, dtype) if whole else None
    return np.array(attribute).astype(dtype, copy=False)


def _dot(attribute: Any) -> dict[str, list[int]]:
    names = ("lhs_batching", "rhs_batching", "lhs_contracting", "rhs_contracting")
    read = stablehlo.DotDimensionNumbers(attribute)
    return {name: list(getattr(read, f"{name}_dimensions")) for name in names}


def _convolution(attribute: Any) -> dict[str, list[int]]:
    read = stablehlo.ConvDimensionNumbers(attribute)
    return {
        "input": [read.input_batch_dimension, *read.input_spatial_dimensions, read.input_feature_dimension],
        "kernel": [
            *read.kernel_spatial_dimensions,
            read.kernel_input_feature_dimension,
            read.kernel_output_feature_dimension,
        ],
        "output": [read.output_batch_dimension, *read.output_spatial_dimensions, read.output_feature_dimension],
    }


def _gather(attribute: Any) -> Any:
    if "stablehlo.gather" not in str(attribute):
        return str(attribute)
    names = (
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
    )
    read = stablehlo.GatherDimensionNumbers(attribute)
    return {**{name: list(getattr(read, name)) for name in names}, "index_vector_dim": read.index_vector_dim}


_READERS: dict[str, Callable[[Any], Any]] = {
    "dot_dimension_numbers": _dot,
    "dimension_numbers": lambda attribute: (
        _convolution(attribute) if "stablehlo.conv" in str(attribute) else _gather(attribute)
    ),
    "comparison_direction": lambda attribute: (
        stablehlo.ComparisonDirectionAttr(attribute).value
        if "stablehlo" in str(attribute)
        else str(attribute).split()[-1].rstrip(">")
    ),
}


def _alone(operation: Any) -> str:
    """Return the text of a module whose main function is one operation."""
    with operation.location.context, ir.Location.unknown():
        module = ir.Module.create()
        takes, gives = [value.type for value in operation.operands], [value.type for value in operation.results]
        with ir.InsertionPoint(module.body):
            attributes = {
                "sym_name": ir.StringAttr.get("main"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(takes, gives)),
                "sym_visibility": ir.StringAttr.get("public"),
            }
            function = ir.Operation.create("func.func", attributes=attributes, regions=1)
        block = ir.Block.create_at_start(function.regions[0], takes)
        with ir.InsertionPoint(block):
            copy = operation.clone()
            for index, argument in enumerate(block.arguments):
                copy.operation.operands[index] = argument
            ir.Operation.create("func.return", operands=list(copy.operation.results))
        return str(module)
