"""`TPUEstimator`: train, evaluate and predict with a model function on all cores."""

from anytpu.train.estimator.estimator import TPUEstimator
from anytpu.train.estimator.run_config import InputPipelineConfig, RunConfig, TPUConfig
from anytpu.train.estimator.spec import ModeKeys, SessionRunHook, TPUEstimatorSpec
from anytpu.train.estimator.variable_store import get_global_step

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
