"""`Timing`: the predicted cycles of a run, by cause. No such chip was run.

Rule: each cycle has one of four causes: active, stall, shift, other. They add up to the total, like rows 1, 4, 5 and 6
of Table 3 of the paper. The waits for data and for the host are reasons for idle cycles, counted in addition, like rows
7 and 8.

Units: the paper's "operations per byte of weights", and its roofline's ridge of 1350, count a multiply-add as one
operation. Its TOPS count two.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from anytpu import units
from anytpu.chip.isa.design import Design
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
    """An interval of work, or of waiting, of one unit.

    Attributes:
        unit: the unit.
        start_cycles, stop_cycles: the interval, in cycles.
        kind: the instruction's name; for WEIGHTS "fetch" (a tile), "parameters" or "table". MATRIX has an event for
            each pass, and between passes "held" (by a Sync) and "stall" (no tile). Its "shift" events, into the array's
            second plane, overlap these but not each other.
        tag: index of the part in `Timing.parts`; -1 before the first part.
        instruction: index of the instruction in the program; -1 if there is none.
    """

    unit: Unit
    start_cycles: float
    stop_cycles: float
    kind: str
    tag: int
    instruction: int


class Span(NamedTuple):
    """An interval of cycles that counts for one part of the program.

    Attributes:
        start_cycles, stop_cycles: the interval, in cycles.
        tag: index of the part, as in `Event`.
    """

    start_cycles: float
    stop_cycles: float
    tag: int


@dataclasses.dataclass(frozen=True)
class PartTiming:
    """The cycles of one part (a layer) of a program, by cause, and its work.

    Attributes:
        name: name of the part.
        active_cycles, stall_cycles, shift_cycles, other_cycles: as in `Timing`.
        macs: number of multiply-adds of the model, without padding of the array.
        weight_bytes: bytes read from the Weight Memory.
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
        name: name of the program.
        design: the chip, with the changed parameters.
        batch: number of examples.
        cycles: cycles of the batch, from the first read of the host's memory to the last write. Back to back, from the
            last product of a batch to the last product of the next.
        active_cycles: cycles in which the array multiplies (Table 3, row 1).
        stall_cycles: cycles of waiting for weights from the Weight Memory (row 4).
        shift_cycles: cycles of waiting for weights to be shifted in (row 5).
        other_cycles: cycles in which the array is idle for any other reason (row 6).
        data_wait_cycles: the part of `other_cycles` that waits for unfinished results of the chip (row 7).
        input_wait_cycles: the part of `other_cycles` that waits for data of the host (row 8).
        macs: number of multiply-adds of the model; a 16-bit activation times an 8-bit weight counts one.
        capacity_macs: number of cells of the array times `active_cycles` (rows 2 and 3 together).
        weight_bytes, input_bytes, output_bytes: bytes read from the Weight Memory and moved over the host link.
        parts: the timing of each part of the program, in order. A last part, named "", has the cycles before the first
            part, if there are any.
        events: start and end of each unit's work; empty unless requested.
        spans: the part of each cycle, as consecutive intervals from 0 to `cycles`. Their lengths add up to the cycles
            in `parts`. Empty unless events were requested.
        byte_macs: as `macs`, but a 16-bit activation counts two, as the array computes it (row 2).
        host_steps: names of the host's steps at interrupts, in order. They take the host's time, which is not counted.
        back_to_back: whether the batch is part of a steady stream.
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
        """Return one line: the batch, its cycles, and the share of each cause."""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self._shares().items())
        taken = f"{self.cycles:,.0f} cycles, {units.format_seconds(self.time_s)} predicted"
        return f"<Timing of {self.name!r}, {self.batch} examples: {taken}; {shares}>"

    @property
    def time_s(self) -> float:
        """Seconds of `cycles`: the latency of a single batch, or the time per batch back to back."""
        return self.cycles / self.design.clock_hz

    @property
    def examples_per_s(self) -> float:
        """Inferences per second of one die."""
        return self.batch / self.time_s if self.cycles else 0.0

    @property
    def server_examples_per_s(self) -> float:
        """Inferences per second of a server; each of its dies has its own memory and host link."""
        return self.examples_per_s * self.design.dies

    @property
    def ops_per_s(self) -> float:
        """Useful operations per second, two per multiply-add (row 9, times 10^12)."""
        return 2 * self.macs / self.time_s if self.cycles else 0.0

    @property
    def useful_share(self) -> float:
        """Share of cells times cycles that compute a multiply-add of the model, 0 to 1 (row 2)."""
        return self.byte_macs / (self.design.tile_bytes * self.cycles) if self.cycles else 0.0

    @property
    def unused_share(self) -> float:
        """Share of cells times cycles that are active but compute no multiply-add of the model, 0 to 1 (row 3)."""
        return self.active_cycles / self.cycles - self.useful_share if self.cycles else 0.0

    @property
    def host_s(self) -> float:
        """Seconds of inputs and outputs on the host link."""
        return (self.input_bytes + self.output_bytes) / self.design.host_bytes_per_s

    @property
    def host_share(self) -> float:
        """Time of the host link divided by `time_s`. Table 5 of the paper adds the host's software."""
        return self.host_s / self.time_s if self.cycles else 0.0

    def to_record(self) -> dict[str, Any]:
        """Return the attributes, without `events` and `spans`, and the derived properties as JSON-compatible values.

        "shares" has the share of each of the four causes. They add up to 1 if there are cycles.

        Example:
            >>> from anytpu.chip.isa.design import TPU_V1
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
