"""Reading a program without running it: what would give results that depend on luck."""

from anytpu.chip.checking.checker import check

__all__ = ["check"]
