"""The plans of all rewritings, in order."""

from __future__ import annotations

from anytpu.migrate.port.augmentations import plan_augmentations
from anytpu.migrate.port.calls import plan_calls
from anytpu.migrate.port.control_flow import plan_branches
from anytpu.migrate.port.estimators import plan_estimators
from anytpu.migrate.port.file_names import plan_file_names
from anytpu.migrate.port.generators import plan_generators
from anytpu.migrate.port.imports import plan_imports
from anytpu.migrate.port.iterators import plan_iterators
from anytpu.migrate.port.keras_classes import plan_metric_resets, plan_model_steps, plan_optimizers, plan_schedules
from anytpu.migrate.port.methods import plan_arguments, plan_methods
from anytpu.migrate.port.metric_names import plan_log_paths, plan_metric_functions, plan_metric_names
from anytpu.migrate.port.patterns import plan_patterns
from anytpu.migrate.port.seeds import plan_seeds
from anytpu.migrate.port.sizes import plan_sizes
from anytpu.migrate.port.tapes import plan_tapes
from anytpu.migrate.port.traced import plan_traced
from anytpu.migrate.port.uses import plan_uses

PLANS = (
    plan_optimizers,
    plan_metric_resets,
    plan_tapes,
    plan_model_steps,
    plan_schedules,
    plan_metric_names,
    plan_generators,
    plan_iterators,
    plan_sizes,
    plan_traced,
    plan_patterns,
    plan_branches,
    plan_estimators,
    plan_augmentations,
    plan_arguments,
    plan_file_names,
    plan_log_paths,
    plan_metric_functions,
    plan_uses,
    plan_calls,
    plan_methods,
    plan_seeds,
    plan_imports,
)
"""The order matters: the patterns first, then the single names that no pattern has handled, then the imports."""
