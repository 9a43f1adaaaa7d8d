"""Small programs for the chip, and networks, for the tests of `chip`."""

from __future__ import annotations

import dataclasses
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from anytpu.chip import file
from anytpu.chip.file import PARTS
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    HostStep,
    Network,
    Pool,
    Port,
    Quantization,
    Reshape,
    Slice,
    Table,
)
from anytpu.chip.image.image import Binding, Image, Resident, Service, Tag
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import (
    Activate,
    DebugTag,
    Halt,
    Instruction,
    InterruptHost,
    MatrixMultiply,
    ReadHostMemory,
    ReadWeights,
    SetConfiguration,
    Sync,
    WriteHostMemory,
)
from anytpu.chip.isa.registers import Register as R
from anytpu.chip.isa.units import Unit
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Argument, HostOperations, Operation
from anytpu.program.archive import write_parts

SMALL = Design(array=8, unified_buffer_bytes=4096, accumulator_rows=16)
READ, WEIGHTS, MATRIX, ACTIVATE, WRITE = (1 << unit for unit in Unit)


def parts_of(path: Path) -> dict[str, bytes]:
    """The parts of a program file, by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in PARTS}


def saved(image: Image) -> dict[str, bytes]:
    """The parts of the file of an image: equal ones are equal bit by bit."""
    with tempfile.TemporaryDirectory() as folder:
        return parts_of(file.write(Path(folder) / "image.tpu", image))


def with_parts(path: Path, changed: dict[str, bytes]) -> Path:
    """Change parts of a program file, whose checksums are right afterwards."""
    write_parts(path, {**parts_of(path), **changed})
    return path


def dense_code() -> tuple[Instruction, ...]:
    """One dense layer of 8 inputs and 8 outputs for 4 examples: in, times a tile, scaled, out."""
    return (
        DebugTag(0),
        ReadHostMemory(0, 0, 4),
        ReadWeights(0, 1, "parameters"),
        ReadWeights(1, 1),
        SetConfiguration(R.PITCH, 1),
        SetConfiguration(R.OUT_PITCH, 1),
        SetConfiguration(R.LOW, -128),
        SetConfiguration(R.HIGH, 127),
        Sync(MATRIX, READ),
        MatrixMultiply(0, 0, 4),
        Sync(ACTIVATE, MATRIX),
        Activate("scale", 0, 4, 4),
        DebugTag(1),
        Sync(WRITE, ACTIVATE),
        WriteHostMemory(128, 4, 4),
        Halt(),
    )


def dense_weights() -> np.ndarray:
    """The parameters and the tile of `dense_code`: twice the number, plus the number of the lane."""
    content = np.zeros(2 * 2048, np.uint8)
    content[:32] = np.arange(8, dtype="<i4").view(np.uint8)
    content[32:64] = np.full(8, 0.5, "<f4").view(np.uint8)
    content[2048:2112] = (2 * np.eye(8, dtype=np.int8)).view(np.uint8).ravel()
    return content


def binding(tensor: str, host_address: int, channels: int = 8) -> Binding:
    return Binding(tensor, (1, 1, channels), Quantization(0.25, 3), host_address, (channels,))


def dense_image() -> Image:
    """A whole image without services."""
    return Image(
        "dense",
        dense_code(),
        dense_weights(),
        batch=4,
        host_bytes=256,
        inputs=(binding("x", 0),),
        outputs=(binding("y", 128),),
        tags=(Tag("dense/matmul", "dense", "dense", 256, "1 tile"), Tag("out")),
        residents=(Resident("x", 0, 4, 1, 9), Resident("y", 4, 4, 11, 14)),
        design=SMALL,
    )


def host_step() -> HostStep:
    """Negation, plus a constant of 8 numbers."""
    argument = Argument("a", (4, 8), "float32", BatchLayout(0, 4))
    negate = Operation("negate", ("a",), "b", (4, 8), np.dtype("float32"))
    add = Operation("add", ("b", np.tile(np.arange(8, dtype=np.float32), (4, 1))), "c", (4, 8), np.dtype("float32"))
    steps = HostOperations((argument,), (negate, add), Argument("c", (4, 8), "float32", BatchLayout(0, 4)))
    return HostStep("negate/h", "negate", ("y",), "z", "negate", "the test says so", steps)


def service_image() -> Image:
    """The dense layer, then a step of the host."""
    image = dense_image()
    code = (*image.instructions[:-1], InterruptHost(0), Halt())
    step = host_step()
    service = Service(step, (binding("y", 128),), None)
    return Image(
        **{**image.__dict__, "name": "with a step", "instructions": code, "services": (service,)},
    )


def tables_network(*outputs: str) -> Network:
    """A network of the tensors of `dense_image`, and of one more, "t": two tables."""
    table = np.arange(-128, 128).astype(np.int8)
    nodes = (Table("a", "", ("x",), "y", "tanh", table), Table("b", "", ("y",), "t", "tanh", table))
    shapes, own = dict.fromkeys("xyt", (1, 1, 8)), dict.fromkeys("xyt", Quantization(0.25, 3))
    ports = tuple(Port(tensor, (8,)) for tensor in outputs)
    return Network("tables", (Port("x", (8,)),), ports, shapes, own, nodes)


def every_node() -> Network:
    """A network that has one node of each kind."""
    ranges = np.random.default_rng(0)
    q8, q16 = Quantization(0.5, -3), Quantization(0.001, 5, 16)
    convolution = Convolution(
        "conv/c", "conv", ("x",), "c", ranges.integers(-127, 128, (3, 3, 2, 4)).astype(np.int8),
        np.float32([0.1, 0.2, 0.3, 0.4]), np.int32([1, -2, 3, 2**31 - 1]), (2, 1), (1, 1),
        ((1, 0), (0, -1)), 1, -3, 127,
    )  # fmt: skip
    step = host_step()
    found = (
        convolution,
        Pool("pool/p", "pool", ("c",), "p", "average", (2, 2), (2, 2), ((0, 0), (0, 1)), False),
        Elementwise("add/a", "add", ("p", "p"), "a", "add", -128, 127),
        Table("tanh/t", "tanh", ("a",), "t", "tanh", np.arange(-128, 128).astype(np.int16)),
        Concatenate("cat/k", "cat", ("t", "t"), "k", 2),
        Slice("cut/s", "cut", ("k",), "s", 1, 0, 1),
        Reshape("flat/r", "flat", ("s",), "y"),
        dataclasses.replace(step, name="host/h", layer="", inputs=("y",), output="z"),
    )
    shapes = dict(zip("xcpatksyz", [(5, 6, 2), (2, 3, 4), *[(1, 2, 4)] * 3, (1, 2, 8), *[(1, 1, 8)] * 3], strict=True))
    return Network(
        "all kinds", (Port("x", (5, 6, 2)),), (Port("z", (8,), "float32"),), shapes,
        {"x": q8, "c": q8, "p": q8, "a": q8, "t": q16, "k": q16, "s": q16, "y": q16}, found,
    )  # fmt: skip
