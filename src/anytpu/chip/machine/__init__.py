"""The machine that runs instructions, and the systolic array, register by register."""

from anytpu.chip.machine.loaded import Machine, run
from anytpu.chip.machine.systolic import Snapshot, SystolicArray
from anytpu.chip.machine.witness import witness

__all__ = ["Machine", "Snapshot", "SystolicArray", "run", "witness"]
