"""Quantized ONNX files on the chip: the file's scales, and onnxruntime's integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType

import chip_files
import chip_oracle
from anytpu.errors import ChipFileError, QuantizationError, SettingError
from chip_files import PICTURES, Y_TEST
from refusals import refusal

X = PICTURES[1]
INT8, UINT8 = QuantType.QInt8, QuantType.QUInt8
WAYS: dict[str, dict[str, Any]] = {
    "uint8": {"activation_type": UINT8, "weight_type": INT8},
    "int8, each channel": {"activation_type": INT8, "weight_type": INT8, "per_channel": True},
    "weights of uint8": {"activation_type": UINT8, "weight_type": UINT8},
}


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("floats")
    return {name: chip_files.float_file(name, folder / f"{name}.onnx") for name in ("mlp", "cnn")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("qdq", [True, False], ids=["QDQ", "QOperator"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_trained_network(name: str, qdq: bool, way: str, floats: dict[str, Path], tmp_path: Path):
    path = chip_files.quantized_file(floats[name], tmp_path / "quantized.onnx", qdq, **WAYS[way])
    program = tpu.chip.compile(path)
    (wanted,) = chip_oracle.run(path, [X]).values()
    found = program.run(X)
    assert (found == wanted).all()
    assert (found.argmax(axis=1) == Y_TEST).mean() > 0.85
    # The program is like any other: it is saved, loaded, and written as ONNX again.
    loaded = tpu.chip.load(program.save(tmp_path / "model.tpu"))
    assert (loaded.run(X[:5]) == wanted[:5]).all()
    (again,) = chip_oracle.run(program.to_onnx(tmp_path / "again.onnx"), [X]).values()
    assert (again == wanted).all()


def scales(path: Path) -> set[float]:
    """Return the scales of a file's activations."""
    model = onnx.load(str(path))
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {float(constants[node.input[1]]) for node in model.graph.node if node.op_type == "QuantizeLinear"}


def test_the_scales_are_those_of_the_file(floats: dict[str, Path], tmp_path: Path):
    path = chip_files.quantized_file(floats["cnn"], tmp_path / "quantized.onnx", True, **WAYS["uint8"])
    network = tpu.chip.compile(path).network
    assert network is not None
    assert {quantization.scale for quantization in network.quantizations.values()} <= scales(path)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), outputs.split()[0], **attributes)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


Case = tuple[list[Any], dict[str, Any], tuple[int, ...], tuple[int, ...]]
PICTURE = (3, 6, 5)
CASES: dict[str, Callable[[], Case]] = {
    "group convolution": lambda: (
        [node("Conv", "x k b", "y", group=3, pads=[1, 0, 1, 2], strides=[2, 1], dilations=[1, 2])],
        {"k": values(6, 1, 3, 2), "b": values(6)},
        PICTURE,
        (6, 3, 5),
    ),
    "convolution of a sequence": lambda: (
        [node("Conv", "x k", "y", auto_pad="SAME_LOWER")],
        {"k": values(4, 3, 2)},
        (3, 7),
        (4, 7),
    ),
    "dense layer at each position": lambda: (
        [node("MatMul", "x w", "h"), node("Relu", "h", "y")],
        {"w": values(5, 4)},
        (3, 5),
        (3, 4),
    ),
    "clip": lambda: (
        [node("Conv", "x k", "h"), node("Clip", "h low high", "y")],
        {"k": values(4, 3, 1, 1), "low": np.float32(0), "high": np.float32(1.5)},
        PICTURE,
        (4, 6, 5),
    ),
    "pools": lambda: (
        [
            node("MaxPool", "x", "h", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1),
            node("Conv", "h k", "y"),
        ],
        {"k": values(4, 3, 2, 1)},
        PICTURE,
        (4, 3, 3),
    ),
    "flattened after a transpose": lambda: (
        [
            node("Conv", "x k", "h"),
            node("Transpose", "h", "t", perm=[0, 2, 3, 1]),
            node("Reshape", "t shape", "f"),
            node("Gemm", "f w b", "y", transB=1),
        ],
        {"k": values(4, 3, 3, 3), "shape": np.array([0, -1]), "w": values(5, 48), "b": values(5)},
        PICTURE,
        (5,),
    ),
    "softmax": lambda: (
        [node("Gemm", "x w b", "h"), node("Softmax", "h", "y", axis=1)],
        {"w": values(5, 4), "b": values(4)},
        (5,),
        (4,),
    ),
}
"""By name: nodes, constants, the shape of an example, and that of the result. All are exact."""


