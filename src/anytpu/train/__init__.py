"""The front doors: what makes a Keras model train on a strategy."""

from anytpu.train.conversion import TPUDistributionStrategy, keras_to_tpu_model
from anytpu.train.logs import input_shares, step_logs

__all__ = ["TPUDistributionStrategy", "input_shares", "keras_to_tpu_model", "step_logs"]
