"""`Timing`: where the cycles of a run went, by the time model. A prediction: no such chip was run.

Rule: the four causes of a cycle (active, stall, shift, non-matrix) add up to the total, as rows 1, 4, 5 and 6 of
Table 3 of the paper do; the waits for data and for the host count reasons for idleness beside them, as rows 7 and 8 do.
"""

from __future__ import annotations

import dataclasses

from anytpu.chip.design import Design
from anytpu.chip.isa.units import Unit


@dataclasses.dataclass(frozen=True)
class Event:
    """A stretch of work, or of waiting, of one unit.

    Attributes:
        unit: who.
        start_cycles, stop_cycles: from when to when.
        kind: what ("MatrixMultiply", "shift", "fetch", "Activate", ...).
        tag: the part of the program, an index into `Timing.tags`; -1 before the first.
        instruction: its number in the program; -1 for what no instruction of its own asked for.
    """

    unit: Unit
    start_cycles: float
    stop_cycles: float
    kind: str
    tag: int
    instruction: int


@dataclasses.dataclass(frozen=True)
class PartTiming:
    """The cycles of one part (a layer) of a program, by cause; and what the array did in it.

    Attributes:
        name: of the part.
        active_cycles, stall_cycles, shift_cycles, other_cycles: as in `Timing`.
        macs: multiply-adds that the model asks for (8x8 bits), without what only fills the array.
        weight_bytes: read from the Weight Memory.
    """

    name: str
    active_cycles: float
    stall_cycles: float
    shift_cycles: float
    other_cycles: float
    macs: int
    weight_bytes: int


@dataclasses.dataclass(frozen=True)
class Timing:
    """A predicted run of one batch.

    Attributes:
        name: of the program.
        design: the chip, knobs turned as they were.
        batch: examples.
        cycles: of the whole batch, from the first read of the host's memory to the last write.
        active_cycles: the array multiplied (Table 3, row 1).
        stall_cycles: it waited for weights to come from the Weight Memory (row 4).
        shift_cycles: it waited for weights to be shifted in (row 5).
        other_cycles: it had nothing to do for any other reason (row 6).
        data_wait_cycles: of these, for results of its own that were not written yet (row 7).
        input_wait_cycles: of these, for data of the host (row 8).
        macs: multiply-adds that the model asks for; a 16-bit activation times an 8-bit weight is one.
        capacity_macs: cells of the array times `active_cycles` (what rows 2 and 3 share).
        weight_bytes, input_bytes, output_bytes: moved from the Weight Memory and over the host's link.
        parts: the same, layer by layer.
        events: what each unit did when; empty unless it was asked for.
    """

    name: str
    design: Design
    batch: int
    cycles: float
    active_cycles: float
    stall_cycles: float
    shift_cycles: float
    other_cycles: float
    data_wait_cycles: float
    input_wait_cycles: float
    macs: int
    capacity_macs: float
    weight_bytes: int
    input_bytes: int
    output_bytes: int
    parts: tuple[PartTiming, ...] = ()
    events: tuple[Event, ...] = dataclasses.field(default=(), repr=False)
