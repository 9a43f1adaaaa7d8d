"""A network in whole numbers: calibrated, quantized, and computed plainly as the reference."""

from anytpu.chip.quantized.nodes import QuantizedNetwork
from anytpu.chip.quantized.quantization import quantize
from anytpu.chip.quantized.summary import Summary, summarize

__all__ = ["QuantizedNetwork", "Summary", "quantize", "summarize"]
