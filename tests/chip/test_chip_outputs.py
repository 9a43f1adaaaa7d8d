"""Outputs that are inputs, whole numbers or one tensor, and networks of which nothing is left for the chip."""

from __future__ import annotations

from typing import Any

import anytpu as tpu  # isort: skip
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

from anytpu.chip.isa.design import Design
from anytpu.errors import QuantizationError

X = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
IDS = np.arange(30, dtype=np.int32)[:, None] % 7
STATE = {"w": np.eye(6, 3, dtype=np.float32)}
SMALL = Design(array=8)


def refusal(job: Any, calibration: Any = X, state: Any = None) -> str:
    with pytest.raises(QuantizationError) as caught:
        tpu.chip.compile(job, calibration, state=state, batch=4, design=SMALL)
    return str(caught.value)


def run(function: Any, calibration: Any = X, state: Any = STATE) -> Any:
    return tpu.chip.compile(function, calibration, state=state, batch=4, design=SMALL).run(calibration)


def test_a_model_of_which_the_host_does_all():
    model = keras.Sequential(
        [keras.Input((4, 4, 4, 2)), layers.Conv3D(4, 2), layers.Softmax(name="softmax")], name="mine"
    )
    volumes = np.random.default_rng(0).normal(size=(4, 4, 4, 4, 2)).astype(np.float32)
    assert refusal(model, volumes) == (
        "Nothing of 'mine' can be computed on the chip: 'softmax' (it divides by a sum over channels)."
    )


def test_an_output_that_is_an_input():
    given = keras.Input((6,))
    assert refusal(keras.Model(given, given, name="mine")) == (
        "The outputs of 'mine' are its inputs: there is nothing to compute."
    )

    def mine(weights: Any, x: Any) -> Any:
        return x["ids"], x["x"] @ weights["w"]

    assert refusal(mine, {"x": X, "ids": IDS}, STATE) == (
        "Output 0 of 'mine' is its input 'ids', which the chip does not hold: leave it out of what is returned."
    )
    made, same = run(lambda weights, x: (x @ weights["w"], x))
    np.testing.assert_allclose(made, X[:, :3], atol=0.05)
    np.testing.assert_allclose(same, X, atol=0.05)


def test_outputs_that_are_one_tensor_and_whole_numbers():
    first, second, place, again = run(
        lambda weights, x: (x @ weights["w"], x @ weights["w"], *(jnp.argmax(x @ weights["w"], -1),) * 2)
    )
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(place, first.argmax(-1))
    np.testing.assert_array_equal(place, again)
    assert place.dtype == np.int32
