"""`Program`: a pure step with its shapes and layouts, made from models and functions, and its file format."""

from anytpu.program.file import read, write
from anytpu.program.lowering import lower
from anytpu.program.makers import of
from anytpu.program.program import REPLICA_AXIS, REPLICATED, ROWS, Layout, Placement, Program, spec_of

__all__ = [
    "REPLICATED",
    "REPLICA_AXIS",
    "ROWS",
    "Layout",
    "Placement",
    "Program",
    "lower",
    "of",
    "read",
    "spec_of",
    "write",
]
