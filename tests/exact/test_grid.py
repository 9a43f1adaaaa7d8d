"""The measure of the exact grid, measured."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from exact.grid import (
    BACKENDS,
    DTYPES,
    LAYOUTS,
    MODELS,
    OPTIMIZERS,
    SHARDED_MODELS,
    Case,
    Result,
    error,
    every_case,
    every_layout,
    every_size,
    larger_sample,
    sample,
    sharded_sample,
    worst,
)

CASE = Case("virtual", "float64", "mlp", "sgd", examples=20, batch=6, cores=8)


@pytest.mark.parametrize(
    ("expected", "found", "apart"),
    [
        (np.array([1.0, 2.0]), np.array([1.0, 2.0]), 0.0),
        (np.array([0.5, 0.25]), np.array([0.5, 0.75]), 0.5),  # below 1 the error is absolute
        (np.array([4.0, 2.0]), np.array([4.0, 1.0]), 0.25),  # above, relative to the largest value
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), 0.0),
        (np.array([np.nan, 1.0]), np.array([2.0, 1.0]), math.inf),
        (np.array([1, 2]), np.array([1, 2]), 0.0),
        (np.array([1, 2]), np.array([1, 3]), math.inf),
        (np.array([1.0]), np.array(1.0), math.inf),
        (np.array([1.0]), np.array([1.0], np.float32), math.inf),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0.0),
    ],
)
def test_error(expected: np.ndarray, found: np.ndarray, apart: float):
    assert error(expected, found) == apart


def test_worst_names_what_is_farthest_apart():
    expected = {"predict": np.array([1.0]), "History loss": np.array([0.5, 0.5])}

    assert worst(CASE, expected, {**expected, "predict": np.array([1.5])}) == (0.5, "predict")
    assert worst(CASE, expected, {"predict": np.array([1.0])}) == (math.inf, "the names ['History loss']")


def test_adam_in_float32_is_judged_by_its_losses():
    case = Case("virtual", "float32", "mlp", "adam", examples=20, batch=6, cores=8)
    expected = {"variable 0": np.float32([1.0]), "History val_loss": np.float32([0.5])}

    assert worst(case, expected, {**expected, "variable 0": np.float32([2.0])}) == (0.0, "History val_loss")


def test_faults_say_what_is_wrong():
    result = Result(CASE, 1.0, "predict", training_compilations=3, compilations=5)

    assert result.faults == [
        "virtual float64 mlp sgd: 20 examples in batches of 6 on 8 cores: predict is off by 1.0e+00, more than 1e-09",
        "virtual float64 mlp sgd: 20 examples in batches of 6 on 8 cores: 3 training programs for 2 sizes",
        "virtual float64 mlp sgd: 20 examples in batches of 6 on 8 cores: 5 programs in a fit for 2 sizes, twice",
    ]
    assert Result(CASE, 1e-12, "predict", training_compilations=2, compilations=4).faults == []
    assert len(Result(CASE, math.nan, "predict", training_compilations=2, compilations=4).faults) == 1


def test_grid_is_whole():
    cases = list(every_case())

    assert len(cases) == len(set(cases)) == 7 * 5 * 3 * len(BACKENDS) * len(DTYPES) * len(MODELS) * len(OPTIMIZERS)


def test_every_size_meets_every_model():
    cases = list(every_size())

    assert len(cases) == len(set(cases)) == 7 * 5 * 3 * len(BACKENDS) * len(DTYPES)
    assert len({dataclasses.replace(case, model="", optimizer="") for case in cases}) == len(cases)
    assert len({(case.backend, case.dtype, case.model, case.optimizer) for case in cases}) == 2 * 2 * 5 * 2


def test_sample_has_every_kind_of_case():
    cases = sample("local", "float64")
    every = [case for backend in BACKENDS for dtype in DTYPES for case in sample(backend, dtype)]
    larger = [case for backend in BACKENDS for dtype in DTYPES for case in larger_sample(backend, dtype)]

    assert {case.model for case in every} == set(MODELS)
    assert {case.optimizer for case in cases} == set(OPTIMIZERS)
    assert {case.cores for case in every} == {2, 8}
    assert any(case.batch % case.cores for case in cases)
    assert any(0 < case.examples % case.batch < case.cores for case in cases)
    assert any(case.examples < min(case.batch, case.cores) for case in cases)
    assert any(case.batch == 1 for case in cases)
    assert any(case.examples == 1 for case in cases)
    assert any(case.examples % case.batch == 0 and case.batch % case.cores == 0 for case in cases)
    assert {case.steps for case in cases} > {None}
    assert {case.cores for case in larger} == {1, 2, 8}
    assert not {*larger} & {*every}


def test_every_layout_meets_every_model():
    cases = list(every_layout())

    assert len(cases) == len(set(cases)) == len(BACKENDS) * len(DTYPES) * len(LAYOUTS) * len(SHARDED_MODELS) == 160
    sampled = [case for backend in BACKENDS for dtype in DTYPES for case in sharded_sample(backend, dtype)]
    larger = [case for dtype in DTYPES for case in larger_sample("local", dtype) if case.layout]
    assert {case.model for case in (*sampled, *larger)} == set(SHARDED_MODELS)
    assert sorted(case.layout for case in sampled) == sorted(LAYOUTS)
    assert {case.epochs for case in cases} == {3}
