"""What the compiler prints, read into records."""

from anytpu.planning.hlo.module import Computation, Instruction, Module, Shape, SourceLine
from anytpu.planning.hlo.names import LayerName, layer_of
from anytpu.planning.hlo.text import parse

__all__ = ["Computation", "Instruction", "LayerName", "Module", "Shape", "SourceLine", "layer_of", "parse"]
