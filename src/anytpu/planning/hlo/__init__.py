"""The compiler's HLO text, read into records."""

from anytpu.planning.hlo.collectives import Collective, collective_of
from anytpu.planning.hlo.flops import flops_of
from anytpu.planning.hlo.instruction import Computation, HloInstruction, result_aliases
from anytpu.planning.hlo.module import Module
from anytpu.planning.hlo.origin import is_recomputed, layer_of
from anytpu.planning.hlo.shapes import Shape, shapes_of
from anytpu.planning.hlo.text import parse

__all__ = [
    "Collective",
    "Computation",
    "HloInstruction",
    "Module",
    "Shape",
    "collective_of",
    "flops_of",
    "is_recomputed",
    "layer_of",
    "parse",
    "result_aliases",
    "shapes_of",
]
