"""What is a difference and what is the last bit."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.checking.comparing import FLOAT32, HALF, Values, compared, moved, values_of
from anytpu.checking.outcome import Outcome, arrays_to_outcome, outcome_to_arrays
from anytpu.checking.record import CheckedValue, Kind

ONES = np.ones(4, "float32")


def one(reference: np.ndarray, other: np.ndarray | None, trials: list[np.ndarray] | None = None) -> CheckedValue:
    key = ("output", "layer")
    run: Values = {} if other is None else {key: other}
    (value,) = compared({key: reference}, [{key: trial} for trial in trials or []], {"there": run}, {}, FLOAT32)
    return value


def test_a_share_of_the_scale():
    assert one(1000 * ONES, 1000 * ONES + np.float32(0.01)).agrees
    assert not one(1000 * ONES, 1000 * ONES + np.float32(0.02)).agrees


def test_sixteen_times_what_a_last_bit_changes():
    trials = [ONES + np.float32(0.01), ONES - np.float32(0.02)]
    assert one(ONES, ONES + np.float32(0.3), trials).agrees
    assert one(ONES, ONES + np.float32(0.33), trials).differs_in == "there"


@pytest.mark.parametrize(
    ("other", "agrees"),
    [
        (np.array([1, -np.inf, np.inf], "float32"), True),
        (np.array([1, -np.inf, -np.inf], "float32"), False),
        (np.array([1, 1, np.inf], "float32"), False),
        (np.array([np.nan, -np.inf, np.inf], "float32"), False),
        (np.array([1, -np.inf], "float32"), False),
        (None, False),
    ],
)
def test_what_is_not_finite_or_not_there(other: np.ndarray | None, agrees: bool):
    value = one(np.array([1, -np.inf, np.inf], "float32"), other)
    assert value.not_finite == 0
    assert value.agrees is agrees
    assert value.scale == 1
    assert value.differences["there"] == (0 if agrees else np.inf)


@pytest.mark.parametrize(
    ("kind", "numbers", "count"),
    [
        ("output", [1, np.nan, np.inf], 1),
        ("output", [np.nan, np.nan, np.nan], 3),
        ("output", [np.inf, -np.inf, np.inf], 3),
        ("gradient", [1, np.inf, 2], 1),
        ("loss", [np.nan], 1),
    ],
)
def test_what_is_not_finite_on_one_core_agrees_with_nothing(kind: Kind, numbers: list[float], count: int):
    key, value = (kind, "it"), np.array(numbers, "float32")
    (found,) = compared({key: value}, [], {"there": {key: value}}, {}, FLOAT32)
    assert (found.not_finite, found.agrees, found.differs_in) == (count, False, None)


def test_whole_numbers_are_equal_or_not():
    assert one(np.arange(4), np.arange(4)).agrees
    assert not one(np.arange(4), np.arange(4) + 1).agrees


def test_a_weight_is_compared_where_its_gradient_is_not_zero():
    gradient, change = np.array([1e-9, 1], "float32"), np.array([1e-3, -1e-3], "float32")
    reference: Values = {("gradient", "w"): gradient, ("variable", "w"): change}
    for other, agrees in ((change * [-1, 1], True), (change * [1, -1], False)):
        run: Values = {("gradient", "w"): gradient, ("variable", "w"): other.astype("float32")}
        values = compared(reference, [], {"there": run}, {"w": 0.1}, FLOAT32)
        assert [value.agrees for value in values] == [True, agrees]


def test_half_precision_may_differ_by_more():
    key = ("output", "layer")
    for precision, agrees in ((FLOAT32, False), (HALF, True)):
        (value,) = compared({key: ONES}, [], {"there": {key: ONES * 1.01}}, {}, precision)
        assert value.agrees is agrees


def test_bfloat16_is_a_float_type():
    half = ONES.astype(jnp.bfloat16)
    assert one(half, half).tolerance == 2.0**-16
    assert one((np.nan * half).astype(jnp.bfloat16), half).not_finite == 4
    (array,) = moved([half], 2.0**-7, np.random.default_rng(0))
    assert array.dtype == jnp.bfloat16
    assert np.all(array != half)


def test_what_is_moved():
    generator = np.random.default_rng(0)
    weights = [np.full(64, 3.5, "float32"), np.ones(64, "float32"), np.arange(4)]
    first, second, whole = moved(weights, 2.0**-20, generator)
    assert set(np.round((first / 3.5 - 1) * 2**20)) == set(np.round((second - 1) * 2**20)) == {-1, 1}
    assert first.dtype == "float32"
    assert whole is weights[2]
    rows = moved(weights, 2.0**-20, generator, moves_whole=False)
    assert rows[1] is weights[1]
    assert np.any(rows[0] != weights[0])


def test_order_and_change():
    marked = {"000002|gradient|w": ONES, "000001|output|layer": ONES, "000003|output|last": ONES}
    outcome = Outcome(marked, {"loss": np.float32(1), "accuracy": np.float32(1)}, (3 * ONES, np.arange(2)))
    values = values_of(outcome, [ONES, np.arange(2)], ["w", "count"])
    assert list(values) == [
        ("output", "layer"),
        ("output", "last"),
        ("loss", "loss"),
        ("gradient", "w"),
        ("variable", "w"),
        ("variable", "count"),
    ]
    assert values["variable", "w"].tolist() == [2] * 4
    assert values["variable", "count"].tolist() == [0, 1]
    there_and_back = arrays_to_outcome(outcome_to_arrays(outcome))
    assert list(values_of(there_and_back, [ONES, np.arange(2)], ["w", "count"])) == list(values)
