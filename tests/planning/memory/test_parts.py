"""The memory of a device by kind of arrays, of programs that the TPU compiler compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import pytest

import anytpu as tpu
from anytpu.planning.records import Prediction

layers = keras.layers
KIB = 1024


def model() -> Any:
    inputs = keras.Input((512,))
    frozen = layers.Dense(512, use_bias=False)
    frozen.trainable = False
    made = keras.Model(inputs, layers.Dense(512, use_bias=False)(frozen(inputs)))
    made.compile("adam", "mse")
    return made


def sizes_of(prediction: Prediction) -> dict[str, int]:
    assert prediction.memory is not None
    assert sum(part.bytes for part in prediction.memory.parts) == prediction.memory.peak_bytes
    return {part.kind: part.bytes for part in prediction.memory.parts}


def test_a_keras_model():
    sizes = sizes_of(tpu.plan(model(), 1024, "v5e-1")["v5e-1"])
    weight = 512 * 512 * 4
    assert sizes["weights"] == weight and weight <= sizes["frozen"] < weight + 4 * KIB
    assert 2 * weight <= sizes["slots"] < 2 * weight + 4 * KIB  # with the step and the learning rate
    assert sizes["batch"] == 2 * 2 * 1024 * 512 * 4  # x and y, this batch and the next
    assert sizes["activations"] > 0 and sizes["code"] > 0


def test_weights_are_split_by_a_layout():
    sizes = sizes_of(tpu.plan(model(), 1024, "v5e-4", layout="fsdp")["v5e-4"])
    assert sizes["weights"] == 512 * 512 * 4 // 4


def test_gradients_at_the_peak_are_told_apart():
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        def loss(state: Any) -> Any:
            return jnp.square(jnp.tanh(batch @ state["a"]) @ state["b"]).sum()

        gradients = jax.grad(loss)(state)
        norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in gradients.values()))  # All gradients are live here.
        return {name: state[name] - 0.1 * gradients[name] / norm for name in state}, norm

    weight = jax.ShapeDtypeStruct((4096, 4096), "float32")
    specs = {"a": weight, "b": weight}, jax.ShapeDtypeStruct((128, 4096), "float32")
    sizes = sizes_of(tpu.plan(step, tpu="v5e-1", input_specs=specs)["v5e-1"])
    assert sizes["state"] == 2 * 4096 * 4096 * 4  # the kinds of a function's state are not known
    assert 4096 * 4096 * 4 <= sizes["gradients"] <= 2 * 4096 * 4096 * 4  # one of them may take the place of an output


def test_a_step_that_does_not_fit():
    predicted = tpu.plan(model(), 4_000_000, "v5e-1")["v5e-1"]
    assert not predicted.fits
    sizes = sizes_of(predicted)
    assert sizes["weights"] == 512 * 512 * 4 and "gradients" not in sizes


@pytest.mark.parametrize("kind", ["weights", "activations"])
def test_a_plan_shows_the_parts(kind: str, capsys: pytest.CaptureFixture[str]):
    tpu.plan(model(), 1024, "v5e-1").show()
    shown = capsys.readouterr().out
    assert "memory of a device at the peak" in shown and f"  {kind}" in shown
