"""`check`: walks a program in issue order, and reports invalid instructions and hazards.

Idea: units run in parallel, so a program with a hazard may be right in one run and wrong in the next. The queues and
`Sync` alone define happens-before (`clocks.py`). The instructions and the registers define the addresses that each
instruction accesses (`isa/accesses.py`). So one walk finds every missing Sync, without running anything.

Rule: instructions are checked in issue order. A written value is available to every later instruction that is ordered
after the write. Two instructions of different units that access the same address, at least one of them to write it,
need a Sync between them.
"""

from __future__ import annotations

from anytpu.chip.checking import faults
from anytpu.chip.checking.fetched import FifoCounts
from anytpu.chip.checking.geometry import fault_in_geometry, fault_in_overwrite
from anytpu.chip.checking.memories import CheckedMemories
from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import accesses
from anytpu.chip.isa.encoding import fault_of
from anytpu.chip.isa.instructions import Activate, DebugTag, Halt, InterruptHost, SetConfiguration, Sync
from anytpu.chip.isa.issue import Issued, issue
from anytpu.errors import ChipError, HazardError


def check(image: Image) -> None:
    """Check that a program can run, and that its results do not depend on timing.

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
    _ProgramChecker(image).run()


class _ProgramChecker:
    def __init__(self, image: Image):
        self._image = image
        self._memories = CheckedMemories(image)
        self._fetched = FifoCounts(image.design)
        self._is_set: set[int] = set()

    def run(self) -> None:
        # 1. Checks of the whole program, and the inputs that the host writes before the start.
        self._check_ends()
        self._memories.take_inputs()
        # 2. Each instruction in issue order: fields, registers, addresses, hazards, FIFO pops.
        for issued in issue(self._image.instructions):
            self._step(issued)
        # 3. The state at the end: outputs are written, FIFOs are empty.
        for binding in self._image.outputs:
            self._memories.host_reads("Output", binding)
        left = self._fetched.left()
        if left is not None:
            raise HazardError(left)
        # 4. Deadlocks. They need the complete queues, so they are checked last.
        self._check_progress()

    def _step(self, issued: Issued) -> None:
        instruction = issued.instruction
        self._refuse(issued, fault_of(instruction), joint=": ")
        self._memories.see(issued)
        if instruction.unit is not None:
            self._of_unit(issued)
        elif isinstance(instruction, SetConfiguration):
            self._is_set.add(int(instruction.register))
        elif isinstance(instruction, Sync):
            self._memories.sync(instruction.waiting, instruction.finished)
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
        waits = self._memories.touch(issued, touched)
        if isinstance(instruction, Activate):
            self._refuse(issued, fault_in_overwrite(instruction, registers, touched), HazardError)
        self._refuse(issued, self._fetched.take(issued, waits), HazardError)

    def _interrupt(self, issued: Issued, number: int) -> None:
        services = self._image.services
        if number >= len(services):
            fault = f"asks for the host's step {number}, and the image has {len(services)}."
            self._refuse(issued, fault)
        self._memories.wait_for_all()
        service = services[number]
        for binding in service.inputs:
            if binding is not None:
                self._memories.host_reads(f"At {faults.instruction_text(self._image, issued)}, input", binding)
        if service.output is not None:
            self._memories.host_writes(f"At {faults.instruction_text(self._image, issued)}, output", service.output)

    def _check_ends(self) -> None:
        numbers = [n for n, instruction in enumerate(self._image.instructions) if isinstance(instruction, Halt)]
        last = len(self._image.instructions) - 1
        if not numbers:
            raise ChipError(f"The program {self._image.name!r} does not end: its last instruction must be a halt.")
        if numbers[0] != last:
            raise ChipError(
                f"Instruction {numbers[0]} is a halt, and {last - numbers[0]} more follow. A halt is the last."
            )
        weights_bytes, memory_bytes = len(self._image.weights), self._image.design.weight_memory_bytes
        if weights_bytes > memory_bytes:
            raise ChipError(
                f"The weights of {self._image.name!r} take {weights_bytes:,} bytes, and the Weight Memory has "
                f"{memory_bytes:,}."
            )

    def _check_progress(self) -> None:
        stuck = self._fetched.stuck()
        if stuck is not None:
            issued = next(issued for issued in issue(self._image.instructions) if issued.number == stuck)
            fault = (
                "would wait forever (a deadlock): the item that it pops is requested after tiles that do not fit in "
                f"the weight FIFO of {self._image.design.weight_fifo_tiles}, and these tiles are popped only after it. "
                "Request weights in the order in which they are used."
            )
            self._refuse(issued, fault, HazardError)

    def _refuse(self, issued: Issued, fault: str | None, error: type[ChipError] = ChipError, joint: str = " ") -> None:
        if fault is not None:
            here = faults.instruction_text(self._image, issued, capitalized=True)
            raise error(f"{here}{joint}{fault}")
