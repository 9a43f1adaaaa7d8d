from __future__ import annotations

import math

import pytest

from anytpu.planning.spot import SpotRun, best_interval_s, spot_run

MINUTE_S = 60.0


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
