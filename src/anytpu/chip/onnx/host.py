"""Steps of the host: float32 operators of ONNX."""

from __future__ import annotations

from anytpu.chip.onnx.writing import Writing
from anytpu.chip.quantized.nodes import QHostStep
from anytpu.errors import ChipError


def write_host_step(writing: Writing, node: QHostStep) -> str:
    """Write a step of the host; return its value.

    Raises:
        ChipError: ONNX has no operator for it.
    """
    raise ChipError(f"{node.layer or node.name}: {node.step.kind} is done by the host and cannot be written as ONNX.")
