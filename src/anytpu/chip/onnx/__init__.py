"""A quantized network as a standard ONNX model that gives the chip's integers, every bit of them."""

from anytpu.chip.onnx.model import write

__all__ = ["write"]
