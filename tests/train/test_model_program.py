"""A model is planned without being changed, and in another precision without being copied."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import anytpu as tpu  # isort: skip
import jax
import keras
from keras import layers

from anytpu.errors import ProgramError


def model_of() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.Dropout(0.1),
            layers.Flatten(),
            layers.Dense(5),
        ],
        name="small",
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def policies(model) -> set[str]:
    return {layer.dtype_policy.name for layer in model.layers}


def bfloat16_products(program) -> int:
    return str(jax.make_jaxpr(program.step)(program.state, program.batch)).count("bf16[")


def test_the_model_stays_as_it_was():
    model = model_of()
    before = [np.array(v.value) for v in model.variables]
    program = tpu.program.of(model, batch_size=8)
    assert not model.optimizer.built and model.metrics_variables[2:] == []
    assert [name for name in program.state_names if "/" not in name or "loss" in name] == ["loss/total", "loss/count"]
    for value, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(value, variable.value)


def test_it_trains_afterwards_on_labels_of_another_shape():
    model = model_of()
    program = tpu.program.of(model, batch_size=8)
    history = model.fit(np.zeros((16, 8, 8, 1)), np.zeros((16, 1), "int32"), batch_size=8, verbose=0).history
    assert history["accuracy"] == [1.0]
    assert tpu.program.of(model, batch_size=8).state == program.state


def test_the_step_is_that_of_the_model():
    """The same weights, the same batch: what the planned step returns is what `train_on_batch` logs."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    program = tpu.program.of(model, batch_size=4)
    values = dict(zip(program.state_names, jax.tree.leaves(program.state), strict=True))
    values = {name: np.zeros(spec.shape, spec.dtype) for name, spec in values.items()}
    values |= {v.path: np.array(v.value) for v in model.variables}
    values |= {name: np.float32(0.1) for name in values if name.endswith("learning_rate")}
    state = jax.tree.unflatten(jax.tree.structure(program.state), [values[name] for name in program.state_names])
    x, y = np.arange(12, dtype="float32").reshape(4, 3), np.ones((4, 2), "float32")
    after, logs = program.step(state, (x, y))
    assert float(logs["loss"]) == pytest.approx(float(model.train_on_batch(x, y)), rel=1e-6)
    np.testing.assert_allclose(after[0][0], model.layers[0].kernel.value, rtol=1e-5, atol=1e-6)


def test_bfloat16():
    model = model_of()
    as_it_is, program = tpu.program.of(model, batch_size=8), tpu.program.of(model, batch_size=8, precision="bfloat16")
    assert policies(model) == {"float32"}
    assert bfloat16_products(as_it_is) == 0 < bfloat16_products(program)
    assert (program.state, program.batch) == (as_it_is.state, as_it_is.batch)
    assert [name.split("/")[-1] for name in program.state_names][:6] == [
        name.split("/")[-1] for name in as_it_is.state_names
    ][:6]


def test_float32_of_a_mixed_model():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = model_of()
    finally:
        keras.config.set_dtype_policy("float32")
    assert bfloat16_products(tpu.program.of(model, batch_size=8, precision="bfloat16")) > 0
    assert bfloat16_products(tpu.program.of(model, batch_size=8, precision="float32")) == 0
    assert policies(model) == {"mixed_bfloat16"}


def test_layers_inside_of_others():
    x = keras.Input((6, 4))
    inner = keras.Sequential([keras.Input((6, 4)), layers.Dense(4)])
    model = keras.Model(x, layers.Bidirectional(layers.LSTM(3))(inner(x)))
    program = tpu.program.of(model, batch_size=2, mode="infer", precision="bfloat16")
    _, outputs = jax.eval_shape(program.step, program.state, program.batch)
    assert outputs.dtype == "bfloat16"
    assert "f32[2,6,4] = dot_general" not in str(jax.make_jaxpr(program.step)(program.state, program.batch))


class Closed(keras.Model):
    """A model whose constructor cannot be called again."""

    def __init__(self, units):
        super().__init__(name="closed")
        self.dense = layers.Dense(units)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        raise NotImplementedError("no configuration")


def test_a_model_that_cannot_be_made_again():
    model = Closed(3)
    model.compile("sgd", "mse")
    model(np.zeros((1, 4)))
    with pytest.raises(ProgramError) as caught:
        tpu.program.of(model, batch_size=4, precision="bfloat16")
    assert str(caught.value) == (
        "the model 'closed' cannot be made again in bfloat16: no configuration. Choose the precision yourself, with "
        'keras.config.set_dtype_policy("mixed_bfloat16") before it is made, and leave precision out'
    )


class Unnamed(keras.optimizers.SGD):
    """An optimizer without a configuration."""

    def get_config(self):
        raise NotImplementedError


def test_what_it_was_compiled_with_cannot_be_made_again():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile(Unnamed(), "mse")
    assert tpu.program.of(model, batch_size=4).rows == 4


def test_a_model_of_a_strategy():
    strategy = tpu.connect("virtual", cores=8)
    with strategy.scope():
        model = model_of()
    program = tpu.program.of(model, batch_size=8, precision="bfloat16")
    assert (program.replicas, program.rows) == (None, 8)
    assert bfloat16_products(program) > 0
    assert len(model.fit(np.zeros((16, 8, 8, 1), "float32"), np.zeros(16, "int32"), verbose=0).history["loss"]) == 1


def test_a_model_that_was_converted():
    resolver = tpu.TPUClusterResolver("v2-8")
    model = tpu.keras_to_tpu_model(model_of(), strategy=tpu.TPUDistributionStrategy(resolver))
    for precision in (None, "bfloat16"):
        program = tpu.program.of(model, batch_size=8, precision=precision)
        assert (bfloat16_products(program) > 0) is (precision is not None)


def test_no_memory_for_slots():
    """What a sketch makes has shapes and no values, also after other models were built."""
    model = model_of()
    program = tpu.program.of(model, batch_size=8)
    model_of()(np.zeros((2, 8, 8, 1)))
    step = inspect.getclosurevars(program.step).nonlocals["step"]
    sketch = inspect.getclosurevars(step).nonlocals["model"]
    from anytpu import _keras

    assert sketch.name == "small" and sketch is not model
    assert all(_keras.value_of(v) is None for v in sketch.optimizer.variables[2:])


@pytest.mark.parametrize("optimizer", ["adafactor", "muon"])
def test_slots_that_an_optimizer_makes_from_values(optimizer):
    """Adafactor makes a placeholder with the value 0 for each bias."""
    model = model_of()
    model.compile(optimizer, model.loss)
    program = tpu.program.of(model, batch_size=8)
    model.optimizer.build(model.trainable_variables)
    shapes = {leaf.shape for leaf in jax.tree.leaves(program.state)}
    assert {tuple(variable.shape) for variable in model.optimizer.variables} <= shapes
