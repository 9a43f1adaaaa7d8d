"""Sharding: one model over many cores.

Idea: a user's layout names, for each weight, the mesh axes that split it. `resolve` reads it, and `place` gives a
Program its placement. The batch, the optimizer's slots and the activations follow from the step's logical axes.
"""

from anytpu.sharding.forms import resolve
from anytpu.sharding.layouts import ModelLayout
from anytpu.sharding.placing import TracedStep, check_spec, layout_faults, place, trace_step, unmatched_patterns
from anytpu.sharding.tables import SPLIT_TABLES, with_tables

__all__ = [
    "SPLIT_TABLES",
    "ModelLayout",
    "TracedStep",
    "check_spec",
    "layout_faults",
    "place",
    "resolve",
    "trace_step",
    "unmatched_patterns",
    "with_tables",
]