def compared(case: Case, qdq: bool, tmp_path: Path) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the results of onnxruntime and of the chip, and the step of the result."""
    nodes, constants, shape, result = case
    source = chip_files.write_float(tmp_path / "floats.onnx", nodes, constants, {"x": shape}, {"y": result})
    x = values(64, *shape, seed=2)
    path = chip_files.quantized_file(source, tmp_path / "quantized.onnx", qdq, x, **WAYS["uint8"])
    program = tpu.chip.compile(path)
    (wanted,) = chip_oracle.run(path, [x]).values()
    network = program.network
    assert network is not None
    last = network.quantizations.get(network.outputs[0].tensor)
    return wanted, program.run(x), 1.0 if last is None else last.scale


@pytest.mark.parametrize("qdq", [True, False], ids=["QDQ", "QOperator"])
@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, qdq: bool, tmp_path: Path):
    wanted, found, step = compared(CASES[name](), qdq, tmp_path)
    assert found.shape == wanted.shape
    # A softmax is a step of the host, after which the last integer may differ.
    assert np.abs(found - wanted).max() <= (1.01 / 255 if name == "softmax" else 0)
    assert step > 0


ROUNDED: dict[str, Callable[[], Case]] = {
    "sum": lambda: (
        [node("Conv", "x k", "a"), node("Conv", "x l", "b"), node("Add", "a b", "y")],
        {"k": values(4, 3, 1, 1), "l": values(4, 3, 1, 1, seed=1)},
        PICTURE,
        (4, 6, 5),
    ),
    "gate": lambda: (
        [
            node("Conv", "x k", "h"),
            node("GlobalAveragePool", "h", "p"),
            node("Sigmoid", "p", "g"),
            node("Mul", "h g", "y"),
        ],
        {"k": values(4, 3, 1, 1)},
        PICTURE,
        (4, 6, 5),
    ),
    "average": lambda: (
        [
            node("Conv", "x k", "h"),
            node("AveragePool", "h", "y", kernel_shape=[2, 3], pads=[0, 1, 1, 1], count_include_pad=1),
        ],
        {"k": values(4, 3, 1, 1)},
        PICTURE,
        (4, 6, 5),
    ),
    "constants": lambda: (
        [node("MatMul", "x w", "h"), node("Add", "h b", "y")],
        {"w": values(5, 4), "b": values(4)},
        (3, 5),
        (3, 4),
    ),
    "concatenation": lambda: (
        [node("Conv", "x k", "a"), node("Concat", "x a", "c", axis=1), node("Conv", "c l", "y")],
        {"k": values(4, 3, 1, 1), "l": values(2, 7, 1, 1)},
        PICTURE,
        (2, 6, 5),
    ),
}
"""The same of operators that onnxruntime's kernels round in another order than ONNX defines them."""


@pytest.mark.parametrize("qdq", [True, False], ids=["QDQ", "QOperator"])
@pytest.mark.parametrize("name", ROUNDED)
def test_operators_that_onnxruntime_rounds_differently(name: str, qdq: bool, tmp_path: Path):
    wanted, found, step = compared(ROUNDED[name](), qdq, tmp_path)
    assert found.shape == wanted.shape
    steps = np.rint(np.abs(found - wanted) / step)
    assert steps.max() <= 1
    # The sums of six integers, divided by six, tie often.
    assert (steps > 0).mean() < (0.12 if name == "average" else 0.02)


