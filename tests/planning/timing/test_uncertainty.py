import pytest

from anytpu.planning.records import OpTime
from anytpu.planning.target import target_named
from anytpu.planning.timing.rates import calibration, rates_from, rates_of
from anytpu.planning.timing.uncertainty import evidence_of, interval_of

V3, V5E = target_named("v3-8"), target_named("v5e-4")


def op(kind, seconds):
    return OpTime(kind, kind, kind, seconds)


def fitted(**chips):
    return {"spread": {"all": 0.1, "chips": chips}}


def ratio(ops, target, table):
    low, high = interval_of(ops, target, table)
    assert low * high == pytest.approx(sum(one.time_s for one in ops) ** 2)
    return high / low


def test_an_interval_is_a_factor_to_either_side():
    low, high = interval_of([op("matmul", 1.0)], V3)
    assert low < 1 < high == pytest.approx(1 / low)


def test_a_chip_that_fitted_well_has_a_narrower_one_than_a_chip_that_nobody_measured():
    table = fitted(v3=(6, 6 * 0.05**2))
    assert ratio([op("matmul", 1.0)], V3, table) < ratio([op("matmul", 1.0)], V5E, table)


def test_a_chip_that_fitted_badly_has_a_wider_one():
    assert ratio([op("matmul", 1.0)], V3, fitted(v3=(2, 0.18))) > ratio([op("matmul", 1.0)], V3, fitted(v3=(2, 0.02)))


@pytest.mark.parametrize("kind", ["collective", "kernel", "host"])
def test_what_is_hard_to_price_makes_it_wider(kind):
    table = fitted()
    assert ratio([op("matmul", 0.5), op(kind, 0.5)], V3, table) > ratio([op("matmul", 1.0)], V3, table)


def test_every_measurement_stands_in_the_evidence_of_its_chip():
    assert any(sentence.startswith("resnet50_v3-32 took 0.1311 s") for sentence in evidence_of(V3))


def test_rates_are_shared_but_for_what_a_chip_has_of_its_own():
    table = {**calibration(), "chips": {"v3": {"excess_share_over_shared": 0.5, "clock_hz": 1e9}}}
    ours, others = rates_from(V3, table), rates_from(V5E, table)
    assert ours.excess_share == pytest.approx(others.excess_share / 2)
    assert (ours.clock_hz, others.clock_hz) == (1e9, 1.5e9)


def test_rates_are_those_of_one_device():
    assert rates_of(target_named("v3-8")).hbm_bytes_per_s == 450e9
    assert rates_of(target_named("v4-8")).hbm_bytes_per_s == 1200e9
