from __future__ import annotations

import dataclasses
import math
import random

import pytest

from anytpu.planning.costs.cost import ASSUMED_PREEMPTIONS_PER_HOUR, SpotRun, best_interval_s, cost_of, spot_run
from anytpu.planning.costs.prices import read_prices
from anytpu.planning.records.cost import Price
from anytpu.planning.records.target import target_named

MINUTE_S = 60.0
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
    cost = cost_of(V3, 1.0, 1, 36_000, 10, PRICES)
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


@pytest.mark.parametrize(("mean_minutes", "best_minutes"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_best_intervals_that_daly_gives(mean_minutes: float, best_minutes: float):
    best_s = best_interval_s(5 * MINUTE_S, mean_minutes * MINUTE_S)
    assert best_s / MINUTE_S == pytest.approx(best_minutes, abs=0.5 if best_minutes > 10 else 0.05)


def test_saves_that_take_longer_than_machines_last():
    assert best_interval_s(checkpoint_s=100, mean_between_s=40) == 40


@pytest.mark.parametrize(("checkpoint_s", "rate_per_hour"), [(30, 0.125), (300, 1.0), (60, 4.0)])
def test_no_other_interval_is_better(checkpoint_s: float, rate_per_hour: float):
    work_s = 1e6
    best = spot_run(work_s, rate_per_hour, checkpoint_s, 600)
    mean_s = 3600 / rate_per_hour
    around = [best_interval_s(checkpoint_s, mean_s) * factor for factor in (0.7, 0.85, 1.2, 1.5)]
    assert all(expected_s(work_s, part_s, checkpoint_s, 600, mean_s) > best.run_s for part_s in around)


def expected_s(work_s: float, part_s: float, checkpoint_s: float, restart_s: float, mean_s: float) -> float:
    """Return the expected time by the renewal argument, written another way than in the code under test.

    A part takes s = part + save. It fails with probability 1 - e^(-s/M); what a failure costs is the mean of an
    exponential cut off at s, and a restart, which fails likewise.
    """

    def uninterrupted(span_s: float) -> float:
        succeeds = math.exp(-span_s / mean_s)
        lost_s = mean_s - span_s * succeeds / (1 - succeeds)
        return span_s + (1 / succeeds - 1) * lost_s

    span_s = part_s + checkpoint_s
    failures = math.exp(span_s / mean_s) - 1
    return work_s / part_s * (uninterrupted(span_s) + failures * uninterrupted(restart_s))


def test_the_time_is_what_the_renewal_argument_gives():
    run = spot_run(50_000, 0.5, 30, 600)
    assert run.checkpoint_every_s is not None
    all_saved_s = expected_s(50_000, run.checkpoint_every_s, 30, 600, 7200)
    last_unsaved_s = expected_s(1.0, 1.0, run.checkpoint_every_s - 1.0, 600, 7200)
    last_saved_s = expected_s(1.0, 1.0, run.checkpoint_every_s + 29.0, 600, 7200)
    assert run.run_s == pytest.approx(all_saved_s - last_saved_s + last_unsaved_s, rel=1e-9)


def test_never_interrupted():
    assert spot_run(1000, 0, 30, 600) == SpotRun(1000, None)


def test_a_short_run_does_not_save():
    run = spot_run(100, 0.125, 30, 600)
    assert run.checkpoint_every_s is None
    assert run.run_s == pytest.approx(expected_s(1.0, 1.0, 99.0, 600, 8 * 3600), rel=1e-9)


def test_nothing_to_do():
    assert spot_run(0, 0.125, 0, 600) == SpotRun(0.0, None)


def test_a_run_that_never_ends():
    assert spot_run(3600, 1e6, 30, 600).run_s == float("inf")
