"""The TPU compiler, in its own process."""

from anytpu.planning.compiler.answer import CompiledProgram, OutOfMemory
from anytpu.planning.compiler.children import compilations
from anytpu.planning.compiler.compilation import compile_program

__all__ = ["CompiledProgram", "OutOfMemory", "compilations", "compile_program"]
