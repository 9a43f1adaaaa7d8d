"""Which programs come to an end: the check, which counts, and the time model, which keeps every pass, agree."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from anytpu.chip.checking.progress import first_stuck
from anytpu.chip.isa.design import Design
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
from anytpu.chip.timing import model, time
from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.schedule import Schedule
from anytpu.chip.timing.work import queues_of
from anytpu.errors import ChipError, HazardError
from chip_samples import dense_image
from refusals import refusal


def drawn(rng: random.Random) -> Instruction:
    kinds = [
        ReadWeights(0, rng.randint(1, 4), rng.choice(["tile", "tile", "parameters", "table"])),
        MatrixMultiply(0, 0, 1, repeat=rng.randint(1, 4), keep=rng.random() < 0.5),
        Activate("scale", 0, 0, 1, keep=rng.random() < 0.3),
        Sync(rng.randint(0, 31), rng.randint(0, 31)),
    ]
    return rng.choices(kinds, [3, 2, 1, 2])[0]


def test_the_same_programs_end():
    rng, ends, wrong = random.Random(0), 0, []
    for number in range(2_000):
        design = Design(array=8, weight_fifo_tiles=rng.randint(1, 4))
        body = [drawn(rng) for _ in range(rng.randint(1, 14))]
        code = (SetConfiguration(Register.PITCH, 1), SetConfiguration(Register.OUT_PITCH, 1), *body, Halt())
        stuck = first_stuck(queues_of(code, design), design.weight_fifo_tiles)
        try:
            Schedule("random", queues_of(code, design), design, Latencies()).run()
            told = "None"
        except HazardError as error:
            told = str(error).split()[1]
        ends += stuck is None
        if told != str(stuck and stuck.number):
            wrong.append((number, told, stuck, body))
    assert wrong == []
    assert 400 < ends < 1_600


def test_repeats_are_counted_and_not_stored():
    queues = queues_of((ReadWeights(0, 255), MatrixMultiply(0, 0, 1, repeat=255)) * 4_000, Design())
    tracemalloc.start()
    try:
        assert first_stuck(queues, 4) is None
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


def test_passes_that_are_timed_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model, "MAX_PASSES", 3)
    time(dense_image(), back_to_back=True)
    monkeypatch.setattr(model, "MAX_PASSES", 2)
    assert refusal(ChipError, time, dense_image()) == (
        f"The program {dense_image().name!r} has 3 passes and reads of weights, and 2 is the most that is timed. "
        "Time a program for a smaller batch."
    )
