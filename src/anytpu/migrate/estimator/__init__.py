"""`TPUEstimator`: train, evaluate and predict with a model function on all cores."""

from anytpu.migrate.estimator.estimator import TPUEstimator
from anytpu.migrate.estimator.model_call import get_global_step
from anytpu.migrate.estimator.run_config import InputPipelineConfig, RunConfig, TPUConfig
from anytpu.migrate.estimator.spec import ModeKeys, SessionRunHook, TPUEstimatorSpec

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
