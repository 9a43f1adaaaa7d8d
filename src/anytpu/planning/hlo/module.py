"""`Module`: an optimized HLO module. `parse` reads one from the compiler's text.

Idea: a user of a module walks over `module.entry`, in order of execution. For each instruction it asks the module for
its products, its trip count, and its line in the user's program.

Rule: numbers are those of one device and one execution.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from anytpu.errors import PlanError
from anytpu.planning.hlo import loops
from anytpu.planning.hlo.aliases import donated_results
from anytpu.planning.hlo.flops import products_of
from anytpu.planning.hlo.frames import Frames, SourceLine
from anytpu.planning.hlo.instruction import Computation, Instruction, Shape
from anytpu.planning.hlo.loops import CalledFrom

__all__ = ["Computation", "Instruction", "Module", "Shape", "SourceLine"]

_STEPPED_INTO = ("while", "call", "conditional", "async-start")


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """A compiled program.

    Attributes:
        name: "jit_step".
        header: the first line of the text, with the layouts of the arguments and the aliases.
        num_partitions: number of devices.
        is_scheduled: whether instructions are in order of execution.
        computations: computations by name; each is read when it is first used.
        entry_name: name of the computation that runs first.
        frames: the stack frames.
    """

    name: str
    header: str = dataclasses.field(repr=False)
    num_partitions: int
    is_scheduled: bool
    computations: Mapping[str, Computation] = dataclasses.field(repr=False)
    entry_name: str
    frames: Frames = dataclasses.field(repr=False)

    @property
    def entry(self) -> Computation:
        """The computation that runs first."""
        return self.computations[self.entry_name]

    @property
    def donated(self) -> dict[int, int]:
        """The argument whose memory each flattened result takes over, both by index."""
        return donated_results(self.header)

    def source_of(self, instruction: Instruction) -> SourceLine | None:
        """Return the innermost source line of the user's own for an instruction, or None.

        Lines of Python's library, of installed packages and of anytpu are not the user's. Neither is the line that
        called for the plan.
        """
        return self.frames.source(instruction.frame) if instruction.frame is not None else None

    def flops_of(self, instruction: Instruction) -> float:
        """Return 2 for each multiplication of the dots and convolutions inside an instruction, loops counted once."""
        return float(sum(self.flops_by_dtype(instruction).values()))

    def flops_by_dtype(self, instruction: Instruction) -> dict[str, float]:
        """Return the same by the type that the matrix units multiply: {"bf16": 2.1e9}.

        float32 is "bf16" at the default precision, "bf16x3" (three passes) at "high" and "bf16x6" at "highest".
        """
        flops: dict[str, float] = {}
        for product in products_of(self.computations, instruction, self.home_of(instruction)):
            flops[product.dtype] = flops.get(product.dtype, 0.0) + product.flops
        return flops

    def trip_count(self, loop: Instruction) -> int | None:
        """Return the trip count of a `while`, or None if the text does not state it."""
        place = self._places.get(loop.name)
        return loops.trip_count(self.computations, place) if place else None

    def home_of(self, instruction: Instruction) -> Computation:
        """Return the computation of an instruction.

        Raises:
            PlanError: it is not of this module.
        """
        place = self._places.get(instruction.name)
        if place:
            return place.computation
        for computation in self.computations.values():
            if instruction.name in computation.instructions:
                return computation
        raise PlanError(f"{instruction.name!r} is not an instruction of the module {self.name!r}")

    @functools.cached_property
    def _places(self) -> dict[str, CalledFrom]:
        """Every instruction that is executed by itself, by name, in its context."""
        places: dict[str, CalledFrom] = {}
        waiting: list[tuple[Computation, CalledFrom | None]] = [(self.entry, None)]
        while waiting:
            computation, caller = waiting.pop()
            for instruction in computation.instructions.values():
                if instruction.name in places:
                    continue
                places[instruction.name] = place = CalledFrom(computation, instruction, caller)
                if instruction.opcode in _STEPPED_INTO:
                    waiting += [(self.computations[name], place) for name in instruction.called]
        return places
