from __future__ import annotations

import dataclasses
import random

import pytest

from anytpu.planning.cost import ASSUMED_PREEMPTIONS_PER_HOUR, cost_of
from anytpu.planning.prices import read_prices
from anytpu.planning.records.cost import Price
from anytpu.planning.spot import spot_run
from anytpu.planning.target import target_named

PRICES = read_prices()
V3 = target_named("v3-8")


def price(**changes: object) -> dict[str, Price]:
    return {"v3": dataclasses.replace(PRICES["v3"], **changes)}  # pyright: ignore[reportArgumentType]


def test_a_slice_is_rented_whole():
    cost = cost_of(target_named("v4-32"), 0.5, 64, None, None, PRICES)
    assert cost is not None
    assert cost.usd_per_hour == pytest.approx(16 * 3.22)
    assert cost.usd_per_step == pytest.approx(16 * 3.22 / 3600 * 0.5)
    assert (cost.usd_per_epoch, cost.usd_per_run, cost.run_s, cost.spot_usd_per_run) == (None, None, None, None)


def test_epochs_end_with_a_part_filled_step():
    cost = cost_of(V3, 2.0, 100, 1001, 3, PRICES)
    assert cost is not None
    assert cost.run_s == 11 * 2.0 * 3
    assert cost.usd_per_epoch == pytest.approx(8.0 / 3600 * 22)
    assert cost.usd_per_run == pytest.approx(8.0 / 3600 * 66)


def test_examples_without_epochs_price_an_epoch():
    cost = cost_of(V3, 2.0, 100, 1000, None, PRICES)
    assert cost is not None
    assert cost.usd_per_epoch == pytest.approx(8.0 / 3600 * 20)
    assert (cost.usd_per_run, cost.run_s, cost.spot_run_s) == (None, None, None)


def test_a_program_without_rows_has_the_price_of_a_step():
    cost = cost_of(V3, 2.0, None, 1000, 3, PRICES)
    assert cost is not None
    assert cost.usd_per_step == pytest.approx(8.0 / 3600 * 2)
    assert cost.usd_per_epoch is None


def test_an_unlisted_chip_has_no_dollars():
    cost = cost_of(target_named("v7x-8"), 1.0, 8, 80, 2, PRICES)
    assert cost is not None
    assert (cost.usd_per_hour, cost.usd_per_step, cost.usd_per_run, cost.spot_usd_per_run) == (None,) * 4
    assert cost.run_s == 20.0
    assert cost.price.note == "not listed: no public price was found"


def test_no_row_no_cost():
    assert cost_of(V3, 1.0, 8, None, None, {}) is None
    cost = cost_of(V3, 3600.0, 8, None, None, {"v3": Price("v3", 2.5, None, None, "", "mine")})
    assert cost is not None
    assert cost.usd_per_step == 10.0


def test_spot_takes_longer_and_says_what_it_assumes():
    cost = cost_of(V3, 1.0, 1, 36_000, 10, PRICES, checkpoint_s=30, restart_s=600)
    assert cost is not None and cost.spot_run_s is not None
    expected = spot_run(360_000, ASSUMED_PREEMPTIONS_PER_HOUR, 30, 600)
    assert cost.spot_run_s == expected.run_s > cost.run_s == 360_000
    assert cost.spot_usd_per_run == pytest.approx(0.51 * 4 * expected.run_s / 3600)
    assert cost.checkpoint_every_s == expected.checkpoint_every_s
    assert cost.price.preemptions_per_hour == ASSUMED_PREEMPTIONS_PER_HOUR
    assert cost.price.note == (
        "an old generation: ask for quota before you rely on it; no rate of pre-emptions is published: one in 8 hours "
        "is assumed"
    )


def test_a_known_rate_is_used_and_nothing_is_said():
    cost = cost_of(V3, 1.0, 1, 36_000, 1, price(preemptions_per_hour=2.0, note=""))
    assert cost is not None
    assert cost.spot_run_s == spot_run(36_000, 2.0, 30, 600).run_s
    assert cost.price.note == ""


def test_a_run_that_never_ends_on_spot_has_no_spot_price():
    cost = cost_of(V3, 1.0, 1, 36_000, 1, price(preemptions_per_hour=1e6, note=""))
    assert cost is not None
    assert (cost.spot_usd_per_run, cost.spot_run_s, cost.checkpoint_every_s) == (None, None, None)
    assert cost.usd_per_run == pytest.approx(80.0)
    assert cost.price.note == "on spot this run is not expected to end"


def test_a_run_as_it_is_simulated_costs_what_is_expected():
    random.seed(7)
    runs = [simulated_s(work_s=20_000, rate_per_hour=1.0, checkpoint_s=60, restart_s=300) for _ in range(2000)]
    expected = spot_run(20_000, 1.0, 60, 300)
    assert sum(runs) / len(runs) == pytest.approx(expected.run_s, rel=0.02)


def simulated_s(work_s: float, rate_per_hour: float, checkpoint_s: float, restart_s: float) -> float:
    """Run through one run second by second of what happens, with saves as often as `spot_run` says."""
    work_part_s = spot_run(work_s, rate_per_hour, checkpoint_s, restart_s).checkpoint_every_s
    assert work_part_s is not None
    clock_s = 0.0
    parts = round(work_s / work_part_s)
    for number in range(parts):
        part_s = work_part_s + (checkpoint_s if number < parts - 1 else 0.0)
        while (until_s := random.expovariate(rate_per_hour / 3600)) < part_s:
            clock_s += until_s
            while (until_s := random.expovariate(rate_per_hour / 3600)) < restart_s:
                clock_s += until_s
            clock_s += restart_s
        clock_s += part_s
    return clock_s
