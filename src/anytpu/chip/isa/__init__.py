"""The instruction set: the design of the chip, the records, semantics and encoding of its instructions."""

from anytpu.chip.isa.encoding import decode, encode
from anytpu.chip.isa.instructions import Instruction

__all__ = ["Instruction", "decode", "encode"]
