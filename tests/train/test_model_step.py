"""`tpu.model_step`: a train_step in TensorFlow's form trains as Keras's own step does."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


SEEDS = keras.random.SeedGenerator(5)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x)


class Stepped(Net):
    @tpu.model_step
    def train_step(self, data):
        x, y = data

        def compute_loss():
            y_pred = self(x, training=True)
            return self.compiled_loss(y, y_pred), y_pred

        (_, y_pred), gradients = tpu.value_and_grad(compute_loss, self.trainable_variables, has_aux=True)()
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.compiled_metrics.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    @tpu.model_step
    def test_step(self, data):
        x, y = data
        return {"loss": keras.ops.mean((self(x) - y) ** 2)}


class Pair(keras.Model):
    """Two parts with an optimizer each, noise of a generator outside, and no `call`."""

    def __init__(self):
        super().__init__()
        self.first = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.second = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def compile(self, first_optimizer, second_optimizer):  # pyright: ignore[reportIncompatibleMethodOverride]
        super().compile()
        self.first_optimizer, self.second_optimizer = first_optimizer, second_optimizer

    @tpu.model_step
    def train_step(self, data):
        noise = keras.random.normal((1,), seed=SEEDS)
        losses = {}
        for name in ("first", "second"):
            part, optimizer = getattr(self, name), getattr(self, f"{name}_optimizer")
            loss, gradients = tpu.value_and_grad(
                lambda part=part: keras.ops.mean(part(data) ** 2), part.trainable_variables
            )()
            optimizer.apply_gradients(zip(gradients, part.trainable_variables, strict=True))
            losses[name] = loss
        return {**losses, "noise": noise[0]}


def fitted(kind: Any, scope: Any, batch_size: int = 16) -> Any:
    keras.utils.set_random_seed(3)
    with scope:
        model = kind()
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    return model, model.fit(X, Y + 1, batch_size=batch_size, epochs=3, shuffle=False, verbose=0).history


@pytest.mark.parametrize("cores", [0, 2])
def test_it_trains_as_the_step_of_keras(cores):
    strategy = tpu.connect("virtual", cores=cores) if cores else None
    scopes = [strategy.scope() if strategy else contextlib.nullcontext() for _ in range(2)]
    (model, mine), (other, wanted) = fitted(Stepped, scopes[0]), fitted(Net, scopes[1])
    np.testing.assert_allclose(mine["loss"], wanted["loss"], rtol=1e-4)
    np.testing.assert_allclose(model.get_weights()[0], other.get_weights()[0], rtol=1e-4)
    mine = model.evaluate(X, Y + 1, batch_size=64, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(mine, other.evaluate(X, Y + 1, batch_size=64, verbose=0)[0], rtol=1e-4)


def test_a_shorter_last_batch_weighs_less_in_the_loss():
    (_, mine), (_, wanted) = (fitted(kind, contextlib.nullcontext(), 48) for kind in (Stepped, Net))
    np.testing.assert_allclose(mine["loss"], wanted["loss"], rtol=1e-4)


def test_a_mean_of_the_models_own_named_loss_is_not_updated():
    class Own(Stepped):
        def __init__(self):
            super().__init__()
            self.own = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.own]

    _, history = fitted(Own, contextlib.nullcontext())
    assert history["loss"] == [0.0] * 3


def test_two_optimizers_and_a_generator_outside_keep_their_state():
    keras.utils.set_random_seed(3)
    model: Any = Pair()
    model.compile(keras.optimizers.Adam(0.05), keras.optimizers.SGD(0.05))
    history = model.fit(X, batch_size=32, epochs=3, verbose=0).history
    assert int(model.first_optimizer.iterations) == int(model.second_optimizer.iterations) == 6
    assert history["first"][-1] < history["first"][0]
    assert len(set(history["noise"])) == 3


class Adversaries(keras.Model):
    """Two parts that are not built, whose step takes the real rows first and the noise second."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(4)])
        self.judge = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])

    def call(self, noise):
        return self.judge(self.generator(noise))

    @tpu.model_step
    def train_step(self, data):
        real, noise = data

        def losses():
            fake = keras.ops.mean(self.judge(self.generator(noise)) ** 2)
            return keras.ops.mean((self.judge(real) - 1) ** 2) + fake, -fake

        parts = [self.judge.trainable_variables, self.generator.trainable_variables]
        (first, second), gradients = tpu.value_and_grad(losses, parts)()
        for part, wanted in zip(gradients, parts, strict=True):
            assert len(part) == len(wanted) == 4
        pairs = [pair for part in zip(gradients, parts, strict=True) for pair in zip(*part, strict=True)]
        self.optimizer.apply_gradients(pairs)
        return {"judge": first, "generator": second}


class Named(keras.Model):
    """A step that names all weights before anything is built."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(x)

    @tpu.model_step
    def train_step(self, data):
        x, y = data
        variables = self.trainable_variables

        def compute_loss():
            return keras.ops.mean((self(x) - y) ** 2)

        loss, gradients = tpu.value_and_grad(compute_loss, variables)()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("cores", [0, 2])
def test_the_step_builds_its_parts(cores):
    with tpu.connect("virtual", cores=cores).scope() if cores else contextlib.nullcontext():
        adversaries: Any = Adversaries()
        named: Any = Named()
        adversaries.compile("sgd")
        named.compile(keras.optimizers.SGD(0.0))
    noise = np.random.default_rng(1).normal(size=(64, 2)).astype("float32")
    assert sorted(adversaries.fit(X, noise, verbose=0).history) == ["generator", "judge"]
    assert [v.shape[0] for v in adversaries.generator.weights[::2]] == [2, 3]
    assert [v.shape[0] for v in adversaries.judge.weights[::2]] == [4, 3]
    history = named.fit(X, Y + 2, batch_size=64, verbose=0).history
    if cores:
        # Keras has a mean of the name "loss", which this step does not update.
        assert history["loss"] == pytest.approx([4.0])


def test_an_error_of_the_step_stays_that_error():
    class Broken(Named):
        @tpu.model_step
        def train_step(self, data):
            super().call(data[0])
            raise KeyError("no such part")

    model: Any = Broken()
    model.compile("sgd")
    with pytest.raises(KeyError, match="no such part"):
        model.fit(X, Y, verbose=0)
