"""From a quantized network to instructions."""

from anytpu.chip.compiler.compilation import compile_image
from anytpu.chip.compiler.fitting import largest_batch

__all__ = ["compile_image", "largest_batch"]
