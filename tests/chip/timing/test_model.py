import dataclasses
import math

import hypothesis
import hypothesis.strategies as st
import pytest

from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.isa.instructions import (
    Activate,
    DebugTag,
    Instruction,
    InterruptHost,
    MatrixMultiply,
    ReadHostMemory,
    ReadWeights,
    Sync,
    WriteHostMemory,
)
from anytpu.chip.isa.units import Unit
from anytpu.chip.timing import Latencies, Timing, time
from anytpu.errors import HazardError, SettingError
from literal_timing import Literal
from refusals import refusal
from timing_samples import TINY, dense, image_of, sync


def causes(t: Timing) -> dict[str, float]:
    return {"active": t.active_cycles, "stall": t.stall_cycles, "shift": t.shift_cycles, "other": t.other_cycles}


def fifty_tiles(rows: int, wide: bool = False, design: Design = TPU_V1) -> Timing:
    program = [ReadWeights(0, 50), MatrixMultiply(0, 0, rows, repeat=50, wide=wide)]
    return time(image_of(program, design), back_to_back=True)


@pytest.mark.parametrize(("rows", "wide"), [(1, False), (200, False), (64, True), (96, True), (1000, False)])
def test_a_tile_that_is_waited_for_costs_its_fetch(rows: int, wide: bool):
    t, active = fifty_tiles(rows, wide), rows * (2 if wide else 1)
    fetch = TPU_V1.tile_cycles
    assert t.cycles == pytest.approx(50 * fetch, abs=1)
    assert (t.active_cycles, t.shift_cycles, t.other_cycles) == (50 * active, 50 * min(256, 1349 - active), 0)
    assert t.stall_cycles == pytest.approx(50 * (fetch - active - 256), abs=1)


def test_rows_enough_hide_the_fetch_and_the_shift():
    t = fifty_tiles(1350)
    assert causes(t) == {"active": 50 * 1350, "stall": 0, "shift": 0, "other": 0}
    quick = Design(weight_bytes_per_s=1e12)
    assert causes(fifty_tiles(200, design=quick)) == {"active": 50 * 200, "stall": 0, "shift": 50 * 56, "other": 0}


def test_the_matrix_of_600_x_600_takes_as_long_as_the_paper_says():
    program = [ReadWeights(0, 9), MatrixMultiply(0, 0, rows=96, repeat=9)]
    assert time(image_of(program)).time_s == pytest.approx(18e-6, rel=0.05)
    larger = Design(array=512)
    program = [ReadWeights(0, 4), MatrixMultiply(0, 0, rows=96, repeat=4)]
    assert time(image_of(program, larger), back_to_back=True).time_s == pytest.approx(32e-6, rel=0.05)


def test_each_time_of_a_small_program_by_hand():
    program = [
        ReadHostMemory(0, 0, 50),  # 0 to 50
        DebugTag(0),
        ReadWeights(0, 2),  # come at 32 and 64, shifted in at 40; at 72, behind the first pass
        ReadWeights(0, 1, kind="parameters"),  # at 96
        sync(Unit.MATRIX, Unit.READ),
        MatrixMultiply(0, 0, 5, repeat=2),  # 50 to 55; stall to 64, shift to 72; 72 to 77; results at 77 + 16
        sync(Unit.ACTIVATE, Unit.MATRIX),
        Activate("scale", 0, 0, 5),  # results at 93, parameters at 96: 96 to 101
        DebugTag(1),
        ReadWeights(0, 1),  # at 128, shifted in at 136
        sync(Unit.MATRIX, Unit.ACTIVATE),
        MatrixMultiply(0, 0, 10),  # held to 101, stall to 128, shift to 136; 136 to 146; results at 162
        sync(Unit.ACTIVATE, Unit.MATRIX),
        Activate("scale", 0, 0, 10, keep=True, wide_out=True),  # 162 to 182
        sync(Unit.WRITE, Unit.ACTIVATE),
        WriteHostMemory(0, 0, 3),  # 182 to 185
    ]
    t = time(image_of(program, TINY), events=True)
    assert t.cycles == 185
    assert causes(t) == {"active": 20, "stall": 9 + 27, "shift": 8 + 8, "other": 50 + 24 + 39}
    assert (t.input_wait_cycles, t.data_wait_cycles) == (50, 24)
    assert (t.weight_bytes, t.input_bytes, t.output_bytes) == (4 * 64, 50 * 32, 3 * 32)
    assert [(p.name, p.active_cycles, p.stall_cycles, p.shift_cycles, p.other_cycles) for p in t.parts] == [
        ("part 0", 10, 9, 8, 50 + 16 + 5),
        ("part 1", 10, 27, 8, 3 + 39),
    ]
    # Until 93 the sums of part 0 come out of the array; from 96 to 101 they are activated.
    assert t.spans == ((0, 93, 0), (93, 96, 1), (96, 101, 0), (101, 185, 1))
    assert [(p.macs, p.weight_bytes) for p in t.parts] == [(1000, 192), (2000, 64)]
    seen = [(e.unit.name, e.start_cycles, e.stop_cycles, e.kind, e.tag, e.instruction) for e in t.events]
    assert seen == [
        ("READ", 0, 50, "ReadHostMemory", -1, 0),
        ("WEIGHTS", 0, 32, "fetch", 0, 2),
        ("WEIGHTS", 32, 64, "fetch", 0, 2),
        ("WEIGHTS", 64, 96, "parameters", 0, 3),
        ("WEIGHTS", 96, 128, "fetch", 1, 9),
        ("MATRIX", 0, 50, "held", 0, 5),
        ("MATRIX", 32, 40, "shift", 0, 5),
        ("MATRIX", 50, 55, "MatrixMultiply", 0, 5),
        ("MATRIX", 55, 64, "stall", 0, 5),
        ("MATRIX", 64, 72, "shift", 0, 5),
        ("MATRIX", 72, 77, "MatrixMultiply", 0, 5),
        ("MATRIX", 77, 101, "held", 1, 11),
        ("MATRIX", 101, 128, "stall", 1, 11),
        ("MATRIX", 128, 136, "shift", 1, 11),
        ("MATRIX", 136, 146, "MatrixMultiply", 1, 11),
        ("ACTIVATE", 96, 101, "Activate", 0, 7),
        ("ACTIVATE", 162, 182, "Activate", 1, 13),
        ("WRITE", 182, 185, "WriteHostMemory", 1, 15),
    ]


