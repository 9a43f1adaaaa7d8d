"""Models of every form, with every kind of state, against plain Keras."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

from keras_oracle import CLASSES, FEATURES, PLACES, agrees, compiled, rows, run, values

X, Y = rows()
IMAGES = np.random.default_rng(5).normal(size=(48, 6, 6, 2)).astype("float32")


def functional() -> Any:
    """A graph with a model in it and a layer that is called twice."""
    inputs, twice = keras.Input((FEATURES,)), layers.Dense(FEATURES, activation="tanh")
    inner = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(5, activation="relu"), layers.Dense(FEATURES)])
    joined = layers.concatenate([inputs, twice(twice(inner(inputs)))])
    return compiled(keras.Model(inputs, layers.Dense(CLASSES)(joined)))


def unbuilt() -> Any:
    return compiled(keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(CLASSES)]))


class Subclassed(keras.Model):
    """A model that is built by its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="tanh")
        self.drop = layers.Dropout(0.3)
        self.out = layers.Dense(CLASSES)

    def call(self, x, training=False):
        return self.out(self.drop(self.hidden(x), training=training))


def subclassed() -> Any:
    return compiled(Subclassed())


def normalised() -> Any:
    parts = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.4), layers.Flatten()]
    return compiled(keras.Sequential([keras.Input((6, 6, 2)), *parts, layers.Dense(CLASSES)]))


