"""The front doors: what makes a Keras model train on a strategy."""

from anytpu.train.logs import step_logs

__all__ = ["step_logs"]
