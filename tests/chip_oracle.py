"""The oracle of the chip: onnxruntime on what `anytpu.chip.onnx.write` wrote."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime

from anytpu.chip import machine
from anytpu.chip.compiler import compile_image
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.onnx import write
from anytpu.chip.quantized.nodes import QuantizedNetwork

Level = Literal["none", "all"]
Convolution = Literal["auto", "native", "packed"]

DESIGNS = {
    "8 by 8": Design(array=8, accumulator_rows=32, unified_buffer_bytes=2**20),
    "32 by 32": Design(array=32, accumulator_rows=64, unified_buffer_bytes=2**20),
    "256 by 256": TPU_V1,
}
"""Chips on which random networks run: in the small ones every layer takes many tiles and many turns."""

_LEVELS = {
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


@functools.cache
def has_vnni() -> bool:
    """Tell whether this CPU adds products of bytes in 32 bits; every ARM does, x86 since VNNI."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except FileNotFoundError:
        return False
    return bool(re.search(r"^flags\s*:.*vnni", text, re.MULTILINE)) or "CPU implementer" in text


def products() -> str:
    """Say which products the oracle uses on this machine."""
    return "s8 x s8 (this CPU has VNNI)" if has_vnni() else "u8 x u8 (this CPU has no VNNI)"


def session(path: Path, level: Level = "all") -> onnxruntime.InferenceSession:
    """Load an ONNX file into onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = _LEVELS[level]
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(path: Path, inputs: Sequence[np.ndarray], level: Level = "all") -> dict[str, np.ndarray]:
    """Run an ONNX file; return its outputs by name."""
    loaded = session(path, level)
    feeds = {port.name: array for port, array in zip(loaded.get_inputs(), inputs, strict=True)}
    return dict(zip([port.name for port in loaded.get_outputs()], loaded.run(None, feeds), strict=True))


def integers(
    network: QuantizedNetwork,
    inputs: Sequence[np.ndarray],
    path: Path,
    *,
    unsigned: bool | None = None,
    level: Level = "all",
) -> dict[str, np.ndarray]:
    """Return what onnxruntime computes: the integers of every tensor that the chip holds.

    Args:
        network: what to compute.
        inputs: in the user's shapes.
        path: where the model is written.
        unsigned: as `write` takes it; None: what this CPU computes exactly.
        level: of onnxruntime's graph optimizations.
    """
    write(network, path, unsigned=not has_vnni() if unsigned is None else unsigned, integers=True)
    found = run(path, inputs, level)
    return {tensor: found[f"{tensor}:integers"] for tensor in network.quantizations}


def differing(first: dict[str, np.ndarray], second: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, int]:
    """Return how many numbers differ, of the tensors in which any do."""
    counts = {}
    for name in names:
        assert first[name].dtype == second[name].dtype, (name, first[name].dtype, second[name].dtype)
        assert first[name].shape == second[name].shape, (name, first[name].shape, second[name].shape)
        counts[name] = int((first[name] != second[name]).sum())
    return {name: count for name, count in counts.items() if count}


def chip_inputs(network: QuantizedNetwork, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return inputs in the user's shapes as the chip takes them."""
    values = {}
    for port, array in zip(network.inputs, inputs, strict=True):
        whole = array.reshape(-1, *network.shapes[port.tensor])
        known = network.quantizations.get(port.tensor)
        values[port.tensor] = whole if known is None else known.quantize(whole)
    return values


def on_chip(
    network: QuantizedNetwork,
    inputs: Sequence[np.ndarray],
    design: Design,
    convolution: Convolution = "auto",
    *,
    literal: bool = False,
) -> dict[str, np.ndarray]:
    """Return what the chip's instructions compute: the integers of each output.

    Args:
        network: what to compute.
        inputs: in the user's shapes; all of them are one batch.
        design: the chip.
        convolution: how convolutions are laid over the array.
        literal: products are made by the systolic array, register by register.
    """
    image = compile_image(network, batch=len(inputs[0]), design=design, convolution=convolution)
    compute = machine.witness if literal else machine.run
    return compute(image, chip_inputs(network, inputs))


def chip_outputs(network: QuantizedNetwork) -> list[str]:
    """Return the outputs of a network that the chip makes."""
    return [port.tensor for port in network.outputs if port.tensor in network.quantizations]
