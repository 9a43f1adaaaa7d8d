"""What the file holds: standard operators, the user's shapes, any number of rows, and errors."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import chip_oracle
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Network,
    Pool,
    Port,
    Quantization,
    Reshape,
    Slice,
    Table,
)
from anytpu.chip.onnx import write
from anytpu.chip.quantized import reference
from anytpu.errors import ChipError, ChipFileError
from forked import python


def convolution(name: str, source: str, target: str, shape, **changes) -> Convolution:
    random = np.random.default_rng(len(name))
    made = Convolution(
        name,
        "",
        (source,),
        target,
        weights=random.integers(-127, 128, shape, np.int8),
        weight_scales=np.full(shape[3], 0.01, np.float32),
        bias=random.integers(-99, 99, shape[3]).astype(np.int32),
        strides=(1, 1),
        dilation=(1, 1),
        padding=((0, 0), (0, 0)),
        groups=1,
        low=-128,
        high=127,
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture(scope="module")
def network() -> Network:
    """A picture goes through one node of each kind."""
    s = Quantization(0.5, 3)
    nodes = (
        convolution("conv", "x", "c", (3, 3, 3, 6), padding=((1, 1), (1, 1)), low=3),
        Table("table", "", ("c",), "t", "function", np.arange(127, -129, -1).astype(np.int8)),
        Elementwise("add", "", ("c", "t"), "a", "add", -128, 127),
        Pool("pool", "", ("a",), "p", "max", (2, 2), (2, 2), ((0, 0), (0, 0)), False),
        Slice("slice", "", ("p",), "s", 2, 1, 4),
        Concatenate("both", "", ("p", "s"), "b", 2),
        Reshape("flat", "", ("b",), "f"),
        convolution("dense", "f", "y", (1, 1, 36, 5), bias=np.zeros(5, np.int32)),
    )
    shapes = {"x": (4, 4, 3), "c": (4, 4, 6), "t": (4, 4, 6), "a": (4, 4, 6), "p": (2, 2, 6), "s": (2, 2, 3)}
    shapes |= {"b": (2, 2, 9), "f": (1, 1, 36), "y": (1, 1, 5)}
    kinds = {name: s for name in shapes} | {"y": Quantization(40.0, -5)}
    return Network("picture", (Port("x", (4, 4, 3)),), (Port("y", (5,)), Port("p", (2, 2, 6))), shapes, kinds, nodes)


def pictures(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(0, 20, (rows, 4, 4, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def path(network: Network, tmp_path_factory) -> Path:
    return write(network, tmp_path_factory.mktemp("onnx") / "model.onnx")


def test_the_outputs_are_the_users(network: Network, path: Path):
    x = pictures(3)
    found = chip_oracle.run(path, [x])
    wanted = reference.outputs(network, reference.compute(network, [x]))
    assert list(found) == ["y", "p"]
    for one, other in zip(found.values(), wanted, strict=True):
        assert one.dtype == other.dtype == np.float32
        assert one.shape == other.shape
        assert (one == other).all()


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_any_number_of_rows(path: Path, rows: int):
    ten = pictures(10)
    whole, part = chip_oracle.run(path, [ten]), chip_oracle.run(path, [ten[:rows]])
    assert (part["y"] == whole["y"][:rows]).all()


def test_it_is_standard_onnx(path: Path):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 21)]
    assert model.ir_version == 10
    assert {"QLinearConv", "QLinearMatMul", "MaxPool", "Gather"} <= {node.op_type for node in model.graph.node}
    inputs = [
        (one.name, [d.dim_param or d.dim_value for d in one.type.tensor_type.shape.dim]) for one in model.graph.input
    ]
    assert inputs == [("x", ["batch", 4, 4, 3])]


def test_it_says_what_it_is(path: Path):
    assert onnx.load(path).doc_string == (
        "A network in integers, as the first TPU computes it. Every integer before a float step is exact: the sums "
        "are\nof 32 bits, scaled in float32, rounded half to even. Run it with any level of graph optimization. Its "
        "8-bit tensors are\nuint8, 128 above the chip's, so that no x86 CPU adds products in 16 bits."
    )


def test_the_type_of_the_integers(path: Path):
    model = onnx.load(path)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    kinds = {one.name: one.type.tensor_type.elem_type for one in inferred.graph.value_info}
    found = {kinds[node.output[0]] for node in model.graph.node if node.op_type.startswith("QLinear")}
    assert found == {onnx.TensorProto.UINT8}


def test_integers_are_outputs_too(network: Network, tmp_path: Path):
    x = pictures(2)
    found = chip_oracle.integers(network, [x], tmp_path / "model.onnx")
    assert chip_oracle.differing(reference.compute(network, [x]), found, list(network.shapes)) == {}


def test_weights_that_are_used_twice_stand_there_once(tmp_path: Path):
    s, shape = Quantization(0.5), (1, 1, 64)
    first = convolution("dense", "x", "h", (1, 1, 64, 64))
    second = dataclasses.replace(first, name="again", inputs=("h",), output="y")
    shapes = dict.fromkeys(("x", "h", "y"), shape)
    network = Network(
        "twice", (Port("x", (64,)),), (Port("y", (64,)),), shapes, dict.fromkeys(shapes, s), (first, second)
    )
    model = onnx.load(write(network, tmp_path / "model.onnx"))
    assert sum(len(one.raw_data) >= 64 * 64 for one in model.graph.initializer) == 1


def test_names_that_clash(tmp_path: Path):
    """A user's tensors may be called as ours are, and an input may be an output."""
    s, shape = Quantization(0.5), (1, 1, 3)
    node = Elementwise("add", "", ("Add", "constant"), "Reshape", "add", -128, 127)
    shapes = dict.fromkeys(("Add", "constant", "Reshape"), shape)
    inputs, outputs = (Port("Add", (3,)), Port("constant", (3,))), (Port("Reshape", (3,)), Port("Add", (3,)))
    network = Network("names", inputs, outputs, shapes, dict.fromkeys(shapes, s), (node,))
    x, y = np.float32([[1, 2, 3]]), np.float32([[0.5, 0.5, -0.5]])
    found = chip_oracle.run(write(network, tmp_path / "model.onnx"), [x, y])
    assert {name: value.tolist() for name, value in found.items()} == {
        "Reshape": [[1.5, 2.5, 2.5]],
        "Add_2": x.tolist(),
    }


