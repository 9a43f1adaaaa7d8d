"""Static checks of a program: invalid instructions, hazards between units, and deadlocks."""

from anytpu.chip.checking.checker import check

__all__ = ["check"]