def test_integers_in_and_out(tmp_path: Path):
    constants = {
        "xs": np.float32(0.05),
        "xz": np.int8(3),
        "w": np.random.default_rng(0).integers(-127, 128, (5, 4)).astype(np.int8),
        "ws": np.array([0.01], np.float32),
        "wz": np.array([0], np.int8),
        "ys": np.float32(0.04),
        "yz": np.int8(-7),
    }
    nodes = [node("QLinearMatMul", "x xs xz w ws wz ys yz", "y")]
    path = chip_files.write_float(tmp_path / "x.onnx", nodes, constants, {"x": ((5,), "int8")}, {"y": ((4,), "int8")})
    x = np.random.default_rng(1).integers(-128, 128, (50, 5)).astype(np.int8)
    (wanted,) = chip_oracle.run(path, [x]).values()
    program = tpu.chip.compile(path)
    assert (program.run_int8(x) == wanted).all()
    assert (program.run(x) == wanted).all()


def quantize(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the nodes and constants that quantize and dequantize a value."""
    nodes = [node("QuantizeLinear", f"{name} {name}s {name}z", f"{name}q")]
    nodes.append(node("DequantizeLinear", f"{name}q {name}s {name}z", f"{name}d"))
    return nodes, {f"{name}s": np.float32(0.1), f"{name}z": np.uint8(128)}


def dense(weights: dict[str, Any], **attributes: Any) -> tuple[list[Any], dict[str, Any]]:
    nodes, constants = quantize("x")
    nodes += [node("DequantizeLinear", "w ws wz", "wd", **attributes), node("MatMul", "xd wd", "h")]
    after, more = quantize("h")
    return [*nodes, *after], {**constants, **more, **weights}


WEIGHTS = {"w": np.ones((5, 4), np.int8), "ws": np.float32(0.1), "wz": np.int8(0)}


def with_nodes(*more: Any, constants: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
    nodes, known = quantize("x")
    return [*nodes, *more], {**known, **(constants or {})}


REFUSALS: dict[str, tuple[tuple[list[Any], dict[str, Any]], str, str]] = {
    "floats": (
        ([node("MatMul", "x w", "y")], {"w": np.ones((5, 4), np.float32)}),
        "y",
        "it holds no scales, because it is not quantized. Quantize it, onnxruntime.quantization.quantize_static(...), "
        "or compile the model that it was exported from, with calibration=.",
    ),
    "dynamic": (
        ([node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z", "y")], {}),
        "y",
        "its scales are computed anew when it runs (DynamicQuantizeLinear), and the chip has no unit for that. Fix "
        "them: onnxruntime.quantization.quantize_static(...) in place of quantize_dynamic.",
    ),
    "a scale that is computed": (
        (
            [node("QuantizeLinear", "x x z", "q"), node("DequantizeLinear", "q s z", "y")],
            {"z": np.uint8(0), "s": np.float32(1)},
        ),
        "y",
        "the layer 'q' (QuantizeLinear) takes a scale that is computed when it runs, and the chip's are fixed. Fix it: "
        "onnxruntime.quantization.quantize_static(...) in place of quantize_dynamic.",
    ),
    "weights of 16 bits": (
        dense({**WEIGHTS, "w": np.ones((5, 4), np.int16), "wz": np.int16(0)}),
        "hd",
        "the layer 'wd' (DequantizeLinear) has a constant of int16, and the chip's weights are int8. Quantize it with "
        "8 bits: quantize_static(..., weight_type=QuantType.QInt8).",
    ),
    "a scale for each block": (
        dense({**WEIGHTS, "ws": np.ones((1, 4), np.float32), "wz": np.zeros((1, 4), np.int8)}, axis=0, block_size=5),
        "hd",
        "the layer 'wd' (DequantizeLinear) has a scale for each block of a channel, and the chip has one for each "
        "channel. Quantize it with 8 bits: quantize_static(..., weight_type=QuantType.QInt8).",
    ),
    "a scale for each input channel": (
        dense({**WEIGHTS, "ws": np.ones(5, np.float32), "wz": np.zeros(5, np.int8)}, axis=0),
        "hd",
        "the layer 'h' (MatMul) has a scale for each input channel, and the chip has one for each output channel. "
        "Quantize it with 8 bits: quantize_static(..., weight_type=QuantType.QInt8).",
    ),
    "a scale for each channel of an activation": (
        with_nodes(
            node("QuantizeLinear", "xd s z", "q"),
            node("DequantizeLinear", "q s z", "y"),
            constants={"s": np.ones(5, np.float32), "z": np.zeros(5, np.uint8)},
        ),
        "y",
        "the layer 'q' (QuantizeLinear) has a scale for each channel of an activation, and the chip has one for all. "
        "Compile the model that the file was exported from, with calibration=.",
    ),
    "weights in floats": (
        with_nodes(node("MatMul", "xd w", "y"), constants={"w": np.ones((5, 4), np.float32)}),
        "y",
        "the layer 'y' (MatMul) has weights without scales, and the chip multiplies activations with weights of 8 "
        "bits. Quantize it with 8 bits: quantize_static(..., weight_type=QuantType.QInt8).",
    ),
    "a result without a scale": (
        (dense(WEIGHTS)[0][:-2], dense(WEIGHTS)[1]),
        "h",
        "The layer 'h' takes or makes numbers that the file does not quantize, and every number of the chip has a "
        "scale. Quantize the whole model; for ONNX: quantize_static(...) without nodes_to_exclude and "
        "op_types_to_quantize.",
    ),
    "another operator": (
        with_nodes(node("CumSum", "xd axis", "y"), constants={"axis": np.int64(1)}),
        "y",
        "the layer 'y' is 'CumSum', which is not read from a quantized file. Compile the model that it was exported "
        "from, with calibration=: the host computes what the chip cannot.",
    ),
    "over the batch": (
        with_nodes(node("Concat", "xd xd", "y", axis=0)),
        "y",
        "the layer 'y' (Concat) works along the batch, and the chip computes each example by itself. Compile the model "
        "that the file was exported from, with calibration=.",
    ),
    "another batch": (
        with_nodes(node("Reshape", "xd shape", "y"), constants={"shape": np.array([5, -1])}),
        "y",
        "the layer 'y' (Reshape) makes another batch of [5], and the chip computes each example by itself. Compile the "
        "model that the file was exported from, with calibration=.",
    ),
    "an output of constants": (
        with_nodes(node("Identity", "c", "y"), constants={"c": np.array([1], np.float32)}),
        "y",
        "its output 'y' does not depend on an input: leave it out.",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_the_chip_lacks_is_refused(name: str, tmp_path: Path):
    (nodes, constants), output, expected = REFUSALS[name]
    path = chip_files.write_float(tmp_path / "mine.onnx", nodes, constants, {"x": (5,)}, {output: (4,)})
    assert refusal(QuantizationError, tpu.chip.compile, path) == f"mine.onnx: {expected}"


def test_what_only_a_model_in_floats_takes(floats: dict[str, Path]):
    path = floats["mlp"]
    for name, value in {"calibration": X, "state": {}, "activation_bits": 16, "method": "mse"}.items():
        assert refusal(SettingError, tpu.chip.compile, path, **{name: value}) == (
            f"{name} is for a model in floats, and the file {str(path)!r} holds its weights and scales: leave {name} "
            "out."
        )


def test_a_file_that_is_no_model(tmp_path: Path):
    path = tmp_path / "mine.onnx"
    assert (
        refusal(ChipFileError, tpu.chip.compile, path)
        == f"The file {str(path)!r} cannot be read: No such file or directory."
    )
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ChipFileError, match=r"'.*mine\.onnx' is no ONNX file \(.*\): export the model again\."):
        tpu.chip.compile(path)


def test_a_constant_that_onnx_cannot_compute(tmp_path: Path):
    nodes, constants = dense(WEIGHTS)
    nodes[2:3] = [node("Cast", "w", "wd")]
    path = chip_files.write_float(tmp_path / "mine.onnx", nodes, constants, {"x": (5,)}, {"hd": (4,)})
    with pytest.raises(ChipFileError, match=r"makes no sense \(ValueError: 'wd': .*\): export the model again\.$"):
        tpu.chip.compile(path)
