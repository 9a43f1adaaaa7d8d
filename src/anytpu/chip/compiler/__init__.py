"""From a quantized network to instructions."""

from __future__ import annotations

from anytpu.chip.compiler.compilation import compile_image, largest_batch

__all__ = ["compile_image", "largest_batch"]
