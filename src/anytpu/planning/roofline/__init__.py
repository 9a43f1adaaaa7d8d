"""A roofline estimate: what a step takes by its operations and bytes alone, without the TPU's compiler."""

from anytpu.planning.roofline.estimate import roofline_time

__all__ = ["roofline_time"]
