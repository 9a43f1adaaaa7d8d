"""The oracle of the chip: onnxruntime on what `anytpu.chip.onnx.write` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime

from anytpu.chip import machine
from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import Network
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.onnx import write
from chip_witness import witness

Level = Literal["none", "all"]

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
    network: Network,
    inputs: Sequence[np.ndarray],
    path: Path,
    *,
    level: Level = "all",
) -> dict[str, np.ndarray]:
    """Return what onnxruntime computes: the integers of every tensor that the chip holds.

    Args:
        network: what to compute.
        inputs: in the user's shapes.
        path: where the model is written.
        level: of onnxruntime's graph optimizations.
    """
    write(network, path, integers=True)
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


def chip_inputs(network: Network, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return inputs in the user's shapes as the chip takes them."""
    values = {}
    for port, array in zip(network.inputs, inputs, strict=True):
        whole = array.reshape(-1, *network.shapes[port.tensor])
        known = network.quantizations.get(port.tensor)
        values[port.tensor] = whole if known is None else known.quantize(whole)
    return values


def on_chip(
    network: Network,
    inputs: Sequence[np.ndarray],
    design: Design,
    *,
    literal: bool = False,
) -> dict[str, np.ndarray]:
    """Return what the chip's instructions compute: the integers of each output.

    Args:
        network: what to compute.
        inputs: in the user's shapes; all of them are one batch.
        design: the chip.
        literal: products are made by the systolic array, register by register.
    """
    image = compile_image(network, batch=len(inputs[0]), design=design)
    compute = witness if literal else machine.run
    return compute(image, chip_inputs(network, inputs))


def chip_outputs(network: Network) -> list[str]:
    """Return the outputs of a network that the chip makes."""
    return [port.tensor for port in network.outputs if port.tensor in network.quantizations]
