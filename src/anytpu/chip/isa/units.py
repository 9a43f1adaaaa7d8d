"""The units of the chip: each takes its instructions in order, and all work at the same time."""

from __future__ import annotations

import enum


class Unit(enum.IntEnum):
    """A unit, numbered as its bit in the masks of `Sync`.

    READ copies the host's memory to the Unified Buffer. WEIGHTS copies the Weight Memory to the FIFOs and tables.
    MATRIX multiplies. ACTIVATE turns sums in the accumulators into integers, and computes elementwise operations and
    pools. WRITE copies the Unified Buffer to the host's memory.
    """

    READ = 0
    WEIGHTS = 1
    MATRIX = 2
    ACTIVATE = 3
    WRITE = 4
