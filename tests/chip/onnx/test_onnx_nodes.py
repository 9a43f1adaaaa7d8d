"""ONNX's own tests of its integer operators, computed by the reference, the chip and its systolic array.

Their weights have a zero point, and the chip's have none: a weight minus its zero point, -255 to 255, is a sum of three
numbers of -127 to 127, and the vector is put beside itself three times. Bytes of 0 to 255 are moved by 128, zero points
with them. A batch of matrices is a product for each.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest

from anytpu.chip import machine
from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import Concatenate, Convolution, Network, Port, Quantization
from anytpu.chip.isa.design import Design
from anytpu.chip.quantized import reference
from chip_witness import witness


def cases(operator: str) -> list[tuple[str, list[np.ndarray], np.ndarray]]:
    """Return the name, the inputs and the result of each of ONNX's tests of an operator."""
    importlib.import_module(f"onnx.backend.test.case.node.{operator.lower()}")
    known = importlib.import_module("onnx.backend.test.case.node")._NodeTestCases
    found = [case for case in known if case.model.graph.node[0].op_type == operator]
    return [
        (case.name, [np.asarray(x) for x in inputs], np.asarray(outputs[0]))
        for case in found
        for inputs, outputs in case.data_sets
    ]


def only(x: np.ndarray) -> float:
    return x.reshape(()).item()


def moved(x: np.ndarray) -> np.ndarray:
    """Return bytes of 0 to 255 as bytes of -128 to 127."""
    return (x.astype(np.int32) - 128).astype(np.int8) if x.dtype == np.uint8 else x


def quantization(scale: np.ndarray, zero_point: np.ndarray) -> Quantization:
    return Quantization(float(np.float32(only(scale))), int(only(moved(zero_point))))


def parts_of(weights: np.ndarray) -> np.ndarray:
    """Return three int8 arrays, one after another along the axis before the last, that add up to weights."""
    parts, rest = [], weights
    for _ in range(3):
        parts.append(np.clip(rest, -127, 127))
        rest = rest - parts[-1]
    assert not rest.any()
    return np.concatenate(parts, axis=-2).astype(np.int8)


def product(weights: np.ndarray, scale: np.ndarray, source: Quantization, target: Quantization) -> Network:
    """Return a product with weights `(inputs, outputs)` of -255 to 255, at each position."""
    inputs, outputs = weights.shape
    convolution = Convolution(
        "product",
        "",
        ("xxx",),
        "y",
        weights=parts_of(weights)[None, None],
        weight_scales=np.full(outputs, only(scale), np.float32),
        bias=np.zeros(outputs, np.int32),
        strides=(1, 1),
        dilation=(1, 1),
        padding=((0, 0), (0, 0)),
        groups=1,
        low=-128,
        high=127,
    )
    return Network(
        "node",
        (Port("x", (1, 1, inputs)),),
        (Port("y", (1, 1, outputs)),),
        {"x": (1, 1, inputs), "xxx": (1, 1, 3 * inputs), "y": (1, 1, outputs)},
        {"x": source, "xxx": source, "y": target},
        (Concatenate("thrice", "", ("x", "x", "x"), "xxx", axis=2), convolution),
    )


def computed(network: Network, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the product of rows `(rows, inputs)`, by everything that computes networks."""
    values = {"x": rows[:, None, None]}
    yield reference.compute_integers(network, values)["y"][:, 0, 0]
    for design in (Design(), Design(array=4)):
        image = compile_image(network, batch=len(rows), design=design)
        yield machine.run(image, values)["y"][:, 0, 0]
    yield witness(image, values)["y"][:, 0, 0]


def matmul_cases() -> list:
    return [pytest.param(inputs, result, id=name) for name, inputs, result in cases("QLinearMatMul")]


@pytest.mark.parametrize(("inputs", "result"), matmul_cases())
def test_qlinear_matmul(inputs: list[np.ndarray], result: np.ndarray):
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    source, target = quantization(a_scale, a_zero), quantization(y_scale, y_zero)
    matrices = [x.reshape(-1, *x.shape[-2:]) for x in (a, b, result)]
    for first, second, wanted in zip(*matrices, strict=True):
        weights = second.astype(np.int32) - int(only(b_zero))
        for found in computed(product(weights, b_scale, source, target), moved(first)):
            assert found.tolist() == moved(wanted).tolist()


def test_all_of_qlinear_matmul_are_there():
    assert len(matmul_cases()) == 8


def test_qlinear_conv():
    ((_, inputs, result),) = cases("QLinearConv")
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = inputs
    assert x.shape == result.shape == (1, 1, 7, 7)
    assert w.shape == (1, 1, 1, 1)
    weights = w.reshape(1, 1).astype(np.int32) - int(only(w_zero))
    network = product(weights, w_scale, quantization(x_scale, x_zero), quantization(y_scale, y_zero))
    for found in computed(network, moved(x).reshape(49, 1)):
        assert found.ravel().tolist() == moved(result).ravel().tolist()


def test_matmul_integer():
    ((_, inputs, result),) = cases("MatMulInteger")
    a, b, a_zero, b_zero = inputs
    assert abs(result).max() <= 128  # So the 32-bit sums are bytes too, of scale 1.
    weights = b.astype(np.int32) - int(only(b_zero))
    source = Quantization(1.0, int(only(moved(a_zero))))
    for found in computed(product(weights, np.float32(1), source, Quantization(1.0)), moved(a)):
        assert found.tolist() == result.tolist()
