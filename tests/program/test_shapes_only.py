"""`tpu.shapes_only`: models without values, beside the same models with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


class Blocks(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, "relu")
        self.drop = keras.layers.Dropout(0.1)
        self.out = keras.layers.Dense(4)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.drop(self.hidden(x), training=training))


def graph() -> Any:
    ids = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(50, 8)(ids)
    x = keras.layers.LSTM(8, return_sequences=True)(x)
    x = keras.layers.BatchNormalization()(x + keras.layers.MultiHeadAttention(2, 4)(x, x))
    dense = keras.layers.Dense(8)
    x = keras.layers.Dropout(0.1)(dense(x))
    dense.enable_lora(2)
    return keras.Model(ids, keras.layers.Dense(50)(x))


def compiled(model: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def specs(model: Any) -> Any:
    if isinstance(model, Blocks):
        return jax.ShapeDtypeStruct((4, 3), "float32"), jax.ShapeDtypeStruct((4,), "int32")
    return jax.ShapeDtypeStruct((4, 6), "int32"), jax.ShapeDtypeStruct((4, 6), "int32")


@pytest.mark.parametrize(("make", "mode"), [(graph, "train"), (Blocks, "train"), (Blocks, "infer")])
def test_it_is_the_program_of_the_model_with_values(make: Any, mode: str):
    def program_of(model: Any) -> tuple[Any, Any, str]:
        batch = specs(model) if mode == "train" else specs(model)[:1]
        program = tpu.program.of(model, batch, mode=mode)
        return program.state, program.batch, jax.jit(program.step).lower(program.state, program.batch).as_text()

    keras.backend.clear_session(free_memory=False)
    expected = program_of(compiled(make()))
    keras.backend.clear_session(free_memory=False)
    with tpu.shapes_only():
        model = compiled(make())
        in_the_block = program_of(model)
    assert in_the_block == expected
    assert program_of(model) == expected


def test_a_model_larger_than_any_machine_is_planned():
    with tpu.shapes_only():
        model = keras.Sequential([keras.Input((2**20,)), keras.layers.Dense(2**20), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    assert tpu.program.of(model, batch_size=8).rows == 8
    assert model.count_params() > 2**40


def test_a_value_is_refused(tmp_path: Path):
    keras.backend.clear_session(free_memory=False)
    with tpu.shapes_only():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="net")
        model.compile(keras.optimizers.Adam(0.01), "mse")
        with pytest.raises(ProgramError) as caught:
            np.asarray(model.layers[0].kernel.value)
    assert str(caught.value) == (
        "the variable 'net/dense/kernel' has a shape and no value: its model was made in tpu.shapes_only(), for "
        "tpu.plan. To train, predict, load or save weights, make the model outside of it"
    )
    x, y = np.zeros((4, 3), "float32"), np.zeros((4, 2), "float32")
    calls = [
        lambda: model.fit(x, y, verbose=0),
        lambda: model.evaluate(x, y, verbose=0),
        lambda: model.predict(x, verbose=0),
        lambda: model(x),
        lambda: model.get_weights(),
        lambda: model.save(tmp_path / "model.keras"),
        lambda: tpu.program.of(model, (x, y), tensors=True),
    ]
    for call in calls:
        with pytest.raises(Exception, match=r"has a shape and no value: its model was made in tpu.shapes_only\(\)"):
            call()
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)


def test_models_made_afterwards_have_values():
    with tpu.shapes_only():
        keras.layers.Dense(2).build((None, 3))
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    assert np.asarray(layer.kernel).shape == (3, 2)
