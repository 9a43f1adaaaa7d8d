"""`queues_of`: a program as a queue of work for each unit, with the dependences between them.

Idea: issue hands each instruction to its unit and continues. Only a `Sync` or an `InterruptHost` makes a unit wait for
another. So a program is five queues, and a wait is "the first `count` instructions of that unit are done".

Choices, in addition to those in `model.py`:

- Every data path of the chip is one row wide, 256 bytes (paper, section 2). So `Activate` takes as many cycles as the
  maximum of the rows that it reads and the rows that it writes. A 16-bit row counts twice, and so do two operands.
  Accumulators have a separate path, one row per cycle.
- A pool reads each row of its source once, because the unit buffers rows that windows share. The line buffers of US
  patent 10,192,162 do so. It reads at most one row per window and tap, and costs at least the rows that it writes.
- Issue takes no time: an instruction works for hundreds of cycles, and the paper's host keeps the instruction buffer
  filled.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from anytpu.chip.isa.accesses import parameters_popped
from anytpu.chip.isa.design import UNIT_BYTES, Design
from anytpu.chip.isa.geometry import Window
from anytpu.chip.isa.instructions import (
    Activate,
    ArrayInstruction,
    Halt,
    Instruction,
    InterruptHost,
    ReadHostMemory,
    ReadWeights,
    Sync,
    WriteHostMemory,
)
from anytpu.chip.isa.issue import Issued, Registers, issue
from anytpu.chip.isa.units import Unit

HOST = len(Unit)
"""Index of the host, an additional unit that serves interrupts."""

Waits = tuple[tuple[int, int], ...]
"""Pairs (unit, count): wait until the first `count` instructions of the unit are done."""


class UnitWork(NamedTuple):
    """The work of one instruction in its unit.

    Attributes:
        number: index of the instruction.
        kind: name of the instruction; for a `ReadWeights` the kind of its data.
        tag: index of the part that it belongs to.
        waits: work that must be done before it starts.
        cycles: duration in cycles; for a product per pass, for a `ReadWeights` per transfer.
        passes: number of passes of a product, or of transfers of a `ReadWeights`; else 1.
        pops: number of tiles or parameter blocks that it takes from a FIFO.
        bytes: number of bytes that it moves; for a `ReadWeights` per transfer.
    """

    number: int
    kind: str
    tag: int
    waits: Waits
    cycles: float
    passes: int = 1
    pops: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class WorkQueues:
    """The work of each unit, in order.

    Attributes:
        by_unit: the work of each unit, by index; `by_unit[HOST]` is the host's.
        starts: for each run of the program, the length of each unit's queue before it.
        wide_tags: indices of the parts with 16-bit products.
        interrupts: indices of the host's steps in one run, in order.
    """

    by_unit: tuple[list[UnitWork], ...]
    starts: tuple[tuple[int, ...], ...]
    wide_tags: frozenset[int]
    interrupts: tuple[int, ...]


def queues_of(instructions: tuple[Instruction, ...], design: Design, runs: int = 1) -> WorkQueues:
    """Return the work of a program that runs `runs` times back to back.

    The units continue from run to run, with these rules:

    1. The matrix unit waits for the activation unit to empty the accumulators.
    2. Inputs and outputs are double-buffered. The input of a run may be read while the previous run computes, but not
       earlier.
    3. Writes to the host's buffer do not delay the next run.
    """
    sorter = _QueueBuilder(design)
    walked = tuple(issue(instructions))
    for _ in range(runs):
        sorter.start_run()
        for issued in walked:
            sorter.take(issued)
    interrupts = tuple(issued.instruction.number for issued in walked if isinstance(issued.instruction, InterruptHost))
    return WorkQueues(tuple(sorter.queues), tuple(sorter.starts), frozenset(sorter.wide_tags), interrupts)


class _QueueBuilder:
    """Appends each instruction to the queue of its unit, with the unit's pending waits."""

    def __init__(self, design: Design):
        self.design = design
        self.queues: list[list[UnitWork]] = [[] for _ in range(HOST + 1)]
        self.pending: list[dict[int, int]] = [{} for _ in range(HOST + 1)]
        self.starts: list[tuple[int, ...]] = []
        self.wide_tags: set[int] = set()

    def start_run(self) -> None:
        self.starts.append(tuple(len(queue) for queue in self.queues))
        self._wait(Unit.MATRIX, Unit.ACTIVATE, len(self.queues[Unit.ACTIVATE]))
        if len(self.starts) > 1:
            before = self.starts[-2]
            for unit in (Unit.MATRIX, Unit.ACTIVATE):
                self._wait(Unit.READ, unit, before[unit])

    def take(self, issued: Issued) -> None:
        instruction = issued.instruction
        if isinstance(instruction, Sync):
            finished = [unit for unit in Unit if instruction.finished >> unit & 1]
            for waiting in Unit:
                if instruction.waiting >> waiting & 1:
                    self._wait_all(waiting, finished)
        elif isinstance(instruction, InterruptHost):
            self._wait_all(HOST, list(Unit))
            self._add(HOST, issued, 0.0)
            for unit in Unit:
                self._wait_all(unit, [HOST])
        elif instruction.unit is not None and not isinstance(instruction, Halt):
            self._take_work(issued, instruction)

    def _take_work(self, issued: Issued, instruction: Instruction) -> None:
        design = self.design
        if isinstance(instruction, ArrayInstruction):
            if instruction.wide:
                self.wide_tags.add(issued.tag)
            cycles = float(instruction.rows * (2 if instruction.wide else 1))
            self._add(Unit.MATRIX, issued, cycles, instruction.repeat, instruction.repeat - instruction.keep)
        elif isinstance(instruction, ReadWeights):
            size = bytes_of(instruction, design)
            self._add(
                Unit.WEIGHTS, issued, size / design.weight_bytes_per_s * design.clock_hz, instruction.count, 0, size
            )
        elif isinstance(instruction, Activate):
            cycles = float(activate_cycles(instruction, issued.registers))
            self._add(Unit.ACTIVATE, issued, cycles, 1, parameters_popped(instruction))
        elif isinstance(instruction, ReadHostMemory | WriteHostMemory):
            size = instruction.units * UNIT_BYTES
            cycles = size / design.host_bytes_per_s * design.clock_hz
            self._add(instruction.unit, issued, cycles, 1, 0, size)

    def _add(self, unit: int, issued: Issued, cycles: float, passes: int = 1, pops: int = 0, size: int = 0) -> None:
        waits, self.pending[unit] = tuple(self.pending[unit].items()), {}
        kind = type(issued.instruction).__name__
        if isinstance(issued.instruction, ReadWeights):
            kind = issued.instruction.kind
        self.queues[unit].append(UnitWork(issued.number, kind, issued.tag, waits, cycles, passes, pops, size))

    def _wait_all(self, waiting: int, finished: list[Unit] | list[int]) -> None:
        for unit in finished:
            self._wait(waiting, unit, len(self.queues[unit]))

    def _wait(self, waiting: int, unit: int, count: int) -> None:
        if count:
            self.pending[waiting][unit] = max(count, self.pending[waiting].get(unit, 0))


def bytes_of(instruction: ReadWeights, design: Design) -> int:
    """Return the bytes of each transfer of a `ReadWeights`."""
    if instruction.kind == "tile":
        return design.tile_bytes
    if instruction.kind == "parameters":
        return 8 * design.array
    return 2 * 65536 if instruction.wide else 256


def activate_cycles(instruction: Activate, registers: Registers) -> int:
    """Return the cycles of an `Activate`: the maximum of the rows that it reads from the buffer and those it writes."""
    rows, bytes_each = instruction.rows, 2 if instruction.wide else 1
    written = rows * (2 if instruction.wide_out else 1)
    if instruction.operation == "scale":
        return written
    if instruction.operation == "copy":
        return max(written, rows * bytes_each)
    if instruction.operation in ("add", "subtract", "multiply"):
        return max(written, 2 * rows * bytes_each)
    window = Window.of(registers)
    first, stop = window.row_range(rows, 0, window.taps)
    return max(written, min(stop - first, rows * window.taps) * bytes_each)
