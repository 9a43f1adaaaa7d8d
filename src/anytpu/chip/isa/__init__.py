"""The instructions: what they are, what they mean, and their bytes."""

from anytpu.chip.isa.encoding import decode, encode

__all__ = ["decode", "encode"]
