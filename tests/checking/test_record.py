from __future__ import annotations

from anytpu.checking.record import CheckedValue, CheckReport

RUNS = {"on 1 core again": 0.0, "on 8 virtual cores": 0.0, "on 8 devices": 1e-7}
FIRST = CheckedValue("conv2d", "output", 1.5, 2e-5, RUNS)
GRADIENT = CheckedValue("sequential/conv2d/kernel", "gradient", 0.5, 1e-3, RUNS)


def check(*values: CheckedValue) -> CheckReport:
    return CheckReport("sequential", 8, 32, "generated from seed 0", values)


def test_all_agree():
    assert str(check(FIRST, GRADIENT)) == (
        "'sequential' computes the same on 1 core, on 8 virtual cores and on 8 devices.\n"
        "\n"
        "        scale  tolerance  off on 1 core again  off on 8 virtual cores  off on 8 devices\n"
        "conv2d    1.5      2e-05                    0                       0             1e-07\n"
        "\n"
        "Not shown, since they agree: 1 gradients.\n"
        "One training step on 32 rows (generated from seed 0); all rows at once, as fit does.\n"
        "The tolerance: a multiple of the change by a last bit of every input and weight, or a share of the scale."
    )


def test_the_first_that_differs_is_named():
    bad = CheckedValue("dense", "output", 1.0, 1e-5, RUNS | {"on 8 virtual cores": 0.5})
    worse = CheckedValue("sequential/dense/kernel", "gradient", 1.0, 1e-5, RUNS | {"on 8 devices": float("nan")})
    result = check(FIRST, bad, GRADIENT, worse)
    assert not result.agrees
    assert result.first_difference is bad
    assert [layer.name for layer in result.layers] == ["conv2d", "dense"]
    assert worse.differs_in == "on 8 devices"
    lines = str(result).splitlines()
    assert lines[0] == (
        "'sequential' does not compute the same everywhere: the layer 'dense' differs first, on 8 virtual cores."
    )
    assert [line.split()[0] for line in lines[3:6]] == ["conv2d", "dense", "sequential/dense/kernel"]
    assert [line.endswith("differs") for line in lines[3:6]] == [False, True, True]


def test_what_is_not_finite_on_one_core_is_no_agreement():
    bad = CheckedValue("scaled", "output", 1.0, 1e-5, RUNS, not_finite=1200)
    result = check(FIRST, bad, GRADIENT)
    assert not result.agrees
    assert result.first_difference is None
    assert result.first_not_finite is bad
    lines = str(result).splitlines()
    assert lines[0] == (
        "'sequential' cannot be compared: the layer 'scaled' is not finite on 1 core already. NaN or infinite: 1,200 "
        "of its elements, and none of any earlier value."
    )
    assert lines[4].endswith("not finite")


def test_a_difference_before_what_is_not_finite_is_told_first():
    bad = CheckedValue("dense", "output", 1.0, 1e-5, RUNS | {"on 8 virtual cores": 0.5})
    result = check(bad, CheckedValue("scaled", "output", 0.0, 0.0, RUNS, not_finite=3))
    assert str(result).startswith("'sequential' does not compute the same everywhere: the layer 'dense' differs first")
