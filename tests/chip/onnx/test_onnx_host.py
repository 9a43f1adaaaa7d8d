"""Steps of the host as ONNX: the same real numbers as the host's own, for any number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import chip_oracle
from anytpu.chip.graph.nodes import HostStep, Network, Port, Quantization
from anytpu.chip.graph.shapes import canonical_shape
from anytpu.chip.network import operations
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Argument, HostOperations, Operation
from anytpu.chip.onnx import write
from anytpu.chip.quantized import reference
from anytpu.errors import ChipError
from refusals import refusal

ROWS = 4
FLOAT = np.dtype(np.float32)


def operation(name: str, operands, result: str, shape, dtype: Any = np.float32, **attributes) -> Operation:
    return Operation(name, tuple(operands), result, tuple(shape), np.dtype(dtype), attributes, layer="odd")


def network_of(
    steps: HostOperations,
    *,
    dtype: str = "float32",
    source: Quantization | None = None,
    target: Quantization | None = None,
) -> Network:
    """Return a network of one step of the host, whose input and output the chip may hold."""
    (argument,) = steps.arguments
    shapes = {"x": canonical_shape(argument.example_shape), "y": canonical_shape(steps.result.example_shape)}
    known = {name: one for name, one in (("x", source), ("y", target)) if one is not None}
    node = HostStep("step", "odd", ("x",), "y", "test", "", steps)
    ports = Port("x", argument.example_shape, dtype), Port("y", steps.result.example_shape, steps.result.dtype)
    return Network("host", (ports[0],), (ports[1],), shapes, known, (node,))


def steps_of(
    made: list[Operation],
    shape,
    layout: BatchLayout | None = None,
    dtype: str = "float32",
    out: BatchLayout | None = None,
) -> HostOperations:
    last, layout = made[-1], layout or BatchLayout(0, ROWS)
    argument = Argument("a", tuple(shape), dtype, layout)
    return HostOperations((argument,), tuple(made), Argument(last.result, last.shape, last.dtype.name, out or layout))


def assert_same(network: Network, path: Path, x: np.ndarray) -> None:
    found = chip_oracle.run(write(network, path), [x])["y"]
    wanted = reference.outputs(network, reference.compute(network, [x]))[0]
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def softmax(axis_size: int) -> list[Operation]:
    shape = (ROWS, 2, axis_size)
    least = np.float32(-np.inf)
    return [
        operation("reduce", ["a", least], "m", shape[:2], reducer="maximum", dimensions=[2]),
        operation("broadcast_in_dim", ["m"], "mm", shape, broadcast_dimensions=[0, 1]),
        operation("subtract", ["a", "mm"], "d", shape),
        operation("exponential", ["d"], "e", shape),
        operation("reduce", ["e", np.float32(0)], "s", shape[:2], reducer="add", dimensions=[2]),
        operation("reshape", ["s"], "t", (ROWS, 2, 1)),
        operation("broadcast_in_dim", ["t"], "ss", shape, broadcast_dimensions=[0, 1, 2]),
        operation("divide", ["e", "ss"], "y", shape),
    ]


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_softmax_of_any_number_of_rows(tmp_path: Path, rows: int):
    x = np.random.default_rng(0).normal(0, 3, (rows, 2, 5)).astype(np.float32)
    assert_same(network_of(steps_of(softmax(5), (ROWS, 2, 5))), tmp_path / "m.onnx", x)


def test_between_tensors_of_the_chip(tmp_path: Path):
    x = np.random.default_rng(0).normal(0, 3, (6, 2, 5)).astype(np.float32)
    network = network_of(
        steps_of(softmax(5), (ROWS, 2, 5)), source=Quantization(0.1, 3), target=Quantization(1 / 256, -128)
    )
    found = chip_oracle.integers(network, [x], tmp_path / "m.onnx")
    wanted = reference.compute(network, [x])
    assert (found["x"] == wanted["x"]).all()
    assert abs(found["y"].astype(int) - wanted["y"]).max() <= 1


def test_an_embedding(tmp_path: Path):
    table = np.random.default_rng(0).normal(0, 1, (11, 3)).astype(np.float32)
    numbers = {
        "offset_dims": [2],
        "collapsed_slice_dims": [0],
        "operand_batching_dims": [],
        "start_indices_batching_dims": [],
        "start_index_map": [0],
        "index_vector_dim": 2,
    }
    text = (
        "module { func.func public @main(%t: tensor<11x3xf32>, %i: tensor<4x5x1xi32>) -> tensor<4x5x3xf32> {\n"
        '%0 = "stablehlo.gather"(%t, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, "
        "slice_sizes = array<i64: 1, 3>}> : (tensor<11x3xf32>, tensor<4x5x1xi32>) -> tensor<4x5x3xf32>\n"
        "return %0 : tensor<4x5x3xf32> } }"
    )
    made = [
        operation("reshape", ["a"], "i", (ROWS, 5, 1), np.int32),
        operation("gather", [table, "i"], "y", (ROWS, 5, 3), dimension_numbers=numbers, slice_sizes=[1, 3], text=text),
    ]
    network = network_of(steps_of(made, (ROWS, 5), dtype="int32"), dtype="int32")
    x = np.array([[0, 10, 3, -2, 99], [1, 1, 2, 5, 7], [0, 0, 0, 0, 0]], np.int32)  # Outside: the nearest row.
    path = write(network, tmp_path / "m.onnx")
    assert (chip_oracle.run(path, [x])["y"] == table[np.clip(x, 0, 10)]).all()


def test_the_batch_on_another_axis_and_merged(tmp_path: Path):
    """Time first, then time and batch as one axis, a product, and back."""
    weights = np.random.default_rng(1).normal(0, 1, (3, 2)).astype(np.float32)
    numbers = {"lhs_batching": [], "rhs_batching": [], "lhs_contracting": [1], "rhs_contracting": [0]}
    made = [
        operation("transpose", ["a"], "t", (5, ROWS, 3), permutation=[1, 0, 2]),
        operation("reshape", ["t"], "m", (5 * ROWS, 3)),
        operation("dot_general", ["m", weights], "p", (5 * ROWS, 2), dot_dimension_numbers=numbers),
        operation("add", ["p", np.broadcast_to(np.float32([1, 2]), (5 * ROWS, 2))], "b", (5 * ROWS, 2)),
        operation("reshape", ["b"], "r", (5, ROWS, 2)),
        operation("reverse", ["r"], "v", (5, ROWS, 2), dimensions=[0, 2]),
        operation(
            "slice", ["v"], "s", (2, ROWS, 2), start_indices=[1, 0, 0], limit_indices=[5, ROWS, 2], strides=[2, 1, 1]
        ),
        operation("concatenate", ["s", "r"], "y", (7, ROWS, 2), dimension=0),
    ]
    x = np.random.default_rng(0).normal(0, 3, (6, 5, 3)).astype(np.float32)
    network = network_of(steps_of(made, (ROWS, 5, 3), out=BatchLayout(1, ROWS)))
    assert_same(network, tmp_path / "m.onnx", x)


@pytest.mark.parametrize("name", ["clamp", "compare", "select", "remainder", "rsqrt", "chlo.erfc", "is_finite", "not"])
def test_operations_of_several_operators(tmp_path: Path, name: str):
    shape, half = (ROWS, 6), np.float32(0.5)
    made = {
        "clamp": [operation("clamp", [-half, "a", half], "y", shape)],
        "compare": [operation("compare", ["a", np.full(shape, half)], "y", shape, bool, comparison_direction="NE")],
        "select": [
            operation("compare", ["a", np.full(shape, half)], "c", shape, bool, comparison_direction="GT"),
            operation("select", ["c", "a", np.full(shape, half)], "y", shape),
        ],
        "remainder": [operation("remainder", ["a", np.full(shape, half)], "y", shape)],
        "rsqrt": [operation("abs", ["a"], "p", shape), operation("rsqrt", ["p"], "y", shape)],
        "chlo.erfc": [operation("chlo.erfc", ["a"], "y", shape)],
        "is_finite": [operation("is_finite", ["a"], "y", shape, bool)],
        "not": [
            operation("compare", ["a", np.full(shape, half)], "c", shape, bool, comparison_direction="LE"),
            operation("not", ["c"], "n", shape, bool),
            operation("convert", ["n"], "y", shape, np.int32),
        ],
    }[name]
    x = np.random.default_rng(0).normal(0, 1, (5, 6)).astype(np.float32)
    x[0, :3] = [0.5, np.inf, -3]
    if name in ("remainder", "chlo.erfc", "select"):  # of an infinity they would make one, which is refused
        x[0, 1] = 2
    assert_same(network_of(steps_of(made, shape)), tmp_path / "m.onnx", x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_of_16_bits_are_rounded_after_each_operation(tmp_path: Path, dtype: str):
    shape, kind = (ROWS, 6), jnp.dtype(dtype)
    numbers = {"lhs_batching": [0], "rhs_batching": [0], "lhs_contracting": [1], "rhs_contracting": [1]}
    made = [
        operation("convert", ["a"], "h", shape, kind),
        operation("multiply", ["h", np.full(shape, 0.3, kind)], "m", shape, kind),
        operation("dot_general", ["m", "m"], "p", (ROWS,), kind, dot_dimension_numbers=numbers),
        operation("broadcast_in_dim", ["p"], "q", shape, kind, broadcast_dimensions=[0]),
        operation("add", ["q", "h"], "s", shape, kind),
        operation("convert", ["s"], "y", shape),
    ]
    x = np.random.default_rng(0).normal(0, 1, (5, 6)).astype(np.float32)
    network = network_of(steps_of(made, shape))
    found = chip_oracle.run(write(network, tmp_path / "m.onnx"), [x])["y"]
    wanted = reference.outputs(network, reference.compute(network, [x]))[0]
    np.testing.assert_allclose(found, wanted, rtol=2 * float(jnp.finfo(dtype).eps), atol=1e-2)
    assert (found == found.astype(kind)).all()


def test_what_cannot_be_written(tmp_path: Path):
    made = [operation("atan2", ["a", "a"], "y", (ROWS, 3))]
    assert refusal(ChipError, write, network_of(steps_of(made, (ROWS, 3))), tmp_path / "m.onnx") == (
        "The layer 'odd' cannot be written as ONNX: the host computes 'atan2' for it, for which there is no operator "
        "here. Compile the model without that layer, and compute it from the outputs."
    )
    assert not (tmp_path / "m.onnx").exists()


def test_every_function_of_one_number_is_close(tmp_path: Path):
    """Each name that has an operator of its own, on numbers that it takes."""
    from anytpu.chip.network import elementwise
    from anytpu.chip.onnx.elementwise import _COMPOSED, _DIRECT

    known = sorted((set(_DIRECT) | set(_COMPOSED)) & set(elementwise.UNARY) - {"chlo.is_inf", "is_finite"})
    assert len(known) == 29
    x = np.random.default_rng(0).uniform(0.05, 0.95, (3, 50)).astype(np.float32)
    for name in known:
        chain = [operation("add", ["a", np.float32(1)], "b", (ROWS, 50)), operation(name, ["b"], "y", (ROWS, 50))]
        made = chain if name == "chlo.acosh" else [operation(name, ["a"], "y", (ROWS, 50))]
        network = network_of(steps_of(made, (ROWS, 50)))
        found = chip_oracle.run(write(network, tmp_path / "m.onnx"), [x])["y"]
        wanted = operations.compute(network.nodes[0], [x.reshape(3, 1, 1, 50)]).reshape(3, 50)  # pyright: ignore[reportAttributeAccessIssue]
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-7, err_msg=name)
