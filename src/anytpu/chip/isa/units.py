"""The units of the chip: each takes its instructions in order, and all work at the same time."""

from __future__ import annotations

import enum


class Unit(enum.IntEnum):
    """A unit, numbered as its bit in the masks of `Sync`.

    READ moves the host's memory into the Unified Buffer, WEIGHTS the Weight Memory into the FIFO, MATRIX multiplies,
    ACTIVATE empties the accumulators and does what is done number by number, WRITE moves the Unified Buffer into the
    host's memory.
    """

    READ = 0
    WEIGHTS = 1
    MATRIX = 2
    ACTIVATE = 3
    WRITE = 4