def test_the_fifo_holds_back_the_fetches():
    program = [ReadHostMemory(0, 0, 500), ReadWeights(0, 6), sync(Unit.MATRIX, Unit.READ)]
    t = time(image_of([*program, MatrixMultiply(0, 0, 1, repeat=6)], TINY), events=True)
    # Four places: the first is free again at 40, when the array's second plane has its tile; then all are full.
    assert [e.start_cycles for e in t.events if e.kind == "fetch"] == [0, 32, 64, 96, 128, 508]


FREE = st.integers(0, 31)


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    """Any order of any instructions; tiles and parameters are sent for in any order too."""
    program: list[Instruction] = []
    for _ in range(draw(st.integers(1, 14))):
        rows = draw(st.integers(1, 40))
        keep = draw(st.booleans())
        repeat = draw(st.integers(1, 4))
        kind = draw(st.integers(0, 9))
        program.append(
            [
                ReadHostMemory(0, 0, rows),
                WriteHostMemory(0, 0, rows),
                ReadWeights(0, repeat),
                ReadWeights(0, repeat),
                ReadWeights(0, 1, kind="parameters"),
                MatrixMultiply(0, 0, rows, repeat, keep=keep, wide=draw(st.booleans())),
                MatrixMultiply(0, 0, rows, repeat),
                Activate("scale", 0, 0, rows, keep=keep),
                ReadWeights(0, repeat, kind="table"),
                InterruptHost(0),
            ][kind]
        )
        if draw(st.booleans()):
            program.append(Sync(draw(FREE), draw(FREE)))
    return program


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(programs(), st.sampled_from([1.0, 2.0, 8.0, 32.0]), st.integers(1, 4), st.sampled_from([0, 5]))
def test_causes_are_those_of_units_that_move_cycle_by_cycle(
    program: list[Instruction], rate: float, places: int, cycles: int
):
    design = dataclasses.replace(TINY, weight_bytes_per_s=rate, weight_fifo_tiles=places)
    image = image_of(program, design)
    literal = Literal(image, design, drain=3 * cycles, sync=cycles)
    expected = literal.run(most_cycles=4000)
    try:
        t = time(image, latencies=Latencies(drain_cycles=3 * cycles, sync_cycles=cycles))
    except HazardError:
        assert expected is None
        return
    assert t.cycles == expected
    assert causes(t) == {name: literal.causes[name] for name in ("active", "stall", "shift", "other")}


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(1, 1500),
    st.floats(1e9, 1e12),
    st.booleans(),
    st.booleans(),
)
def test_causes_and_parts_add_up_exactly(tiles: list[int], batch: int, rate: float, wide: bool, back_to_back: bool):
    design = Design(weight_bytes_per_s=rate, host_bytes_per_s=rate / 3)
    t = time(image_of(dense(batch, tiles, batch, wide), design), back_to_back=back_to_back)
    assert sum(causes(t).values()) == t.cycles
    for name in ("active_cycles", "stall_cycles", "shift_cycles", "other_cycles", "macs", "weight_bytes"):
        assert sum(getattr(part, name) for part in t.parts) == getattr(t, name)
    assert min(causes(t).values()) >= 0
    assert t.capacity_macs == 65536 * t.active_cycles
    assert t.byte_macs == t.macs * (2 if wide else 1)


