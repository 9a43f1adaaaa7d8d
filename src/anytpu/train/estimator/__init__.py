"""`TPUEstimator`: train, evaluate and predict with a model function on all cores."""

from anytpu.train.estimator.estimator import TPUEstimator
from anytpu.train.estimator.hooks import SessionRunHook
from anytpu.train.estimator.modes import ModeKeys
from anytpu.train.estimator.run_config import RunConfig
from anytpu.train.estimator.spec import TPUEstimatorSpec
from anytpu.train.estimator.tpu_config import InputPipelineConfig, TPUConfig
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
