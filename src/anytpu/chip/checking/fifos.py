"""`FifoCounts`: the items requested from the Weight Memory, and those popped.

Rule: FIFOs order themselves, so no `Sync` is needed. But each item is popped once, in the order of the reads, by an
instruction issued after its `ReadWeights`. At the end no item is left.
"""

from __future__ import annotations

from anytpu.chip.isa.accesses import parameters_popped, tiles_popped
from anytpu.chip.isa.instructions import Activate, ArrayInstruction, Instruction, ReadWeights
from anytpu.chip.isa.issue import Registers
from anytpu.chip.isa.registers import Register


class FifoCounts:
    """The weight FIFO, the parameter FIFO and the tables, without their contents."""

    def __init__(self) -> None:
        self._read = {"tile": 0, "parameters": 0}
        self._taken = {"tile": 0, "parameters": 0}
        self._is_wide: dict[int, bool] = {}

    def take(self, instruction: Instruction, registers: Registers) -> str | None:
        """Note an instruction's reads and pops; return its fault, as the rest of a sentence, or None."""
        if isinstance(instruction, ReadWeights):
            if instruction.kind == "table":
                slots = range(instruction.slot, instruction.slot + instruction.count)
                self._is_wide |= dict.fromkeys(slots, instruction.wide)
            else:
                self._read[instruction.kind] += instruction.count
        elif isinstance(instruction, ArrayInstruction):
            return self._pop("tile", tiles_popped(instruction), instruction.keep)
        elif isinstance(instruction, Activate):
            keeps = instruction.keep and instruction.operation == "scale"
            return self._pop("parameters", parameters_popped(instruction), keeps) or self._look_up(
                instruction, registers
            )
        return None

    def left(self) -> str | None:
        """Return the fault of items left at the end, as a sentence, or None."""
        for kind, fifo, popper in (
            ("tile", "weight FIFO", "the products pop"),
            ("parameters", "parameter FIFO", "activate.scale pops"),
        ):
            if self._read[kind] != self._taken[kind]:
                return (
                    f"The program ends with something in the {fifo}, which its next run would take for its own: "
                    f"read_weights.{kind} sends for {self._read[kind]}, and {popper} {self._taken[kind]}."
                )
        return None

    def _pop(self, kind: str, count: int, keeps: bool) -> str | None:
        if keeps and not self._taken[kind]:
            return f"keeps the last {kind}, and none was taken before. Leave out .keep."
        there = self._read[kind] - self._taken[kind]
        if count > there:
            return (
                f"takes {count} from the FIFO (read_weights.{kind}), where what was issued before leaves {there}. "
                "Read more before it."
            )
        self._taken[kind] += count
        return None

    def _look_up(self, instruction: Activate, registers: Registers) -> str | None:
        table = int(registers[Register.TABLE])
        is_wide = self._is_wide.get(table)
        if not instruction.table or is_wide is None or is_wide == instruction.wide_out:
            return None  # `AccessHistory` reports a table that nothing filled, like any unwritten memory.
        bits = {True: "16 bits", False: "8 bits"}
        return f"looks {bits[not is_wide]} up in table {table}, which was read as one of {bits[is_wide]}."
