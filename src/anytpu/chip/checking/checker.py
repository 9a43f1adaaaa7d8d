"""`check`: walks a program in issue order, and reports invalid instructions and hazards.

Idea: units run in parallel, so a program with a hazard may be right in one run and wrong in the next. The queues and
`Sync` alone define happens-before, and the instructions and registers define the addresses of each access
(`isa/hazards.py`). So one walk finds every missing Sync, without running anything.

Rule: instructions are checked in issue order. A written value is available to every later instruction that is ordered
after the write. Two instructions of different units that access the same address, at least one of them to write it,
need a Sync between them.
"""

from __future__ import annotations

from anytpu.chip.checking import faults
from anytpu.chip.checking.bindings import fault_in_bindings
from anytpu.chip.checking.fifos import FifoCounts
from anytpu.chip.checking.geometry import fault_in_geometry, fault_in_overwrite
from anytpu.chip.checking.progress import first_stuck
from anytpu.chip.checking.weights import fault_in_multipliers, fault_in_size
from anytpu.chip.image.image import Binding, Image
from anytpu.chip.isa.accesses import Accesses, AddressRange, Memory, accesses, range_text
from anytpu.chip.isa.design import BLOCK_BYTES
from anytpu.chip.isa.encoding import fault_of
from anytpu.chip.isa.hazards import AccessHistory, VectorClocks
from anytpu.chip.isa.instructions import (
    Activate,
    DebugTag,
    Halt,
    InterruptHost,
    SetConfiguration,
    Sync,
)
from anytpu.chip.isa.issue import Issued, issue
from anytpu.chip.timing.work import queues_of
from anytpu.errors import ChipError, HazardError
from anytpu.program.remembered import Remembered

MAX_RANGES = 2**21
"""Maximum ranges of addresses that a program's accesses cover in all, beside 16 for each instruction.

It bounds the time of the check."""

_TABLES = 256
_SOUND: Remembered[bool] = Remembered()


def check(image: Image) -> None:
    """Check that a program can run, and that its results do not depend on timing. An image is checked once.

    Args:
        image: the program, its weights and the host's steps.

    Raises:
        ChipError: a value does not fit its field or contradicts another; an address is outside of its memory. An
            instruction uses a register that is 0. Halt is missing, or is not the last instruction. A step of the host
            does not exist. Two inputs overlap, or two tensors have the same name.
        HazardError: two units access the same address without a Sync between them. An instruction or an output reads
            memory that nothing has written. A FIFO is empty at a pop, or has items left at the end. A full FIFO holds
            only items that are popped after an item behind them (a deadlock).

    Example:
        >>> import numpy as np
        >>> check(Image("nothing", (Halt(),), np.zeros(0, np.uint8)))
    """
    if not _SOUND.get(image):
        _ProgramChecker(image).run()
        _SOUND.keep(image, True)


