"""The first TPU in software: quantized models, its instructions, exact results, cycles and pictures."""
