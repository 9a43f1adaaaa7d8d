"""The real TPU compiler, in a process of its own."""

from anytpu.planning.compiler.answer import CompiledProgram, OutOfMemory
from anytpu.planning.compiler.children import compilations
from anytpu.planning.compiler.compilation import compile_program

__all__ = ["CompiledProgram", "OutOfMemory", "compilations", "compile_program"]
