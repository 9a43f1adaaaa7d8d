"""The machine that runs instructions, and the systolic array, register by register."""

from anytpu.chip.machine.execution import Machine, run

__all__ = ["Machine", "run"]
