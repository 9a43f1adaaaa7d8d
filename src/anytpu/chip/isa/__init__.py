"""The instruction set: records, semantics and encoding."""

from anytpu.chip.isa.encoding import decode, encode
from anytpu.chip.isa.instructions import Instruction

__all__ = ["Instruction", "decode", "encode"]
