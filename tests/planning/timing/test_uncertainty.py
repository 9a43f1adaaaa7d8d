import math

import pytest

from anytpu.planning.records import OpTime
from anytpu.planning.records.target import target_named
from anytpu.planning.timing import uncertainty
from anytpu.planning.timing.rates import calibration, rates_from, rates_of
from anytpu.planning.timing.uncertainty import (
    compiler_note,
    evidence_of,
    interval_of,
    kind_sentences,
    steps_record,
    variance_of_kind,
)

V3, V5E = target_named("v3-8"), target_named("v5e-4")


def op(kind, seconds):
    return OpTime(kind, kind, kind, seconds)


def fitted(**chips):
    return {"spread": {"all": 0.1, "chips": chips}}


def ratio(ops, target, table):
    low, high = interval_of(ops, target, table)
    assert low * high == pytest.approx(sum(op.time_s for op in ops) ** 2)
    return high / low


def test_an_interval_is_a_factor_to_either_side():
    low, high = interval_of([op("matmul", 1.0)], V3)
    assert low < 1 < high == pytest.approx(1 / low)


def test_the_fewer_steps_of_a_chip_were_measured_the_wider_it_is():
    # Each as far off as all are: only how many there are differs.
    widths = [ratio([op("matmul", 1.0)], V3, fitted(v3=(count, count * 0.1**2))) for count in (0, 1, 2, 4, 8)]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 5


def test_one_step_that_was_hit_does_not_make_a_chip_sure():
    table = fitted(v3=(1, 0.0))
    assert ratio([op("matmul", 1.0)], V3, table) > math.exp(2 * 1.645 * 0.1)


def test_a_chip_is_less_sure_without_its_published_steps():
    table = calibration()
    unseen = {**table, "spread": {**table["spread"], "chips": {**table["spread"]["chips"], "v7x": [0, 0]}}}
    known = ratio([op("matmul", 1.0)], target_named("v7x-8"), table)
    assert table["spread"]["chips"]["v7x"][0] >= 2
    assert known < ratio([op("matmul", 1.0)], target_named("v7x-8"), unseen)


def test_a_kernel_that_is_counted_at_its_least_widens_the_upper_side_alone():
    known, floor = op("kernel", 0.5), OpTime("kernel", "custom-call", "kernel", 0.5, priced_by="floor")
    sure, unsure = (interval_of([op("matmul", 0.5), kernel], V3, fitted()) for kernel in (known, floor))
    assert unsure[0] == pytest.approx(sure[0])
    assert unsure[1] == pytest.approx(2.5 * sure[1])


def test_no_interval_starts_below_what_the_peaks_allow():
    product = OpTime("product", "fusion", "matmul", 0.7, least_s=0.65)
    rest = OpTime("rest", "fusion", "vector", 0.3, least_s=0.28)
    low, high = interval_of([product, rest], V3, fitted())
    assert low == pytest.approx(0.93)
    assert high == pytest.approx(interval_of([op("matmul", 1.0)], V3, fitted())[1])


def test_without_a_number_of_turns_there_is_no_upper_end():
    assert interval_of([op("matmul", 1.0)], V3, fitted(), is_endless=True)[1] == math.inf


PRODUCT = [op("matmul", 1.0)]
GUESSED = ("stages", "rows", "updates", "windows", "its code", "the scalar unit")


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        # A chip that fitted well, and one that nobody measured, or that fitted badly.
        ((PRODUCT, V3, fitted(v3=(6, 6 * 0.05**2))), (PRODUCT, V5E, fitted(v3=(6, 6 * 0.05**2)))),
        ((PRODUCT, V3, fitted(v3=(2, 0.02))), (PRODUCT, V3, fitted(v3=(2, 0.18)))),
        # What is hard to price.
        *(
            ((PRODUCT, V3, fitted()), ([op("matmul", 0.5), op(kind, 0.5)], V3, fitted()))
            for kind in ("collective", "kernel", "host")
        ),
        # Instructions that nobody timed.
        *(
            (
                ([op("matmul", 0.5), op("vector", 0.5)], V3, fitted()),
                ([op("matmul", 0.5), OpTime("sort", "sort", "vector", 0.5, priced_by=source)], V3, fitted()),
            )
            for source in GUESSED
        ),
        # Operations shorter than any that was timed.
        tuple(
            ([op("matmul", 1e-3), OpTime("loop", "fusion", "vector", 1e-3, count=count)], V3, fitted())
            for count in (1, 1000)
        ),
    ],
)
def test_what_is_less_sure_has_a_wider_interval(narrow, wide):
    assert ratio(*narrow) < ratio(*wide)


def test_every_measurement_stands_in_the_evidence_of_its_chip():
    assert any(sentence.startswith("resnet50_v3-32 took 131 ms") for sentence in evidence_of(V3))


def test_rates_are_shared_but_for_what_a_chip_has_of_its_own():
    table = {**calibration(), "chips": {"v3": {"excess_share_over_shared": 0.5, "clock_hz": 1e9}}}
    ours, others = rates_from(V3, table), rates_from(V5E, table)
    assert ours.excess_share == pytest.approx(others.excess_share / 2)
    assert (ours.clock_hz, others.clock_hz) == (1e9, 1.5e9)


