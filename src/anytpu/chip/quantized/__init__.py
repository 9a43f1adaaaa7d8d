"""Quantization: from a network in floats to one in integers, by calibration, and what that costs."""

from anytpu.chip.quantized.quantization import quantize
from anytpu.chip.quantized.summary import Summary, summarize

__all__ = ["Summary", "quantize", "summarize"]
