"""`TPUEstimator`: train, evaluate and predict with a model function on all cores."""

from anytpu.migrate.estimator.estimator import TPUEstimator
from anytpu.migrate.estimator.run_config import InputPipelineConfig, RunConfig, TPUConfig
from anytpu.migrate.estimator.spec import ModeKeys, SessionRunHook, TPUEstimatorSpec
from anytpu.migrate.estimator.variable_store import get_global_step

__all__ = [
    "InputPipelineConfig",
    "ModeKeys",
    "RunConfig",
    "SessionRunHook",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "get_global_step",
]
