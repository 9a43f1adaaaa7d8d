import dataclasses
import json

import numpy as np
import pytest

from anytpu.chip.graph.nodes import HostStep
from anytpu.chip.image.image import Service, Tag
from anytpu.chip.isa.design import TPU_V1
from anytpu.chip.isa.instructions import Activate, InterruptHost, SetConfiguration
from anytpu.chip.isa.registers import Register
from anytpu.chip.isa.units import Unit
from anytpu.chip.timing import Timing, time
from timing_samples import TINY, dense, image_of, sync

PAPER = {  # batch, bytes an activation, rows 1, 4, 5, 6 of Table 3
    "MLP0": (200, 1, 12.7, 53.9, 15.9, 17.5),
    "MLP1": (168, 1, 10.6, 44.2, 13.4, 31.9),
    "LSTM0": (64, 2, 8.2, 58.1, 15.8, 17.9),
    "LSTM1": (96, 2, 10.5, 62.1, 17.1, 10.3),
}


@pytest.mark.parametrize("application", PAPER)
def test_counters_of_the_paper_given_the_time_that_the_matrix_unit_is_idle(application: str):
    batch, size, *measured, other = PAPER[application]
    image = image_of(dense(batch, [50], wide=size == 2), batch=batch)
    t = time(image, back_to_back=True)
    busy = t.active_cycles + t.stall_cycles + t.shift_cycles
    shares = [(100 - other) * one / busy for one in (t.active_cycles, t.stall_cycles, t.shift_cycles)]
    assert shares == pytest.approx(measured, abs=3)


def sample() -> Timing:
    tags = (Tag("dense", macs=200 * 2000 * 2000),)
    return time(dataclasses.replace(image_of(dense(200, [64], 400), batch=200), tags=tags))


def test_rates_follow_from_cycles():
    t = sample()
    assert t.time_s == t.cycles / 700e6
    assert t.examples_per_s == pytest.approx(200 / t.time_s)
    assert t.server_examples_per_s == 4 * t.examples_per_s
    assert t.ops_per_s == pytest.approx(2 * 200 * 2000 * 2000 / t.time_s)
    assert t.useful_share == pytest.approx(t.ops_per_s / t.design.peak_ops_per_s)
    assert t.useful_share + t.unused_share == pytest.approx(t.active_cycles / t.cycles)
    assert t.unused_share / t.useful_share == pytest.approx(64 * 65536 / 2000**2 - 1)


def test_the_link_has_its_own_time():
    t = sample()
    assert t.host_s == 2 * 400 * 32 / (10 * 2**30)
    assert t.host_share == t.host_s / t.time_s
    assert t.host_steps == ()


def test_nothing_takes_no_time_and_divides_by_nothing():
    t = time(image_of([]))
    assert (t.time_s, t.examples_per_s, t.ops_per_s, t.useful_share, t.unused_share, t.host_share) == (0, 0, 0, 0, 0, 0)


def test_what_the_host_does_is_named_and_orders_the_units():
    step = HostStep("softmax", "softmax", ("x",), "y", "softmax", "why", ())
    program = [Activate("copy", 0, 0, 30), InterruptHost(0), Activate("copy", 0, 0, 5), InterruptHost(1)]
    image = dataclasses.replace(image_of(program, TINY), services=(Service(step, (None,), None),))
    t = time(image, events=True)
    assert t.host_steps == ("softmax", "step 1")
    assert [(e.start_cycles, e.stop_cycles) for e in t.events] == [(0, 30), (30, 35)]


def window(kernel: int, stride: int, size: int, batch: int) -> list[SetConfiguration]:
    geometry = {
        Register.BATCH: batch, Register.IN_HEIGHT: size, Register.IN_WIDTH: size, Register.OUT_WIDTH: size // stride,
        Register.KERNEL_HEIGHT: kernel, Register.KERNEL_WIDTH: kernel, Register.STRIDE_HEIGHT: stride,
        Register.STRIDE_WIDTH: stride, Register.DILATION_HEIGHT: 1, Register.DILATION_WIDTH: 1,
    }  # fmt: skip
    return [SetConfiguration(int(register), value) for register, value in geometry.items()]


WORK = [
    ([Activate("scale", 0, 0, 10, keep=True)], 10),
    ([Activate("scale", 0, 0, 10, keep=True, wide_out=True)], 20),
    ([Activate("copy", 0, 0, 10)], 10),
    ([Activate("copy", 0, 0, 10, wide=True)], 20),
    ([Activate("copy", 0, 0, 10, wide_out=True)], 20),
    ([Activate("add", 0, 0, 10)], 20),
    ([Activate("multiply", 0, 0, 10, wide=True, wide_out=True)], 40),
    # 2 x 2 windows of 8 x 8 positions, 3 examples: each row of the source once.
    ([*window(2, 2, 8, 3), Activate("max", 0, 0, 4 * 4 * 3)], 8 * 8 * 3),
    ([*window(2, 2, 8, 3), Activate("max", 0, 0, 4 * 4 * 3, wide=True, wide_out=True)], 2 * 8 * 8 * 3),
    # 3 x 3 windows side by side: what they share is read once.
    ([*window(3, 1, 8, 1), Activate("max", 0, 0, 8 * 8)], 8 * 8),
    # The average of a whole picture.
    ([*window(8, 8, 8, 5), Activate("average", 0, 0, 5)], 8 * 8 * 5),
    # One window of a large picture: no more than its own taps.
    ([*window(2, 2, 8, 1), Activate("max", 0, 0, 1)], 4),
]


@pytest.mark.parametrize(("program", "cycles"), WORK)
def test_the_activation_unit_reads_or_writes_a_row_a_cycle(program: list, cycles: int):
    assert time(image_of(program)).cycles == cycles


def test_numbers_of_numpy_are_numbers():
    image = image_of([sync(Unit.MATRIX, Unit.READ)])
    design = dataclasses.replace(TINY, array=np.int64(256), accumulator_rows=4096, clock_hz=np.float32(700e6))
    assert time(image, design=design).cycles == 0


def test_a_record_is_plain_and_says_that_it_is_predicted():
    image = image_of(dense(200, [64], 400), batch=200)
    t = time(image, events=True)
    record = t.to_record()
    assert json.loads(json.dumps(record, allow_nan=False))["parts"] == list(record["parts"])
    assert record == time(image).to_record()
    kept = {field.name for field in dataclasses.fields(t)} - {"events", "spans"}
    derived = {"time_s", "examples_per_s", "server_examples_per_s", "ops_per_s", "useful_share", "unused_share"}
    assert set(record) == {"predicted", "shares", "host_s", "host_share", *kept, *derived}
    assert record["predicted"] is True
    assert {name: record[name] for name in derived} == {name: getattr(t, name) for name in derived}
    assert record["shares"]["active"] == t.active_cycles / t.cycles
    assert sum(record["shares"].values()) == pytest.approx(1)
    assert record["design"]["array"] == 256
    assert set(time(image_of([])).to_record()["shares"].values()) == {0.0}


def test_repr_is_one_line():
    timing = Timing("net", TPU_V1, 8, 700.0, 350.0, 70.0, 70.0, 210.0, 0, 0, 1000, 65536 * 350.0, 1, 1, 1)
    assert repr(timing) == (
        "<Timing of 'net', 8 examples: 700 cycles, 1 µs predicted; active 50%, stall 10%, shift 10%, other 30%>"
    )
