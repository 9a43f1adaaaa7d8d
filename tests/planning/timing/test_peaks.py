"""Times that follow from a datasheet or a published measurement: what fails where one number of a chip is off."""

import pytest
from tests.planning.hlo import saved
from tests.planning.timing.test_pricing import price, product

from anytpu.planning import hlo
from anytpu.planning.records.target import target_named
from anytpu.planning.timing import step_time
from anytpu.planning.timing.network import collective_price
from anytpu.planning.timing.rates import calibration, rates_of

# Of one chip, and how many devices JAX makes of it: bytes a second of its memory, bfloat16 operations a second.
# https://cloud.google.com/tpu/docs/v3 to v6e and tpu7x; v2 and v7x's memory: jax/_src/pallas/mosaic/tpu_info.py.
DATASHEET = {
    "v2-8": (716e9, 46e12, 2),
    "v3-8": (900e9, 123e12, 2),
    "v4-8": (1200e9, 275e12, 1),
    "v5e-4": (819e9, 197e12, 1),
    "v5p-8": (2765e9, 459e12, 1),
    "v6e-4": (1638e9, 918e12, 1),
    "v7x-8": (7380e9, 2307e12, 2),
}


@pytest.mark.parametrize("name", DATASHEET)
def test_a_copy_of_a_gibibyte_takes_the_time_that_the_datasheet_says(name):
    shape = "f32[32768,8192]{1,0:T(8,128)}"
    found = price(f"%x = {shape} parameter(0)\nROOT %r = {shape} copy(%x)", target=target_named(name))
    bytes_per_s, _, devices = DATASHEET[name]
    assert found is not None
    # Streaming reaches a share of the peak that all chips have in common, 87 to 88 % by the published copies.
    share = calibration()["shared"]["hbm_share"]
    assert share == pytest.approx(0.875, rel=0.02)
    assert found.time_s == pytest.approx(2 * 2**30 * devices / bytes_per_s / share, rel=0.02)
    assert found.least_s == pytest.approx(2 * 2**30 * devices / bytes_per_s)


@pytest.mark.parametrize("name", DATASHEET)
def test_no_product_takes_less_than_the_datasheet_says(name):
    found = price(*product(8192, said=1000), target=target_named(name), factor=1.0)
    _, flops_per_s, devices = DATASHEET[name]
    assert found is not None
    assert found.least_s == pytest.approx(2 * 8192**3 * devices / flops_per_s)
    # Of v7x 86 % are within reach: its large products, 950 TFLOP/s a core, are published.
    reached = 996e12 / 1153.5e12 if name == "v7x-8" else 1.0
    assert found.time_s == pytest.approx(2 * 8192**3 * devices / flops_per_s / reached)


def test_the_copy_that_was_published_for_v6e():
    # AI-Hypercomputer/tpu-recipes, microbenchmarks/README.md: 32 MiB in 0.049359414 ms, as the profiler saw it.
    module, target = saved.module("copy_v6e"), target_named("v6e-1")
    time = step_time(module, target, steps_per_execution=10**9)
    assert time.step_s == pytest.approx(0.049359414e-3, rel=0.02)


def reduced(dims, name="v6e-256"):
    """Return the time of the all-reduce that libtpu made for v6e-256, of an array of this shape."""
    module = hlo.parse(saved.text("all_reduce_v6e").replace("17408,17408", dims))
    found = hlo.collective_of(module.entry.instructions["psum.7"])
    assert found is not None
    target = target_named(name)
    return collective_price(found, target, rates_of(target)).time_s


def test_the_all_reduce_that_was_published_for_v6e():
    # AI-Hypercomputer/tpu-recipes, microbenchmarks/trillium/collectives: 235.76 GB/s of twice 255 of 256 parts.
    assert reduced("17408,17408") == pytest.approx(2 * 255 / 256 * 0.606076928 / 235.7595, rel=0.05)


# The compiler's code says so: RotatedPincerShortEmitter in the all-reduces of v5e, v5p, v6e and v7x up to 512 KiB, of 4
# to 64 chips; RotatedPincerEmitter in all of v2 to v4.
@pytest.mark.parametrize(
    ("name", "bytes_", "arrays", "hops"),
    [
        ("v4-8", 8192, None, 2 * 2),  # a line of 2 chips each way: once to add up, and once to hand round
        ("v4-16", 8192, None, 2 * 3),
        ("v5e-4", 8192, 2, 2),
        ("v6e-4", 8192, 2, 2),
        ("v6e-4", 2**26, None, 2 * 2),
        ("v6e-256", 16384, 30, 16),  # a ring of 16 chips each way
    ],
)
def test_later_chips_exchange_short_arrays_whole(name, bytes_, arrays, hops):
    target = target_named(name)
    rates = rates_of(target)
    found_s = collective_price(hlo.Collective("all-reduce", "whole", (), bytes_, bytes_, None), target, rates).time_s
    start_s = rates.collective_start_s if arrays is None else rates.small_start_s
    passes = 2 * (target.chips - 1) / target.chips if arrays is None else arrays
    links = 4 if name == "v6e-256" else len([side for side in target.chip_bounds if side > 1])
    moved_s = passes * bytes_ / (links * rates.link_bytes_per_s * rates.reduce_share)
    assert found_s == pytest.approx(start_s + hops * rates.hop_s + moved_s, rel=0.02)
    # In a decode step an all-reduce of a few KiB took under 5 us on four chips.
    assert arrays != 2 or 2e-6 < found_s < 5e-6


def test_a_hop_takes_what_was_published():
    # About 1 us: https://jax-ml.github.io/scaling-book/sharding. There and back 1,941 cycles at 1.05 GHz on v4:
    # https://github.com/ayaka14732/tpu-v4-latency-numbers.
    hop_s = calibration()["shared"]["hop_s"]
    assert hop_s == pytest.approx(1e-6, rel=0.25)
    assert hop_s == pytest.approx(1941 / 1.05e9 / 2, rel=0.25)


def test_the_smallest_gather_that_was_published_takes_its_latency():
    # AI-Hypercomputer/accelerator-microbenchmarks, all_gather.md, 2x2x1 of v7x: 256 KiB a device at 71.757 GB/s.
    module, target = saved.module("all_gather_v7x"), target_named("v7x-8")
    time = step_time(module, target, steps_per_execution=10**9)
    assert time.step_s == pytest.approx(6 * 2**18 / 71.757e9, rel=0.12)