def test_a_core_that_shares_its_memory_reaches_more_than_half_of_it():
    single, joined = target_named("v4-8:cores"), target_named("v4-8")
    assert (single.shares_memory, joined.shares_memory, target_named("v3-8").shares_memory) == (True, False, False)
    assert single.hbm_bytes_per_s == 600e9 < rates_of(single).hbm_bytes_per_s < single.max_hbm_bytes_per_s == 1200e9
    assert joined.max_hbm_bytes_per_s == joined.hbm_bytes_per_s == rates_of(joined).hbm_bytes_per_s


def test_the_spread_of_hard_parts_is_counted_once():
    products, kernels = [op("matmul", 1.0)], [op("matmul", 0.5), op("kernel", 0.5)]
    assert uncertainty.variance_of_parts(products, V3) == 0
    added = uncertainty.variance_of_parts(kernels, V3)
    spread = [uncertainty.spread_of(ops, V3, fitted()) for ops in (products, kernels)]
    assert spread[1] ** 2 - spread[0] ** 2 == pytest.approx(uncertainty.student(8) ** 2 * added)


def test_rates_are_those_of_one_device():
    assert rates_of(target_named("v3-8")).hbm_bytes_per_s == 450e9
    assert rates_of(target_named("v4-8")).hbm_bytes_per_s == 1200e9


def test_another_compiler_than_that_of_the_calibration_is_named(monkeypatch: pytest.MonkeyPatch):
    fitted = calibration() | {"compiler": {"name": "libtpu 1"}}
    monkeypatch.setattr("anytpu.planning.timing.uncertainty.calibration", lambda: fitted)
    assert compiler_note("libtpu 1") == ()
    assert compiler_note("libtpu 4") == (
        "Compiled by libtpu 4; the calibration was fitted with libtpu 1: no prediction was compared.",
    )


MOST = {"vector": 0.25, "memory": 0.7}
STEPS = {"all": 27, "without_backward": 1, "squared": 1, "squares": 0.0, "most": MOST, "most_forward": MOST}


def ops(vector=0.2, memory=0.2, is_backward=True, source="model.py:3"):
    """Return the operations of a step of a second."""
    matmul = OpTime("product", "fusion", "matmul", 1 - vector - memory, is_backward=is_backward, source=source)
    rest = [OpTime(kind, "fusion", kind, time_s) for kind, time_s in (("vector", vector), ("memory", memory))]
    return [matmul, *rest]


def test_a_training_step_like_those_that_were_fitted_adds_nothing():
    assert variance_of_kind(ops(), STEPS) == 0
    assert kind_sentences(ops(), STEPS) == ()


def test_a_step_without_a_backward_pass_is_less_sure_the_fewer_were_fitted():
    forward = ops(is_backward=False)
    assert variance_of_kind(forward, STEPS) == pytest.approx(0.15**2 / 2)
    assert variance_of_kind(forward, {**STEPS, "squared": 0}) == pytest.approx(0.15**2)
    assert variance_of_kind(forward, {**STEPS, "squared": 3, "squares": 0.06}) == pytest.approx((0.15**2 + 0.06) / 4)
    assert kind_sentences(forward, STEPS) == (
        "Few published steps are like this one, so the interval is wider: it has no backward pass, like 1 of the 27 "
        "published steps.",
    )


def test_a_step_without_names_is_taken_for_training():
    assert variance_of_kind(ops(is_backward=False, source=""), STEPS) == 0


def test_time_beyond_the_largest_share_of_any_fitted_step_is_less_sure():
    decode = ops(vector=0.85, memory=0.1, is_backward=False)
    assert variance_of_kind(decode, STEPS) == pytest.approx(0.15**2 / 2 + (0.5 * 0.6) ** 2)
    assert kind_sentences(decode, STEPS) == (
        "Few published steps are like this one, so the interval is wider: it has no backward pass, like 1 of the 27 "
        "published steps; it spends 85% of its time on the vector units, none of those over 25%.",
    )
    assert variance_of_kind(ops(vector=0.0, memory=0.9), STEPS) == pytest.approx((0.5 * 0.2) ** 2)


def test_shares_are_those_of_the_same_kind_of_step():
    record = {**STEPS, "most_forward": {"vector": 0.9, "memory": 0.7}}
    assert variance_of_kind(ops(vector=0.85, memory=0.1, is_backward=False), record) == pytest.approx(0.15**2 / 2)


def test_the_interval_of_a_decode_step_is_wider_than_that_of_training():
    train, decode = ops(), ops(vector=0.85, memory=0.1, is_backward=False)
    widths = [math.log(high / low) for low, high in (interval_of(operations, V5E) for operations in (train, decode))]
    assert 3 * widths[0] > widths[1] > 1.2 * widths[0]
    assert evidence_of(V5E, decode)[0].startswith("Few published steps are like this one, so the interval is wider: ")
    assert evidence_of(V5E, train) == evidence_of(V5E)


def test_the_calibration_keeps_what_its_steps_are():
    steps = calibration()["steps"]
    assert (steps["all"], steps["without_backward"], steps["squared"]) == (33, 7, 5)
    assert 0.2 < steps["most"]["vector"] < 0.3 < steps["most"]["memory"] < 0.8 < steps["most_forward"]["vector"] < 0.9


def test_what_is_kept_of_no_steps():
    nothing = {"vector": 0.0, "memory": 0.0}
    counts = {"all": 0, "without_backward": 0, "squared": 0, "squares": 0.0}
    assert steps_record([]) == {**counts, "most": nothing, "most_forward": nothing}