def test_pixels_that_are_bytes(tmp_path: Path):
    node = Elementwise("add", "", ("x", "x"), "y", "add", -128, 127)
    kinds = {"x": Quantization(1.0, -128), "y": Quantization(2.0, -128)}
    ports = (Port("x", (2, 2, 1), "uint8"),), (Port("y", (2, 2, 1)),)
    network = Network("bytes", *ports, dict.fromkeys(kinds, (2, 2, 1)), kinds, (node,))
    x = np.array([0, 1, 200, 255], np.uint8).reshape(1, 2, 2, 1)
    found = chip_oracle.run(write(network, tmp_path / "model.onnx"), [x])["y"]
    assert found.ravel().tolist() == [0, 2, 400, 510]


def test_more_than_a_file_holds(tmp_path: Path):
    weights = np.broadcast_to(np.int8(1), (1, 1, 50_000, 50_000))  # 2.5 GB that take no memory.
    shapes = {"x": (1, 1, 50_000), "y": (1, 1, 50_000)}
    one = np.ones(1, np.int32)
    node = convolution("huge", "x", "y", (1, 1, 1, 1), weights=weights, weight_scales=np.float32([1]), bias=one)
    kinds = dict.fromkeys(shapes, Quantization(1.0))
    network = Network("huge", (Port("x", (50_000,)),), (Port("y", (50_000,)),), shapes, kinds, (node,))
    with pytest.raises(ChipError) as error:
        write(network, tmp_path / "model.onnx")
    assert str(error.value) == (
        "huge has 2,500,000,000 bytes of weights, and an ONNX file holds 2,147,483,647 bytes at most. Write the parts "
        "of the model on their own."
    )
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(("name", "why"), [("no/model.onnx", "No such file or directory"), (".", "Is a directory")])
def test_where_nothing_can_be_written(network: Network, tmp_path: Path, name: str, why: str):
    with pytest.raises(ChipFileError) as error:
        write(network, tmp_path / name)
    assert str(error.value) == f"The file {str(tmp_path / name)!r} cannot be written: {why}."


def test_without_onnx(tmp_path: Path):
    program = (
        "import sys; sys.modules['onnx'] = None\n"
        "from anytpu.chip.onnx import write\n"
        "from anytpu.chip.graph.nodes import Network\n"
        f"write(Network('n', (), (), {{}}, {{}}, ()), {str(tmp_path / 'model.onnx')!r})"
    )
    done = subprocess.run([*python(), "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "anytpu.errors.ChipError: An ONNX model is read and written by the package onnx, which is not installed. "
        "Install it with: pip install 'anytpu[onnx]'"
    )
    assert not (tmp_path / "model.onnx").exists()
