"""The compiler: a quantized network to an image of instructions."""

from anytpu.chip.compiler.compilation import compile_image
from anytpu.chip.compiler.fitting import largest_batch

__all__ = ["compile_image", "largest_batch"]
