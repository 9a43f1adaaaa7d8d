"""The compiler's HLO text, read into records."""

from anytpu.planning.hlo.collectives import Collective, collective_of
from anytpu.planning.hlo.module import Computation, Instruction, Module, Shape, SourceLine
from anytpu.planning.hlo.names import LayerName, is_recomputed, layer_of
from anytpu.planning.hlo.text import parse

__all__ = [
    "Collective",
    "Computation",
    "Instruction",
    "LayerName",
    "Module",
    "Shape",
    "SourceLine",
    "collective_of",
    "is_recomputed",
    "layer_of",
    "parse",
]
