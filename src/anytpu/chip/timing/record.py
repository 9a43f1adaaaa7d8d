"""`Timing`: where the cycles of a run went, by the time model. A prediction: no such chip was run.

Rule: the four causes of a cycle (active, stall, shift, non-matrix) add up to the total, as rows 1, 4, 5 and 6 of
Table 3 of the paper do; the waits for data and for the host count reasons for idleness beside them, as rows 7 and 8 do.

A trap of units: the paper's "operations per byte of weights", and the ridge of 1350 of its roofline, count a
multiply-add as one; its TOPS count two.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from anytpu import units
from anytpu.chip.design import Design
from anytpu.chip.isa.units import Unit

_DERIVED = (
    "time_s",
    "examples_per_s",
    "server_examples_per_s",
    "ops_per_s",
    "useful_share",
    "unused_share",
    "host_s",
    "host_share",
)


@dataclasses.dataclass(frozen=True)
class Event:
    """A stretch of work, or of waiting, of one unit.

    Attributes:
        unit: who.
        start_cycles, stop_cycles: from when to when.
        kind: what. The instruction's name; of WEIGHTS "fetch" (a tile), "parameters" or "table". Of MATRIX, each pass
            under its instruction's name, between passes "held" (by a Sync) and "stall" (no tile has come), and beside
            all of these "shift", into the second plane of the array: those never overlap each other.
        tag: the part of the program, an index into `Timing.tags`; -1 before the first.
        instruction: its number in the program; -1 for what no instruction of its own asked for.
    """

    unit: Unit
    start_cycles: float
    stop_cycles: float
    kind: str
    tag: int
    instruction: int


class Span(NamedTuple):
    """A stretch of cycles that counts for one part of the program.

    Attributes:
        start_cycles, stop_cycles: from when to when.
        tag: the part, as in `Event`.
    """

    start_cycles: float
    stop_cycles: float
    tag: int


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
        cycles: of the whole batch, from the first read of the host's memory to the last write; of batches back to back,
            from the last product of one to the last product of the next.
        active_cycles: the array multiplied (Table 3, row 1).
        stall_cycles: it waited for weights to come from the Weight Memory (row 4).
        shift_cycles: it waited for weights to be shifted in (row 5).
        other_cycles: it had nothing to do for any other reason (row 6).
        data_wait_cycles: of these, for results of its own that were not written yet (row 7).
        input_wait_cycles: of these, for data of the host (row 8).
        macs: multiply-adds that the model asks for; a 16-bit activation times an 8-bit weight is one.
        capacity_macs: cells of the array times `active_cycles` (what rows 2 and 3 share).
        weight_bytes, input_bytes, output_bytes: moved from the Weight Memory and over the host's link.
        parts: the same, layer by layer: one for each part of the program, in order; one more, named "", for what comes
            before the first, where that is anything.
        events: what each unit did when; empty unless it was asked for.
        spans: which part has each cycle: one stretch after another from 0 to `cycles`, and those of a part are as long
            as its cycles in `parts`; empty unless events were asked for.
        byte_macs: as `macs`, but a 16-bit activation times an 8-bit weight is the two that the array does (row 2).
        host_steps: what the host does in the middle, by name. Counted, not timed: that is the host's own time.
        back_to_back: whether this is a batch in the middle of many, not one alone.
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
    spans: tuple[Span, ...] = dataclasses.field(default=(), repr=False)
    byte_macs: int = 0
    host_steps: tuple[str, ...] = ()
    back_to_back: bool = False

    def __repr__(self) -> str:
        """Return a line: the batch, its cycles, and the share of each cause."""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self._shares().items())
        taken = f"{self.cycles:,.0f} cycles, {units.format_seconds(self.time_s)} predicted"
        return f"<Timing of {self.name!r}, {self.batch} examples: {taken}; {shares}>"

    @property
    def time_s(self) -> float:
        """Seconds that the cycles take: the latency of a batch alone, the time from batch to batch back to back."""
        return self.cycles / self.design.clock_hz

    @property
    def examples_per_s(self) -> float:
        """Inferences a second of one die."""
        return self.batch / self.time_s if self.cycles else 0.0

    @property
    def server_examples_per_s(self) -> float:
        """Inferences a second of a server: its dies have memories and links of their own."""
        return self.examples_per_s * self.design.dies

    @property
    def ops_per_s(self) -> float:
        """Useful operations a second, two a multiply-add (row 9, times 10^12)."""
        return 2 * self.macs / self.time_s if self.cycles else 0.0

    @property
    def useful_share(self) -> float:
        """Cells times cycles that did a multiply-add of the model, as a part of all (row 2)."""
        return self.byte_macs / (self.design.tile_bytes * self.cycles) if self.cycles else 0.0

    @property
    def unused_share(self) -> float:
        """Cells times active cycles that held no weight of the model, as a part of all cells times cycles (row 3)."""
        return self.active_cycles / self.cycles - self.useful_share if self.cycles else 0.0

    @property
    def host_s(self) -> float:
        """Seconds that inputs and outputs take on the host's link."""
        return (self.input_bytes + self.output_bytes) / self.design.host_bytes_per_s

    @property
    def host_share(self) -> float:
        """The time of the host's link as a part of the chip's time. Table 5 of the paper adds the host's software."""
        return self.host_s / self.time_s if self.cycles else 0.0

    def to_record(self) -> dict[str, Any]:
        """Return this as plain values, as JSON has them: what is kept, but for `events` and `spans`, and what follows.

        Shares are parts of one: "shares" has those of the four causes, which add up to 1 where there are cycles.

        Example:
            >>> from anytpu.chip.design import TPU_V1
            >>> timing = Timing("one", TPU_V1, 8, 700.0, 350.0, 70.0, 70.0, 210.0, 0, 0, 1000, 65536 * 350.0, 1, 1, 1)
            >>> record = timing.to_record()
            >>> record["predicted"], record["time_s"], record["shares"]
            (True, 1e-06, {'active': 0.5, 'stall': 0.1, 'shift': 0.1, 'other': 0.3})
        """
        kept = dataclasses.replace(self, events=(), spans=())
        record = {"predicted": True, **dataclasses.asdict(kept)}
        del record["events"], record["spans"]
        return {
            **record,
            "shares": self._shares(),
            **{name: getattr(self, name) for name in _DERIVED},
        }

    def _shares(self) -> dict[str, float]:
        cycles = {name: getattr(self, f"{name}_cycles") for name in ("active", "stall", "shift", "other")}
        return {name: own / self.cycles if self.cycles else 0.0 for name, own in cycles.items()}
