"""A network in whole numbers: calibrated, quantized, and computed plainly as the reference."""

from anytpu.chip.quantized.quantization import quantize

__all__ = ["quantize"]
