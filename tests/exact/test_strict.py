"""`strict=True` refuses what the cores do not divide, and names the nearest sizes that they do."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError
from exact.models import FEATURES, KINDS, Batches, Rows, compiled, rows_of

ROWS = rows_of(KINDS["mlp"], 48, seed=1)


def model_on(strategy: tpu.TPUStrategy) -> keras.Model:
    with strategy.scope():
        return compiled(KINDS["mlp"], "sgd")


def state(model: keras.Model) -> list[np.ndarray]:
    return [np.array(variable.value) for variable in model.variables]


def refusal(rows: int, cores: int, nearest: str) -> str:
    return (
        f"a batch of {rows} rows is not divisible by the number of TPU cores in use ({rows} vs {cores}): "
        f"pass a batch_size of {nearest} and a number of examples that it divides, or a strategy without strict=True, "
        "which computes any size exactly"
    )


@pytest.mark.parametrize(
    ("call", "rows", "nearest"),
    [
        (lambda model: model.fit(ROWS.x, ROWS.y, 18, verbose=0), 18, "16 or 24"),
        (lambda model: model.fit(ROWS.x[:20], ROWS.y[:20], 16, verbose=0), 4, "8"),
        (lambda model: model.fit(ROWS.x[:7], ROWS.y[:7], 8, verbose=0), 7, "8"),
        (lambda model: model.evaluate(ROWS.x, ROWS.y, 20, verbose=0), 20, "16 or 24"),
        (lambda model: model.predict(ROWS.x[:1], verbose=0), 1, "8"),
        (lambda model: model.fit(Batches(Rows(ROWS.x[:40], ROWS.y[:40]), 10), verbose=0), 10, "8 or 16"),
        (lambda model: model.train_on_batch(ROWS.x[:12], ROWS.y[:12]), 12, "8 or 16"),
        (lambda model: model.predict_on_batch(ROWS.x[:3]), 3, "8"),
    ],
)
def test_strict_refuses(call: Callable[[keras.Model], object], rows: int, nearest: str):
    model = model_on(tpu.connect("virtual", cores=8, strict=True))
    before = state(model)

    with pytest.raises(DataError) as caught:
        call(model)

    assert str(caught.value) == refusal(rows, 8, nearest)
    assert all(np.array_equal(one, other) for one, other in zip(before, state(model), strict=True))


def test_strict_computes_what_divides():
    model = model_on(tpu.connect("virtual", cores=8, strict=True))

    model.fit(ROWS.x, ROWS.y, 16, verbose=0)
    model.fit(ROWS.x[:8], ROWS.y[:8], 30, verbose=0)  # one batch of 8: there is none of 30
    model.fit(Batches(Rows(ROWS.x, ROWS.y), 24), verbose=0)

    assert model.predict(ROWS.x, 24, verbose=0).shape == (48, 3)
    assert model.predict(np.zeros((40, FEATURES), "float32"), verbose=0).shape == (40, 3)


def test_one_core_divides_everything():
    model = model_on(tpu.connect("virtual", cores=1, strict=True))

    model.fit(ROWS.x, ROWS.y, 7, verbose=0)
