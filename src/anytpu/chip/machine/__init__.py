"""The simulator: exact execution of images, and a cycle-accurate systolic array."""

from anytpu.chip.machine.loaded import run
from anytpu.chip.machine.memories import check_room
from anytpu.chip.machine.systolic import SystolicArray

__all__ = ["SystolicArray", "check_room", "run"]
