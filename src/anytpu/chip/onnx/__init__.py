"""Writes a quantized network as a standard ONNX model that computes the chip's integers bit for bit."""

from anytpu.chip.onnx.model import write

__all__ = ["write"]
