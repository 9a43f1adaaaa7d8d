"""The real TPU compiler, in a process of its own."""

from anytpu.planning.compiler.answer import Compiled, OutOfMemory
from anytpu.planning.compiler.children import compilations
from anytpu.planning.compiler.compilation import compile_program

__all__ = ["Compiled", "OutOfMemory", "compilations", "compile_program"]
