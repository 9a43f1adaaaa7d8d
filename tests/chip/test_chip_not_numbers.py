"""What a step of the host makes that is no number is refused, with the row and the reason, and is never rounded."""

from __future__ import annotations

from typing import Any

import anytpu as tpu  # isort: skip
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

from anytpu.chip.isa.design import Design
from anytpu.errors import HostStepError
from refusals import refusal

SMALL = Design(array=8)
SMALL_IS_0 = (
    " A small value is 0 in the chip's integers, and a division by it, or its logarithm, has no result: keep it "
    "away from 0, as in x / (0.1 + y), or compile with activation_bits=16."
)


def compiled(function: Any, calibration: np.ndarray) -> Any:
    state = {"w": np.eye(6, dtype=np.float32)}
    return tpu.chip.compile(function, calibration, state=state, batch=4, design=SMALL)


def numbers(rows: int = 40) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 2, (rows, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def looked_up() -> Any:
    model = keras.Sequential([keras.Input((7,), dtype="int32"), layers.Embedding(20, 8, name="table"), layers.Dense(3)])
    return tpu.chip.compile(model, np.arange(140).reshape(20, 7) % 20, batch=4, design=SMALL)


@pytest.mark.parametrize(("row", "number"), [(0, 20), (9, 1009), (5, -21)])
def test_a_place_beyond_a_table(looked_up: Any, row: int, number: int):
    ids = np.arange(70).reshape(10, 7) % 20
    assert looked_up.run(ids).shape == (10, 7, 3)
    ids[row, 3] = number
    with pytest.raises(HostStepError) as caught:
        looked_up.run(ids)
    assert str(caught.value) == (
        f"The host's step 'table/embedding' made a NaN in row {row}: 'input' has {number} there, and its table has the "
        "rows 0 to 19."
    )
    assert caught.value.row == row


def test_text_of_a_program_with_indices(looked_up: Any):
    again = tpu.chip.assemble(looked_up.disassemble(weights=True))
    ids = np.arange(70).reshape(10, 7) % 20
    assert [(port.shape, port.dtype) for port in again.inputs] == [((7,), "int32")]
    assert (again.run(ids) == looked_up.run(ids)).all()


@pytest.mark.parametrize(("added", "row", "made"), [(0, 6, "a NaN"), (1, 8, "an infinity")])
def test_a_division_by_what_is_0_on_the_chip(added: int, row: int, made: str):
    program = compiled(lambda state, x: (added + x) / ((x @ state["w"])[:, :1]), numbers())
    given = numbers(9)
    assert np.isfinite(program.run(given)).all()
    given[row, 0] = 1e-4
    assert (
        refusal(HostStepError, program.run, given) == f"The host's step 'divide' made {made} in row {row}." + SMALL_IS_0
    )


def test_examples_of_calibration_that_are_divided_by_0():
    calibration = numbers()
    calibration[3, 0] = 1e-4
    assert refusal(HostStepError, compiled, lambda state, x: x / ((x @ state["w"])[:, :1]), calibration) == (
        "Among the examples of calibration, the host's step 'divide' made a NaN in row 3." + SMALL_IS_0
    )


def test_rows_that_fill_up_a_batch_are_no_reason():
    program = compiled(lambda state, x: x / jnp.sum(x @ state["w"], axis=1, keepdims=True), numbers())
    assert np.isfinite(program.run(numbers(5))).all()
    assert program.run(numbers(0)).shape == (0, 6)


def test_infinities_that_the_model_writes():
    program = compiled(lambda state, x: jnp.where(x > 1, x @ state["w"], -jnp.inf), numbers())
    given = numbers(3)
    made = program.run(given)
    assert np.isinf(made).any()
    np.testing.assert_array_equal(np.isinf(made), given <= 1)