class _ProgramChecker:
    def __init__(self, image: Image):
        self._image = image
        self._history, self._clocks, self._fifos = AccessHistory(), VectorClocks(), FifoCounts()
        self._issued: list[Issued] = []
        self._is_set: set[int] = set()
        self._sizes = {
            Memory.HOST: image.host_bytes,
            Memory.BUFFER: image.design.buffer_units,
            Memory.ACCUMULATORS: image.design.accumulator_rows,
            Memory.WEIGHTS: -(-len(image.weights) // BLOCK_BYTES),
            Memory.TABLES: _TABLES,
        }

    def run(self) -> None:
        # 1. Checks of the whole program, and the inputs that the host writes before the start.
        self._check_ends()
        fault = fault_in_bindings(self._image) or fault_in_size(self._image)
        if fault is not None:
            raise ChipError(fault)
        for binding in self._image.inputs:
            self._history.host_writes(self._range_of("Input", binding))
        # 2. Each instruction in issue order: fields, registers, addresses, hazards, FIFO pops.
        for issued in issue(self._image.instructions):
            self._step(issued)
        # 3. The state at the end: outputs are written, FIFOs are empty.
        for binding in self._image.outputs:
            self._host_reads("Output", binding)
        left = self._fifos.left()
        if left is not None:
            raise HazardError(left)
        # 4. Deadlocks. The walk needs the complete queues, so they are checked last.
        self._check_progress()

    def _step(self, issued: Issued) -> None:
        instruction = issued.instruction
        self._refuse(issued, fault_of(instruction), joint=": ")
        self._issued.append(issued)
        if instruction.unit is not None:
            self._of_unit(issued)
        elif isinstance(instruction, SetConfiguration):
            self._is_set.add(int(instruction.register))
        elif isinstance(instruction, Sync):
            self._clocks.sync(instruction.waiting, instruction.finished)
        elif isinstance(instruction, InterruptHost):
            self._interrupt(issued, instruction.number)
        elif isinstance(instruction, DebugTag) and self._image.tags and instruction.tag >= len(self._image.tags):
            count = len(self._image.tags)
            raise ChipError(f"Instruction {issued.number} marks part {instruction.tag}, and the image names {count}.")

    def _of_unit(self, issued: Issued) -> None:
        # The order matters: `accesses` divides by geometry registers, which must not be 0.
        _, instruction, registers, _ = issued
        design = self._image.design
        self._refuse(issued, fault_in_geometry(instruction, registers, self._is_set, design))
        touched = accesses(instruction, registers, design)
        self._check_accesses(issued, touched)
        if isinstance(instruction, Activate):
            self._refuse(issued, fault_in_overwrite(instruction, registers, touched), HazardError)
        self._refuse(issued, self._fifos.take(instruction, registers), HazardError)

    def _check_accesses(self, issued: Issued, touched: Accesses) -> None:
        number, instruction, _, _ = issued
        unit = instruction.unit
        assert unit is not None
        # 1. Addresses within the memories, and finite multipliers.
        for verb, places in (("reads", touched.reads), ("writes", touched.writes)):
            for place in places:
                size = self._sizes[place.memory]
                if place.start < 0 or place.stop > size:
                    self._refuse(issued, f"{verb} {range_text(*place)}, of which there are {size}.")
        self._refuse(issued, fault_in_multipliers(instruction, self._image.weights, self._image.design))
        # 2. Dependences on instructions that may not be done yet.
        self._clocks.issue(unit, number)
        touching = self._history.touch(number, unit, touched)
        most = MAX_RANGES + 16 * len(self._image.instructions)
        if self._history.walked > most:
            fault = (
                f"is where the accesses so far cover more than {most:,} ranges of addresses, the most that are checked "
                "of such a program. Write whole rows (OUT_UNITS = 0), or make two programs."
            )
            self._refuse(issued, fault)
        hazards = [
            found for found in touching if found.kind == "unwritten" or not self._clocks.is_done(found.earlier, unit)
        ]
        if hazards:
            raise HazardError(faults.hazards_text(self._image, issued, hazards, self._issued))

    def _interrupt(self, issued: Issued, number: int) -> None:
        services = self._image.services
        if number >= len(services):
            self._refuse(issued, f"asks for the host's step {number}, and the image has {len(services)}.")
        self._clocks.wait_for_all()
        service, here = services[number], f"At {faults.instruction_text(self._image, issued)}"
        for binding in service.inputs:
            if binding is not None:
                self._host_reads(f"{here}, input", binding)
        if service.output is not None:
            self._history.host_writes(self._range_of(f"{here}, output", service.output))

    def _host_reads(self, what: str, binding: Binding) -> None:
        place = self._range_of(what, binding)
        missing = self._history.first_unwritten(place)
        if missing is not None:
            raise HazardError(
                f"{what} {binding.tensor!r} is taken from {range_text(*place)}, and nothing has written byte "
                f"{missing}. Write it with write_host_memory."
            )

    def _range_of(self, what: str, binding: Binding) -> AddressRange:
        start = binding.host_address
        place = AddressRange(Memory.HOST, start, start + binding.total_bytes(self._image.batch))
        if place.stop > self._image.host_bytes:
            raise ChipError(
                f"{what} {binding.tensor!r} is at {range_text(*place)}, which has {self._image.host_bytes}."
            )
        return place

    def _check_ends(self) -> None:
        numbers = [n for n, instruction in enumerate(self._image.instructions) if isinstance(instruction, Halt)]
        last = len(self._image.instructions) - 1
        if not numbers:
            raise ChipError(f"The program {self._image.name!r} does not end: its last instruction must be a halt.")
        if numbers[0] != last:
            raise ChipError(
                f"Instruction {numbers[0]} is a halt, and {last - numbers[0]} more follow. A halt is the last."
            )

    def _check_progress(self) -> None:
        design = self._image.design
        stuck = first_stuck(queues_of(self._image.instructions, design), design.weight_fifo_tiles)
        if stuck is not None:
            fault = (
                "would wait forever (a deadlock): the item that it pops is requested after tiles that do not fit in "
                f"the weight FIFO of {design.weight_fifo_tiles}, and these tiles are popped only after it. "
                "Request weights in the order in which they are used."
            )
            self._refuse(self._issued[stuck.number], fault, HazardError)

    def _refuse(self, issued: Issued, fault: str | None, error: type[ChipError] = ChipError, joint: str = " ") -> None:
        if fault is not None:
            here = faults.instruction_text(self._image, issued, capitalized=True)
            raise error(f"{here}{joint}{fault}")
