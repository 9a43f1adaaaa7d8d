"""Quantized networks: calibration, quantization, and a reference implementation in NumPy."""

from anytpu.chip.quantized.nodes import QuantizedNetwork
from anytpu.chip.quantized.quantization import quantize
from anytpu.chip.quantized.summary import Summary, summarize

__all__ = ["QuantizedNetwork", "Summary", "quantize", "summarize"]
