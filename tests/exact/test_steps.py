"""How many steps a call runs changes nothing, and costs no compilation."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import anytpu as tpu
from exact.models import KINDS, Batches, Kind, compiled, rows_of

pytestmark = pytest.mark.optimized

MLP = KINDS["mlp"]
STREAMED = dataclasses.replace(MLP, streamed=True)


def fitted(kind: Kind, steps: int | str, epochs: int = 2) -> tuple[list[np.ndarray], dict, int]:
    """Fit a model on 8 virtual cores, 53 rows in batches of 6.

    Returns:
        Its weights, seeds and optimizer state; its History; and what the fit compiled.
    """
    strategy = tpu.connect("virtual", cores=8)
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = compiled(kind, "adam", steps)
    rows = rows_of(kind, 53, seed=1)
    if kind.streamed:
        history = model.fit(Batches(rows, 6), epochs=epochs, verbose=0)
    else:
        history = model.fit(rows.x, rows.y, 6, epochs=epochs, verbose=0)
    state = [np.array(variable.value) for variable in [*model.variables, *model.optimizer.variables]]
    return state, history.history, strategy.compilations


@pytest.mark.parametrize("kind", [MLP, STREAMED], ids=["arrays", "streamed"])
def test_steps_per_execution_changes_no_bit(kind: Kind):
    expected, history, _ = fitted(kind, "auto")
    for steps in (1, 3, 7, 50):
        state, found, compilations = fitted(kind, steps)

        assert all(np.array_equal(one, other) for one, other in zip(expected, state, strict=True)), steps
        assert found == history, steps
        assert compilations == 2, steps


def test_auto_compiles_one_program_for_full_batches_and_one_for_the_last():
    strategy = tpu.connect("virtual", cores=8)
    with strategy.scope():
        model = compiled(MLP, "sgd")
    rows = rows_of(MLP, 100, seed=1)

    model.fit(rows.x, rows.y, 10, epochs=3, verbose=0)
    assert strategy.compilations == 1
    model.fit(rows.x, rows.y, 10, epochs=9, verbose=0)
    assert strategy.compilations == 1
    model.fit(rows.x, rows.y, 10, epochs=30, steps_per_epoch=5, verbose=0)
    assert strategy.compilations == 1


def test_more_examples_of_one_batch_size_add_a_program_for_the_last():
    strategy = tpu.connect("virtual", cores=2)
    with strategy.scope():
        model = compiled(MLP, "sgd")
    rows = rows_of(MLP, 101, seed=1)

    model.fit(rows.x, rows.y, 10, epochs=20, verbose=0)

    assert strategy.compilations == 2
