"""How many cycles a program takes, and why."""

from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.model import time
from anytpu.chip.timing.record import Event, PartTiming, Timing

__all__ = ["Event", "Latencies", "PartTiming", "Timing", "time"]
