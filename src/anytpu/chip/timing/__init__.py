"""The time model: predicted cycles of a program, by cause."""

from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.model import time
from anytpu.chip.timing.record import Timing

__all__ = ["Latencies", "Timing", "time"]