@pytest.mark.parametrize("units", [10, 4000])
def test_back_to_back_the_next_input_comes_while_this_one_is_worked_on(units: int):
    image = image_of(dense(200, [20, 20], units), batch=200)
    alone, many = time(image), time(image, back_to_back=True)
    link = units * 32 / TPU_V1.host_bytes_per_s * TPU_V1.clock_hz
    # The second layer's tiles fill the FIFO while the first layer's results are waited for, so no fetch is lost.
    fetches = 40 * TPU_V1.tile_cycles + 2 * 2048 / 34e9 * 700e6
    assert many.cycles == pytest.approx(max(fetches, link), abs=2)
    # By itself it waits for its input, while four tiles come, and ends when its output is there.
    assert alone.cycles > many.cycles + 2 * link - 4 * TPU_V1.tile_cycles
    assert alone.input_wait_cycles == math.ceil(link)
    assert many.back_to_back
    assert not alone.back_to_back
    assert (many.weight_bytes, many.input_bytes, many.output_bytes) == (
        alone.weight_bytes, alone.input_bytes, alone.output_bytes
    )  # fmt: skip


def test_a_link_slower_than_the_work_sets_the_pace():
    image = image_of(dense(200, [2], 40000))
    t = time(image, back_to_back=True)
    assert t.cycles == math.ceil(40000 * 32 / TPU_V1.host_bytes_per_s * TPU_V1.clock_hz)
    assert t.input_wait_cycles > 0.9 * t.cycles


def test_a_pool_has_its_own_cycles_and_not_the_next_layer():
    pool = [DebugTag(1), sync(Unit.ACTIVATE, Unit.MATRIX), Activate("copy", 0, 0, 3000)]
    program = [*dense(10, [1])[:-2], *pool, DebugTag(2), ReadWeights(0, 1), sync(Unit.MATRIX, Unit.ACTIVATE)]
    t = time(image_of([*program, MatrixMultiply(0, 0, 10)]))
    assert [part.other_cycles for part in t.parts][1] == 3000
    assert t.data_wait_cycles > 3000


def test_a_program_without_products():
    t = time(
        image_of([DebugTag(0), ReadHostMemory(0, 0, 7), sync(Unit.WRITE, Unit.READ), WriteHostMemory(0, 0, 7)], TINY)
    )
    assert causes(t) == {"active": 0, "stall": 0, "shift": 0, "other": 14}
    many = time(image_of([ReadHostMemory(0, 0, 7), WriteHostMemory(0, 0, 7)], TINY), back_to_back=True)
    assert many.cycles == 7
    assert time(image_of([])).cycles == 0


def test_latencies():
    image = image_of(dense(10, [1, 1]), dataclasses.replace(TINY, weight_bytes_per_s=1e6))
    plain = time(image, latencies=Latencies(drain_cycles=0)).cycles
    assert time(image, latencies=Latencies(drain_cycles=100)).cycles == plain + 200
    assert time(image, latencies=Latencies(drain_cycles=0, batch_s=7.5)).cycles == plain + 8
    with_syncs = time(image, latencies=Latencies(drain_cycles=0, sync_cycles=1000)).cycles
    assert with_syncs > plain + 4000  # each of two layers twice, and the output


def test_a_chip_that_the_program_was_not_compiled_for():
    assert refusal(SettingError, time, image_of([]), design=Design(array=512)) == (
        "'sample' was compiled for a chip with array 256, not 512: compile it for the other chip, and time that."
    )
    assert refusal(SettingError, time, image_of([]), events=True, back_to_back=True) == (
        "Events are those of one batch alone: ask for events or for back_to_back, not for both."
    )


WHY = (
    "would wait forever: the work that it waits for is not requested, or is queued after work that waits for it. "
    "Request all weights, in the order in which they are used, and put a Sync only after the work that it waits for; "
    "or increase weight_fifo_tiles, which is 4."
)
STUCK = [
    ([ReadWeights(0, 2), MatrixMultiply(0, 0, 1, repeat=3)], f"Instruction 1 of 'sample' (MatrixMultiply) {WHY}"),
    ([Activate("scale", 0, 0, 1)], f"Instruction 0 of 'sample' (Activate) {WHY}"),
    ([ReadWeights(0, 1), sync(Unit.WEIGHTS, Unit.MATRIX), MatrixMultiply(0, 0, 1), MatrixMultiply(0, 0, 1),
      sync(Unit.WEIGHTS, Unit.MATRIX), ReadWeights(0, 1)], f"Instruction 3 of 'sample' (MatrixMultiply) {WHY}"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "message"), STUCK)
def test_a_program_that_would_wait_for_ever(program: list[Instruction], message: str):
    assert refusal(HazardError, time, image_of(program)) == message


def test_latencies_that_make_no_sense():
    assert (
        refusal(SettingError, Latencies, sync_cycles=-1)
        == "sync_cycles of the time model must be a number of 0 or more, not -1."
    )
    with pytest.raises(SettingError) as error:
        Latencies(batch_s=None)  # type: ignore[arg-type]
    assert str(error.value) == "batch_s of the time model must be a number of 0 or more, not None."
