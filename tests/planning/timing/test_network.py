import dataclasses

import pytest
from tests.planning.timing.modules import REGION, module_of

from anytpu.planning.hlo import collective_of
from anytpu.planning.target import target_named
from anytpu.planning.timing.network import collective_price
from anytpu.planning.timing.rates import rates_of


def price(name, line, partitions):
    module = module_of(
        f"%p = f32[4096,8,128]{{2,1,0:T(8,128)}} parameter(0)\nROOT %c = {line}", REGION, partitions=partitions
    )
    found = collective_of(module, module.entry.instructions["c"])
    assert found is not None
    target = target_named(name)
    return collective_price(found, target, rates_of(target))


GATHER = (
    "f32[16384,8,128]{2,1,0:T(8,128)} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}"
)
REDUCE = "f32[4096,8,128]{2,1,0:T(8,128)} all-reduce(%p), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%add"


def test_an_all_gather_on_v7x_is_within_15_percent_of_what_was_published():
    # AI-Hypercomputer/accelerator-microbenchmarks, all_gather.md, 2x2x1: 0.100663296 GB at 174.765465 GB/s.
    assert price("v7x-8", GATHER, 8).time_s == pytest.approx(0.100663296 / 174.765465, rel=0.15)


def test_an_all_reduce_takes_in_twice_what_the_others_have():
    assert price("v3-8", REDUCE, 8).bytes == 2 * 3 / 4 * 16 * 2**20


def test_an_all_reduce_takes_longer_than_a_gather_of_as_much():
    gather = "f32[4096,8,128]{2,1,0:T(8,128)} all-gather(%p), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}"
    assert price("v3-8", REDUCE, 8).time_s > 2 * price("v3-8", gather, 8).time_s


def test_more_links_are_faster():
    small, large = (
        price(name, REDUCE.replace("8]<=[8]", f"{n}]<=[{n}]"), n).time_s
        for name, n in (("v5e-16", 16), ("v5e-256", 256))
    )
    assert large < small


def test_two_cores_of_a_chip_need_no_network():
    line = REDUCE.replace("[1,8]<=[8]", "[4,2]<=[8]")
    assert price("v3-8", line, 8).bytes == 0


def test_a_permutation_goes_over_one_link():
    line = (
        "f32[4096,8,128]{2,1,0:T(8,128)} collective-permute(%p), channel_id=1, "
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
    )
    target = target_named("v5e-4")
    rates = rates_of(target)
    least_s = 16 * 2**20 / rates.link_bytes_per_s
    assert least_s < price("v5e-4", line, 4).time_s < 1.2 * least_s


def test_an_exchange_of_all_with_all_takes_longer_on_a_longer_line():
    line = "f32[4096,8,128]{2,1,0:T(8,128)} all-to-all(%p), channel_id=1, replica_groups=[1,N]<=[N], dimensions={0}"
    times = [price(name, line.replace("N", str(n)), n).time_s for name, n in (("v5e-16", 16), ("v5e-64", 64))]
    assert times[0] < times[1]


def test_slower_links_take_longer():
    module = module_of(f"%p = f32[4096,8,128]{{2,1,0:T(8,128)}} parameter(0)\nROOT %c = {REDUCE}", REGION, partitions=8)
    found = collective_of(module, module.entry.instructions["c"])
    assert found is not None
    target = target_named("v3-8")
    rates = rates_of(target)
    slow = dataclasses.replace(rates, link_bytes_per_s=rates.link_bytes_per_s / 2)
    assert collective_price(found, target, slow).time_s > 1.8 * collective_price(found, target, rates).time_s