class Penalty(layers.Layer):
    """Adds a loss of its own, and counts its calls in a variable."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        self.calls.assign_add(1.0)
        return x


def penalised() -> Any:
    hidden = layers.Dense(8, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.01))
    parts = [hidden, Penalty(), layers.Dense(CLASSES, bias_regularizer="l1")]
    return compiled(keras.Sequential([keras.Input((FEATURES,)), *parts]))


def frozen() -> Any:
    parts = [layers.Dense(8), layers.BatchNormalization(), layers.Dense(CLASSES)]
    model = compiled(keras.Sequential([keras.Input((FEATURES,)), *parts]))
    parts[0].trainable = parts[1].trainable = False
    return compiled(model)


def recurrent() -> Any:
    parts = [layers.Reshape((3, 2)), layers.LSTM(5), layers.Dense(CLASSES)]
    return compiled(keras.Sequential([keras.Input((FEATURES,)), *parts]))


def with_metrics() -> Any:
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES, activation="softmax")])
    names = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2), keras.metrics.SparseCategoricalCrossentropy()]
    return compiled(model, loss="sparse_categorical_crossentropy", metrics=names, weighted_metrics=["accuracy"])


def optimized(optimizer: Any) -> Any:
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(8, activation="tanh"), layers.Dense(CLASSES)])
    return compiled(model, optimizer=optimizer)


SGD = keras.optimizers.SGD
MODELS = {
    "functional": functional,
    "unbuilt": unbuilt,
    "subclassed": subclassed,
    "penalties": penalised,
    "frozen layers": frozen,
    "recurrent": recurrent,
    "metrics": with_metrics,
    "schedule": lambda: optimized(SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5), weight_decay=0.1)),
    "gradient accumulation": lambda: optimized(SGD(0.5, gradient_accumulation_steps=4, clipnorm=0.1)),
    "clipped global norm": lambda: optimized(SGD(0.5, global_clipnorm=0.1)),
}
ON_THE_TWIN = {"subclassed", "unbuilt", "penalties", "gradient accumulation"}


def use(model: Any) -> Any:
    return (
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0),
        model.evaluate(X, Y, batch_size=8, verbose=0),
        model.predict(X, batch_size=8, verbose=0),
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_model(name: str):
    agrees(MODELS[name], use, places=PLACES if name in ON_THE_TWIN else PLACES[:1])


@pytest.mark.parametrize("overwrite", [None, 5])
def test_moving_averages_of_weights(overwrite: int | None):
    # Only one fit: plain Keras deletes the averages in the first evaluation after it, with the weights they then share.
    agrees(
        lambda: optimized(SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=overwrite)),
        lambda model: model.fit(X, Y, batch_size=8, epochs=2, verbose=0),
        places=PLACES,
    )


def test_moving_averages_survive_what_follows():
    model, _ = run(lambda: optimized(SGD(0.1, use_ema=True, ema_momentum=0.8)), use, "virtual")
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert all(np.isfinite(value).all() for value in values(model))


def test_adam_to_its_rounding():
    agrees(lambda: optimized("adam"), use, tolerance=1e-4)


@pytest.mark.parametrize("size", [48, 43])
def test_batch_normalisation_and_dropout(size: int):
    agrees(
        normalised,
        lambda model: (
            model.fit(IMAGES[:size], Y[:size], batch_size=8, epochs=2, verbose=0),
            model.predict(IMAGES[:size], batch_size=8, verbose=0),
        ),
        places=PLACES,
    )


def two_in_two_out() -> Any:
    left, right = keras.Input((FEATURES,), name="left"), keras.Input((2,), name="right")
    both = layers.concatenate([left, right])
    outputs = {"kind": layers.Dense(CLASSES, name="kind")(both), "size": layers.Dense(1, name="size")(both)}
    model = keras.Model({"left": left, "right": right}, outputs)
    losses = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}
    metrics = {"kind": ["accuracy"], "size": ["mae"]}
    return compiled(model, loss=losses, loss_weights={"kind": 1.0, "size": 0.3}, metrics=metrics)


def test_many_inputs_and_outputs_by_name():
    x, y = {"left": X, "right": X[:, :2]}, {"kind": Y, "size": X[:, :1]}

    def train(model):
        return (
            model.fit(x, y, batch_size=8, epochs=2, verbose=0),
            model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
            model.predict(x, batch_size=8, verbose=0),
            model.train_on_batch(x, y, return_dict=True),
            model.predict_on_batch(x),
        )

    agrees(two_in_two_out, train, places=PLACES)


def test_many_inputs_and_outputs_by_position():
    def make():
        left, right = keras.Input((FEATURES,)), keras.Input((2,))
        both = layers.concatenate([left, right])
        outputs = [layers.Dense(CLASSES, name="kind")(both), layers.Dense(1, name="size")(both)]
        model = keras.Model([left, right], outputs)
        kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return compiled(model, loss=[kind, "mse"], metrics=[["accuracy"], ["mae"]])

    def train(model):
        weights = [np.linspace(0, 1, 48).astype("float32"), np.ones(48, "float32")]
        return (
            model.fit([X, X[:, :2]], [Y, X[:, :1]], sample_weight=weights, batch_size=8, verbose=0),
            model.predict([X, X[:, :2]], batch_size=8, verbose=0),
        )

    agrees(make, train)


def test_a_loss_without_labels():
    def make():
        inputs = keras.Input((FEATURES,))
        outputs = layers.Dense(FEATURES)(layers.Dense(2)(inputs))
        model = keras.Model(inputs, Penalty()(outputs))
        model.compile(optimizer=SGD(0.1))
        return model

    agrees(make, lambda model: (model.fit(X, batch_size=8, verbose=0), model.evaluate(X, verbose=0)))


class OwnStep(keras.Model):
    """A model with its own training and test steps, in the form that Keras asks for on JAX."""

    def __init__(self) -> None:
        super().__init__()
        self.out = layers.Dense(CLASSES)
        self.gap = keras.metrics.Mean(name="gap")

    def call(self, x):
        return self.out(x)

    def loss_and_updates(self, trainable, non_trainable, x, y):
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x)
        return 2 * self.compute_loss(x, y, y_pred), (y_pred, non_trainable)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y = data[0], data[1]
        differentiate = jax.value_and_grad(self.loss_and_updates, has_aux=True)
        (loss, (_, non_trainable)), gradients = differentiate(trainable, non_trainable, x, y)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        with keras.StatelessScope(zip(self.metrics_variables, metrics, strict=True)) as scope:
            self.gap.update_state(loss)
            logs = {"gap": self.gap.result()}
        metrics = [scope.get_current_value(variable) for variable in self.metrics_variables]
        metrics = [new if new is not None else old for new, old in zip(metrics, state[3], strict=True)]
        return logs, (trainable, non_trainable, optimizer, metrics)

    def test_step(self, state, data):
        logs, state = super().test_step(state, data)
        return {"twice": 2 * logs["loss"]}, state

    def predict_step(self, state, data):
        outputs, non_trainable = super().predict_step(state, data)
        return keras.ops.softmax(outputs), non_trainable


def test_steps_of_its_own():
    agrees(lambda: compiled(OwnStep()), use, places=PLACES)


def mixed(policy: str) -> Any:
    def make():
        parts = [layers.Dense(8, activation="tanh", dtype=policy), layers.BatchNormalization(dtype=policy)]
        model = keras.Sequential([keras.Input((FEATURES,)), *parts, layers.Dense(CLASSES, dtype=policy)])
        with_scale = keras.optimizers.LossScaleOptimizer(SGD(0.1)) if policy == "mixed_float16" else SGD(0.1)
        return compiled(model, optimizer=with_scale)

    return make


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy: str):
    # Both sides round to 16 bits, but XLA may fuse differently inside the loop.
    agrees(mixed(policy), use, tolerance=2e-2)


def test_a_model_that_unfreezes():
    def make():
        model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(8), layers.Dense(CLASSES)])
        model.layers[0].trainable = False
        return compiled(model)

    def train(model):
        return model.fit(X, Y, batch_size=8, verbose=0), [np.array(w) for w in model.layers[0].get_weights()]

    agrees(make, train)
