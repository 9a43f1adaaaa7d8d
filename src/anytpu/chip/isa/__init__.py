"""The instructions: what they are, what they mean, and their bytes."""

from anytpu.chip.isa.encoding import decode, encode
from anytpu.chip.isa.instructions import Instruction

__all__ = ["Instruction", "decode", "encode"]
