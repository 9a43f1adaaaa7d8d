"""How many cycles a program takes, and why."""

from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.model import time
from anytpu.chip.timing.record import Timing
from anytpu.chip.timing.sweep import sweep

__all__ = ["Latencies", "Timing", "sweep", "time"]
