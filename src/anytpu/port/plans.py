"""The plans of all rewritings, in order."""

from __future__ import annotations

from anytpu.port.augmentations import plan_augmentations
from anytpu.port.calls import plan_calls
from anytpu.port.file_names import plan_file_names
from anytpu.port.imports import plan_imports
from anytpu.port.methods import plan_arguments, plan_methods
from anytpu.port.patterns import plan_patterns
from anytpu.port.seeds import plan_seeds
from anytpu.port.tapes import plan_tapes
from anytpu.port.uses import plan_uses

PLANS = (
    plan_tapes,
    plan_patterns,
    plan_augmentations,
    plan_arguments,
    plan_file_names,
    plan_uses,
    plan_calls,
    plan_methods,
    plan_seeds,
    plan_imports,
)
"""The order matters: the patterns first, then the single names that no pattern has handled, then the imports."""
