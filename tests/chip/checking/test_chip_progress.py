"""Which programs come to an end: the checker and the time model agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.checking.progress import Progress
from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.hazards import VectorClocks
from anytpu.chip.isa.instructions import (
    Activate,
    Halt,
    Instruction,
    MatrixMultiply,
    ReadWeights,
    SetConfiguration,
    Sync,
)
from anytpu.chip.isa.registers import Register
from anytpu.chip.timing import time
from anytpu.errors import HazardError

DESIGN = Design(array=8, weight_fifo_tiles=2)
READS = st.builds(ReadWeights, st.just(0), st.integers(1, 4), st.sampled_from(["tile", "parameters", "table"]))
PRODUCTS = st.builds(MatrixMultiply, st.just(0), st.just(0), st.just(1), st.integers(1, 4), keep=st.booleans())
SCALES = st.just(Activate("scale", 0, 0, 1))
SYNCS = st.builds(Sync, st.sampled_from([2, 4, 8, 12, 31]), st.sampled_from([2, 4, 8, 12, 31]))


def is_stuck(instructions: list[Instruction]) -> bool:
    clocks, progress = VectorClocks(), Progress(DESIGN.weight_fifo_tiles)
    for number, instruction in enumerate(instructions):
        if isinstance(instruction, Sync):
            clocks.sync(instruction.waiting, instruction.finished)
        elif instruction.unit is not None:
            clocks.issue(instruction.unit, number)
            progress.issue(number, instruction, clocks.waits_of(instruction.unit))
    return progress.stuck() is not None


def never_ends(instructions: list[Instruction]) -> bool:
    code = (SetConfiguration(Register.PITCH, 1), SetConfiguration(Register.OUT_PITCH, 1), *instructions, Halt())
    try:
        time(Image("random", code, np.zeros(2048, np.uint8), design=DESIGN))
    except HazardError:
        return True
    return False


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(READS, READS, PRODUCTS, SCALES, SYNCS), max_size=14))
def test_the_same_programs_end(instructions: list[Instruction]):
    assert is_stuck(instructions) == never_ends(instructions)


def test_it_is_no_matter_of_all_or_nothing():
    blocked: list[Instruction] = [ReadWeights(0, 5), ReadWeights(0, 1, "parameters"), Activate("scale", 0, 0, 1)]
    assert is_stuck([*blocked, Sync(4, 8), MatrixMultiply(0, 0, 1, repeat=5)])
    assert not is_stuck([*blocked, MatrixMultiply(0, 0, 1, repeat=5)])
