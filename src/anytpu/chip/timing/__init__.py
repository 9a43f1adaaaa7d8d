"""How many cycles a program takes, and why."""

from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.model import time
from anytpu.chip.timing.record import Event, PartTiming, Timing
from anytpu.chip.timing.sweep import sweep

__all__ = ["Event", "Latencies", "PartTiming", "Timing", "sweep", "time"]
