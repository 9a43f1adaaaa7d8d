"""The time of each operation, and of a step."""

from anytpu.planning.timing.step import step_time

__all__ = ["step_time"]
