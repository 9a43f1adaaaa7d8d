"""The assembler and the disassembler."""

from anytpu.chip.assembly.assembler import assemble
from anytpu.chip.assembly.disassembler import disassemble

__all__ = ["assemble", "disassemble"]
