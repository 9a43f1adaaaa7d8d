"""`tpu.check`: a model that agrees, and layers with planted faults, each of which it must name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import BackendError, DataError, ProgramError, SettingError

L = keras.layers


class Planted(L.Layer):
    """A layer of the form of its inputs, with what it computes given by the test."""

    def __init__(self, function: Any) -> None:
        super().__init__(name="planted")
        self.function = function

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def with_planted(function: Any) -> keras.Model:
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), L.Dense(5, name="first"), Planted(function), L.Dense(3, name="last")])
    model.compile("adam", "mse")
    return model


def by_devices(x: Any) -> Any:
    parts = x.reshape(jax.device_count(), -1, *x.shape[1:])
    return (parts - jnp.mean(parts, 1, keepdims=True)).reshape(x.shape)


def scaled_gradient(x: Any) -> Any:
    function = jax.custom_vjp(lambda x: x)
    function.defvjp(lambda x: (x, None), lambda _, slope: (slope * tpu.get_strategy().num_replicas_in_sync,))
    return function(x)


@pytest.mark.parametrize(
    ("function", "kind", "where"),
    [
        (lambda x: x / tpu.get_strategy().num_replicas_in_sync, "output", "on 2 virtual cores"),
        (by_devices, "output", "on 2 devices"),
        (lambda x: x * np.random.default_rng().normal(), "output", "on 1 core again"),
        (scaled_gradient, "gradient", "on 2 virtual cores"),
    ],
    ids=["the number of replicas", "the number of devices", "numbers without a seed", "a scaled gradient"],
)
def test_the_first_difference_is_named(function: Any, kind: str, where: str):
    first = tpu.check(with_planted(function), batch_size=8, cores=2).first_difference
    assert first is not None
    assert (first.kind, first.differs_in) == (kind, where)
    assert ("planted" if kind == "output" else "first") in first.name.split("/")
    assert len(jax.devices()) == jax.device_count() == 1


def test_a_model_that_agrees():
    keras.utils.set_random_seed(3)
    convolution = [L.Conv2D(4, 3, activation="relu", name="convolution"), L.BatchNormalization(name="norm")]
    rest = [
        L.MaxPooling2D(name="pool"),
        L.Flatten(name="flat"),
        L.Dropout(0.5, name="drop"),
        L.Dense(10, name="logits"),
    ]
    model = keras.Sequential([keras.Input((8, 8, 1)), *convolution, *rest], name="small")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    before = [np.array(variable.value) for variable in model.variables]
    x, y = np.random.default_rng(0).normal(size=(40, 8, 8, 1)), np.arange(40) % 10
    check = tpu.check(model, x.astype("float32"), y, batch_size=30, cores=4)
    assert check.agrees
    assert check.first_difference is None
    assert (check.model, check.cores, check.rows) == ("small", 4, 30)
    assert [layer.name for layer in check.layers] == ["convolution", "norm", "pool", "flat", "drop", "logits"]
    assert [value.name for value in check.values if value.kind == "loss"] == ["loss"]
    gradients = [value.name for value in check.values if value.kind == "gradient"]
    assert gradients[0] == "small/logits/bias"
    assert gradients[-1] == "small/convolution/kernel"
    assert {value.name for value in check.values if value.kind == "variable"} > set(gradients)
    for value in check.values:
        assert list(value.differences) == ["on 1 core again", "on 4 virtual cores", "on 4 devices"]
        assert value.tolerance <= 2e-3 * max(value.scale, 1e-3), value
    assert any(layer.differences["on 4 devices"] > 0 for layer in check.layers), "nothing was added in another order"
    assert all(np.array_equal(old, variable.value) for old, variable in zip(before, model.variables, strict=False))
    assert repr(check) == (
        "<CheckReport: 'small' computes the same on 1 core, on 4 virtual cores and on 4 devices. "
        "print() shows each value.>"
    )
    lines = str(check).splitlines()
    assert lines[0] == "'small' computes the same on 1 core, on 4 virtual cores and on 4 devices."
    assert lines[-2] == "One training step on 30 rows (the first rows of x and y); all rows at once, as fit does."


def test_a_layer_that_makes_only_nan():
    check = tpu.check(with_planted(lambda x: x * np.float32("nan")), batch_size=8, cores=2)
    assert not check.agrees
    assert check.first_not_finite is not None
    assert (check.first_not_finite.name, check.first_not_finite.not_finite) == ("planted", 8 * 5)


def test_code_of_one_cores_rows():
    model = with_planted(lambda x: x * (1.0 + jax.lax.axis_index("replica")))
    with pytest.raises(ProgramError) as caught:
        tpu.check(model, cores=2)
    assert str(caught.value) == (
        f"the layer 'planted' of the model {model.name!r} asks for the axis 'replica', which the code of one core's "
        "rows has, in strategy.run. tpu.check compares the step of fit, the code of all rows: leave the layer out"
    )


def test_a_layer_that_cannot_be_traced():
    def refusing(x: Any) -> Any:
        raise ValueError("no such thing")

    with pytest.raises(ProgramError) as caught:
        tpu.check(with_planted(refusing), cores=2)
    assert str(caught.value) == (
        "the layer 'planted' of the model 'sequential' cannot be traced for 1 core: ValueError: no such thing"
    ).replace("'sequential'", repr(str(caught.value).split("'")[3]))


def test_bad_input():
    model = keras.Sequential([keras.Input((4,)), L.Dense(2)], name="model")
    for arguments, kind, message in [
        (("text",), ProgramError, "tpu.check checks a compiled Keras model, not 'text'"),
        (
            (model,),
            ProgramError,
            "the model 'model' is not compiled: call model.compile(optimizer, loss) first",
        ),
    ]:
        with pytest.raises(kind) as caught:
            tpu.check(*arguments)
        assert str(caught.value) == message
    model.compile("sgd", "mse")
    with pytest.raises(DataError) as caught:
        tpu.check(model, y=np.ones((4, 2)))
    assert str(caught.value) == "y was passed without x: pass both, tpu.check(model, x, y), or neither to generate both"
    for name, value in (("batch_size", 0), ("cores", 2.0), ("cores", True)):
        with pytest.raises(SettingError) as caught:
            tpu.check(model, **{name: value})
        assert str(caught.value) == f"{name} must be a positive integer, not {value!r}"
    with pytest.raises(SettingError) as caught:
        tpu.check(model, timeout_s=0)
    assert str(caught.value) == "timeout_s must be a positive number of seconds, not 0"


def test_a_child_that_takes_too_long():
    with pytest.raises(BackendError) as caught:
        tpu.check(with_planted(jnp.tanh), cores=2, timeout_s=0.01)
    assert "on 2 devices took longer than 0.01 s and was ended. Give tpu.check a smaller batch_size" in str(
        caught.value
    )
