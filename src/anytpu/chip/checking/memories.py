"""`CheckedMemories`: sizes and access histories of a chip's memories while a program is checked."""

from __future__ import annotations

from anytpu.chip.checking import faults
from anytpu.chip.checking.bindings import fault_in_bindings
from anytpu.chip.checking.clocks import QueuePosition, VectorClocks
from anytpu.chip.checking.history import Conflict, MemoryHistory
from anytpu.chip.checking.parameters import fault_in_multipliers
from anytpu.chip.image.image import Binding, Image
from anytpu.chip.isa.accesses import Accesses, AddressRange, Memory, range_text
from anytpu.chip.isa.design import BLOCK_BYTES
from anytpu.chip.isa.issue import Issued
from anytpu.errors import ChipError, HazardError

_TABLES = 256
_HOST = QueuePosition(-1, 0, -1)


class CheckedMemories:
    """The accesses to each address of each memory, and the happens-before order of the instructions."""

    def __init__(self, image: Image):
        self._image = image
        self._clocks = VectorClocks()
        self._seen: list[Issued] = []
        self._sizes = {
            Memory.HOST: image.host_bytes,
            Memory.BUFFER: image.design.buffer_units,
            Memory.ACCUMULATORS: image.design.accumulator_rows,
            Memory.WEIGHTS: -(-len(image.weights) // BLOCK_BYTES),
            Memory.TABLES: _TABLES,
        }
        # The Weight Memory is read-only, so accesses to it never conflict.
        ordered = [memory for memory in Memory if memory is not Memory.WEIGHTS]
        self._histories = {memory: MemoryHistory(self._sizes[memory], self._clocks.is_done) for memory in ordered}

    def take_inputs(self) -> None:
        """Record that the host writes the inputs into its buffer.

        Raises:
            ChipError: the inputs or outputs contradict each other, or an input reaches past the end of the buffer.
        """
        fault = fault_in_bindings(self._image)
        if fault is not None:
            raise ChipError(fault)
        for binding in self._image.inputs:
            self.host_writes("Input", binding)

    def see(self, issued: Issued) -> None:
        """Record that an instruction is issued. Instructions arrive in order, numbered from 0."""
        self._seen.append(issued)

    def sync(self, waiting: int, finished: int) -> None:
        """Make the units of mask `waiting` wait for those of mask `finished`."""
        self._clocks.sync(waiting, finished)

    def wait_for_all(self) -> None:
        """Let all units finish."""
        self._clocks.wait_for_all()

    def touch(self, issued: Issued, touched: Accesses) -> tuple[int, ...]:
        """Record the reads and writes of the last issued instruction.

        Returns:
            For each unit, the number of its instructions that must be done before it starts.

        Raises:
            ChipError: an address is outside of its memory, or a multiplier that is read is not finite.
            HazardError: it reads unwritten memory, or conflicts with an access of another unit.
        """
        unit = issued.instruction.unit
        assert unit is not None
        # 1. The position of the instruction in its queue, and so its happens-before relations.
        position = self._clocks.issue(unit, issued.number)
        # 2. Addresses within the memories, and finite multipliers.
        for verb, ranges in (("reads", touched.reads), ("writes", touched.writes)):
            for addresses in ranges:
                self._check_size(issued, addresses, verb)
        fault = fault_in_multipliers(issued.instruction, self._image.weights, self._image.design)
        if fault is not None:
            here = faults.instruction_text(self._image, issued, capitalized=True)
            raise ChipError(f"{here} {fault}")
        # 3. Conflicts with earlier accesses. Reads come first, so that an in-place read does not see its own write.
        conflicts: list[tuple[Memory, Conflict]] = []
        for addresses in touched.reads:
            if addresses.memory is not Memory.WEIGHTS:
                hazards = self._histories[addresses.memory].read(addresses.start, addresses.stop, position)
                conflicts += [(addresses.memory, conflict) for conflict in hazards]
        for addresses in touched.writes:
            hazards = self._histories[addresses.memory].write(addresses.start, addresses.stop, position)
            conflicts += [(addresses.memory, conflict) for conflict in hazards]
        if conflicts:
            others = {c.earlier.number: self._seen[c.earlier.number] for _, c in conflicts if c.earlier is not None}
            raise HazardError(faults.conflicts_text(self._image, issued, conflicts, others))
        return self._clocks.waits_of(unit)

    def host_writes(self, what: str, binding: Binding) -> None:
        """Record that the host writes a tensor into its buffer, while all units are idle.

        Raises:
            ChipError: the tensor reaches past the end of the buffer.
        """
        address_range = self._range_of(what, binding)
        self._histories[Memory.HOST].write(address_range.start, address_range.stop, _HOST)

    def host_reads(self, what: str, binding: Binding) -> None:
        """Check that a tensor that the host reads was written to its buffer.

        Raises:
            ChipError: the tensor reaches past the end of the buffer.
            HazardError: a part of the tensor was not written.
        """
        address_range = self._range_of(what, binding)
        missing = self._histories[Memory.HOST].first_unwritten(address_range.start, address_range.stop)
        if missing is not None:
            raise HazardError(
                f"{what} {binding.tensor!r} is taken from {range_text(*address_range)}, and nothing has written byte "
                f"{missing}. Write it with write_host_memory."
            )

    def _range_of(self, what: str, binding: Binding) -> AddressRange:
        start = binding.host_address
        address_range = AddressRange(Memory.HOST, start, start + binding.total_bytes(self._image.batch))
        if address_range.stop > self._image.host_bytes:
            raise ChipError(
                f"{what} {binding.tensor!r} is at {range_text(*address_range)}, which has {self._image.host_bytes}."
            )
        return address_range

    def _check_size(self, issued: Issued, address_range: AddressRange, verb: str) -> None:
        size = self._sizes[address_range.memory]
        if address_range.start < 0 or address_range.stop > size:
            here = faults.instruction_text(self._image, issued, capitalized=True)
            raise ChipError(f"{here} {verb} {range_text(*address_range)}, of which there are {size}.")
