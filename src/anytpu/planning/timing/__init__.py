"""The time of each operation, and of a step."""

from anytpu.planning.timing.rates import Rates, rates_of
from anytpu.planning.timing.step import step_time

__all__ = ["Rates", "rates_of", "step_time"]
