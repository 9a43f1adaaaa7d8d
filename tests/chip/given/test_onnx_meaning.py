"""Quantized ONNX files whose operators a careless reader takes for others: read as defined, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import numpy as np
import pytest
from onnx import helper

import chip_files
import chip_oracle
from anytpu.errors import QuantizationError

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.integers(-100, 101, (5, 4)).astype(np.int8)
CONSTANTS = {"s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(0.5), "o": np.uint8(128), "v": np.float32(0.02)}
CONSTANTS.update(w=WEIGHTS, n=np.int8(0))
FLOAT = "Compile the model that the file was exported from, with calibration=."


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], output, **attributes)


TAKEN = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "a")]
DENSE = [node("DequantizeLinear", "w v n", "wd"), node("MatMul", "a wd", "h")]
HELD = [node("QuantizeLinear", "h t o", "hq"), node("DequantizeLinear", "hq t o", "y")]
MORE = [*TAKEN, *DENSE, node("QuantizeLinear", "h t o", "hq"), node("DequantizeLinear", "hq t o", "d")]
LAST = [node("QuantizeLinear", "g t o", "gq"), node("DequantizeLinear", "gq t o", "y")]


def written(path: Path, nodes: list[Any], more: dict[str, Any], shape: tuple[int, ...], opset: int = 21) -> Path:
    used = {name for entry in nodes for name in entry.input}
    constants = {name: value for name, value in {**CONSTANTS, **more}.items() if name in used}
    return chip_files.write_float(path, nodes, constants, {"x": shape}, {"y": (*shape[:-1], 4)}, opset)


READ: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    "no zero point of uint8": ([TAKEN[0], node("DequantizeLinear", "q s", "a"), *DENSE, *HELD], {}, 21),
    "no zero point of int8": (
        [TAKEN[0], node("DequantizeLinear", "q s", "a"), *DENSE, *HELD],
        {"z": np.int8(-128)},
        21,
    ),
    "output_dtype": (
        [node("QuantizeLinear", "x s", "q", output_dtype=3), node("DequantizeLinear", "q s", "a"), *DENSE, *HELD],
        {},
        21,
    ),
    "softmax before version 13": ([*MORE, node("Softmax", "d", "y", axis=1)], {}, 12),
    "Selu": ([*MORE, node("Selu", "d", "g", alpha=3.0, gamma=0.5), *LAST], {}, 21),
    "constants of an old version": (
        [*MORE, node("Unsqueeze", "c", "cu", axes=[0]), node("Add", "d cu", "g"), *LAST],
        {"c": np.float32(0.5)},
        11,
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read_as_it_is_defined(name: str, tmp_path: Path):
    nodes, more, opset = READ[name]
    path = written(tmp_path / "mine.onnx", nodes, more, (3, 5), opset)
    x = RANDOM.normal(size=(8, 3, 5)).astype(np.float32)
    (wanted,) = chip_oracle.run(path, [x]).values()
    assert np.abs(tpu.chip.compile(path).run(x) - wanted).max() < 1e-6


def axes(value: str, result: str, *numbers: int) -> Any:
    return node("Constant", "", f"{result}_axes", value_ints=numbers), node(
        "Unsqueeze", f"{value} {result}_axes", result
    )


REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a cast to integers": (
        [*MORE, node("Cast", "d", "i", to=6), node("Cast", "i", "g", to=1), *LAST],
        {},
        "the layer 'i' (Cast) makes other numbers than floats, and the chip's activations are real numbers.",
    ),
    "an attribute": (
        [*MORE, node("Reshape", "d shape", "y", allowzero=1)],
        {"shape": np.array([-1, 3, 4])},
        "the layer 'y' (Reshape) has 1 as 'allowzero', which is not read.",
    ),
    "a domain": (
        [*MORE, node("Relu", "d", "g", domain="mine"), *LAST],
        {},
        "the layer 'g' (Relu) is of the domain 'mine', whose operators are not read.",
    ),
    "integers that are not dequantized": (
        [*TAKEN, *DENSE, HELD[0], node("Relu", "hq", "g"), node("DequantizeLinear", "g t o", "y")],
        {},
        "the layer 'g' (Relu) computes with integers (uint8) that are not dequantized.",
    ),
    "other numbers of axes": (
        [*MORE, *axes("d", "u", 1), node("Add", "d u", "g"), *LAST],
        {},
        "the layer 'g' (Add) combines [3, 4] with [1, 3, 4], and the chip repeats a number per channel only.",
    ),
    "a constant with more axes": (
        [*MORE, node("Add", "d c", "g"), *LAST],
        {"c": np.ones((1, 1, 1, 1), np.float32)},
        "the layer 'g' (Add) combines [3, 4] with constants of [1, 1, 1, 1].",
    ),
    "a product of other numbers of axes": (
        [*MORE, *axes("d", "u", 1), node("MatMul", "u d", "g"), *LAST],
        {},
        "the layer 'g' (MatMul) combines examples of a batch, because its operands have other numbers of axes.",
    ),
    "the size of the batch": (
        [*MORE, node("Shape", "d", "k", end=1), node("Cast", "k", "b", to=1), node("Mul", "d b", "g"), *LAST],
        {},
        "the layer 'b' (Cast) computes with the size of the batch, and the chip computes each example.",
    ),
    "training": (
        [*MORE, node("Dropout", "d ratio train", "g"), *LAST],
        {"ratio": np.float32(0.5), "train": np.array(True)},
        "the layer 'g' (Dropout) drops numbers at random.",
    ),
    "a bias for each row": (
        [*TAKEN, DENSE[0], node("Gemm", "a wd c", "h"), *HELD],
        {"c": np.ones((4, 1), np.float32)},
        "the layer 'h' (Gemm) has a bias of [4, 1], and the chip has one for each output channel.",
    ),
}


def refusal_of(path: Path) -> str:
    """Return the text with which the chip refuses a file."""
    with pytest.raises(QuantizationError) as caught:
        tpu.chip.compile(path)
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_read_as_another_operator_is_refused(name: str, tmp_path: Path):
    nodes, more, expected = REFUSED[name]
    path = written(tmp_path / "mine.onnx", nodes, more, (3, 5))
    assert refusal_of(path) == f"mine.onnx: {expected} {FLOAT}"


def test_sums_that_exceed_32_bits_are_refused(tmp_path: Path):
    more = {"s": np.float32(0.001), "z": np.int16(0), "w": np.full((1000, 4), 127, np.int8)}
    path = written(tmp_path / "mine.onnx", [*TAKEN, *DENSE, *HELD], more, (1000,))
    assert refusal_of(path) == (
        "mine.onnx: The sums of 'h' reach 4,161,536,000, and the chip's have 32 bits: quantize its input with 8 bits, "
        "or with a larger scale."
    )


def test_weights_of_32_bits_are_refused(tmp_path: Path):
    more = {"w": np.full((5, 4), 10**8, np.int32), "n": np.int32(0), "v": np.float32(1e-9)}
    path = written(tmp_path / "mine.onnx", [*TAKEN, *DENSE, *HELD], more, (5,))
    assert refusal_of(path) == (
        "mine.onnx: The weights of 'h' go from 100000000 to 100000000 around their zero point, and those of the chip "
        "from -127 to 127. Quantize them symmetrically: quantize_static(..., weight_type=QuantType.QInt8)."
    )


def test_a_mean_keeps_its_axes_for_1_alone(tmp_path: Path):
    nodes = [*MORE, node("ReduceMean", "d axes", "y", keepdims=2)]
    path = chip_files.write_float(
        tmp_path / "mine.onnx", nodes, {**CONSTANTS, "axes": np.array([1])}, {"x": (3, 5)}, {"y": (4,)}
    )
    x = RANDOM.normal(size=(8, 3, 5)).astype(np.float32)
    (wanted,) = chip_oracle.run(path, [x]).values()
    found = tpu.chip.compile(path).run(x)
    assert found.shape == wanted.shape == (8, 4)
    assert np.abs(found - wanted).max() < 1e-5
