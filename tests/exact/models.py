"""The models of the exact grid and the rows they learn from: of each kind that a wrong split over cores would spoil.

Idea: a mean over the rows survives a naive split; statistics over the batch (BatchNorm), random masks (dropout),
weights of rows, and losses that compare the rows of a batch with each other do not.

Rule: pure functions; the same seed makes the same model and the same rows in any process. The models are well
conditioned: a change of the first weights grows less than tenfold in 50 steps of SGD, so that no chaos is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

CLASSES = 3
FEATURES = 10
IMAGE = (6, 6, 2)
UNEVEN = keras.initializers.RandomNormal(stddev=0.5, seed=5)
"""For the last bias: where all else is zero the logits are this bias, and rounding noise does not choose the class."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Some examples.

    Attributes:
        x: `(rows, ...)`, in floatx.
        y: `(rows,)`, the class of each.
        weight: `(rows,)`, in floatx, or None.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Kind:
    """One of the models.

    Attributes:
        make: builds it; not compiled.
        shape: of one example.
        weighted: True when it is fitted and evaluated with a weight for each row.
        streamed: True when its batches come from a PyDataset, False when its arrays lie on the device.
    """

    make: Callable[[], keras.Model]
    shape: tuple[int, ...] = (FEATURES,)
    weighted: bool = False
    streamed: bool = False


def mlp() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-2)),
            layers.Dense(CLASSES, bias_initializer=UNEVEN),
        ]
    )


def cnn() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(IMAGE),
            # A bias before BatchNorm would have no gradient but rounding noise, and Adam would make steps of it.
            layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(CLASSES, bias_initializer=UNEVEN),
        ]
    )


class Contrastive(keras.Model):
    """A model with a training step of its own: its loss compares each row of the batch with all others."""

    def batch_loss(self, trainable: list, non_trainable: list, x: Any, y: Any) -> tuple[Any, tuple[Any, list]]:
        logits, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
        alike = (y[:, None] == y[None, :]).astype(logits.dtype)
        centred = logits - keras.ops.mean(logits, axis=0)
        pairs = keras.ops.sum(keras.ops.square(keras.ops.tanh(centred @ centred.T) - alike)) / (y.shape[0] ** 2)
        cross = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        return cross + 0.3 * pairs, (logits, non_trainable)

    def train_step(self, state: Any, batch: Any) -> tuple[dict, Any]:
        trainable, non_trainable, optimizer, metrics = state
        x, y = batch
        gradient = jax.value_and_grad(self.batch_loss, has_aux=True)
        (loss, (logits, non_trainable)), gradients = gradient(trainable, non_trainable, x, y)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs, written = {}, []
        for metric in self.metrics:
            mine, metrics = metrics[: len(metric.variables)], metrics[len(metric.variables) :]
            seen = (loss,) if metric.name == "loss" else (y, logits)
            mine = metric.stateless_update_state(mine, *seen)
            value = metric.stateless_result(mine)
            logs.update(value if isinstance(value, dict) else {metric.name: value})
            written += mine
        return logs, (trainable, non_trainable, optimizer, written)


def contrastive() -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((FEATURES,))
    hidden = layers.Dense(8, activation="tanh")(inputs)
    return Contrastive(inputs, layers.Dense(CLASSES, bias_initializer=UNEVEN)(hidden))


def wide_mlp() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(256, activation="tanh", name="up"),
            layers.Dense(64, activation="tanh", name="down"),
            layers.Dense(CLASSES, bias_initializer=UNEVEN),
        ]
    )


def wide_cnn() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            layers.Conv2D(32, 3, padding="same", use_bias=False, name="up"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(64, 3, strides=2, padding="same", name="down"),
            layers.Dropout(0.2),
            layers.Flatten(),
            layers.Dense(CLASSES, bias_initializer=UNEVEN),
        ]
    )


def lstm() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6, 32)), layers.LSTM(64, name="lstm"), layers.Dense(CLASSES, bias_initializer=UNEVEN)]
    )


class Tokens(keras.layers.Layer):
    """Numbers of any size as the indices of 64 tokens."""

    def call(self, x: Any) -> Any:
        return keras.ops.cast(keras.ops.floor(keras.ops.abs(x) * 16), "int32") % 64


def transformer() -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((8,))
    hidden = layers.Embedding(64, 128, name="vocabulary")(Tokens()(inputs))
    for block in range(2):
        normal = layers.LayerNormalization()(hidden)
        # With dropout, Keras computes the products itself; `jax.nn.dot_product_attention` computes in float32.
        hidden = hidden + layers.MultiHeadAttention(4, 32, dropout=0.1, name=f"attention{block}")(
            normal, normal, use_causal_mask=True
        )
        inner = layers.Dense(256, activation="gelu", name=f"up{block}")(layers.LayerNormalization()(hidden))
        hidden = hidden + layers.Dense(128, name=f"down{block}")(inner)
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(hidden))
    return keras.Model(inputs, layers.Dense(CLASSES, bias_initializer=UNEVEN)(pooled))


class Experts(keras.layers.Layer):
    """The two best of eight experts for each row, weighted by their gates."""

    def build(self, shape: Any) -> None:
        features = shape[-1]
        self.router = self.add_weight(name="router", shape=(features, 8), initializer="glorot_uniform")
        self.inner = self.add_weight(name="inner", shape=(8, features, 64), initializer="glorot_uniform")
        self.outer = self.add_weight(name="outer", shape=(8, 64, features), initializer="glorot_uniform")

    def call(self, x: Any) -> Any:
        ops = keras.ops
        gates = ops.softmax(x @ self.router)
        best = gates >= ops.top_k(gates, 2)[0][..., -1:]
        gates = ops.where(best, gates, ops.zeros_like(gates))
        hidden = ops.tanh(ops.einsum("bf,efh->beh", x, self.inner))
        return x + ops.einsum("be,beh,ehf->bf", gates, hidden, self.outer)


def experts() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(64, activation="tanh"),
            Experts(name="experts"),
            layers.Dense(CLASSES, bias_initializer=UNEVEN),
        ]
    )


KINDS = {
    "mlp": Kind(mlp),
    "cnn": Kind(cnn, IMAGE),
    "batch-wide": Kind(contrastive),
    "weighted": Kind(mlp, weighted=True),
    "streamed": Kind(mlp, weighted=True, streamed=True),
    "wide-mlp": Kind(wide_mlp, (32,)),
    "wide-cnn": Kind(wide_cnn, (8, 8, 4)),
    "lstm": Kind(lstm, (6, 32)),
    "transformer": Kind(transformer, (8,)),
    "experts": Kind(experts, (32,)),
}
"""Each model by its name."""


class Batches(keras.utils.PyDataset):
    """Rows as a PyDataset: batches made on the host, the last one partial."""

    def __init__(self, rows: Rows, size: int) -> None:
        super().__init__()
        self.columns = [column for column in (rows.x, rows.y, rows.weight) if column is not None]
        self.size = size

    def __len__(self) -> int:
        return -(-len(self.columns[0]) // self.size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        return tuple(column[index * self.size : (index + 1) * self.size] for column in self.columns)


def rows_of(kind: Kind, count: int, seed: int) -> Rows:
    """Return so many examples for a model, drawn from this seed."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, *kind.shape))
    y = np.argmax(x.reshape(count, -1)[:, :CLASSES], axis=1)
    weight = draw.uniform(0.2, 3.0, size=count) if kind.weighted else None
    floatx = keras.config.floatx()
    return Rows(x.astype(floatx), y.astype(np.int32), None if weight is None else weight.astype(floatx))


def compiled(kind: Kind, optimizer: str, steps_per_execution: Any = None) -> keras.Model:
    """Return a model, built and compiled; inside the scope of a strategy, for that strategy.

    Args:
        kind: which one.
        optimizer: "sgd" or "adam".
        steps_per_execution: what to pass to compile; None passes nothing.
    """
    model = kind.make()
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.5),
        "adam": lambda: keras.optimizers.Adam(),
    }
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    settings = {} if steps_per_execution is None else {"steps_per_execution": steps_per_execution}
    measured = "weighted_metrics" if kind.weighted else "metrics"
    model.compile(optimizer=optimizers[optimizer](), loss=loss, **{measured: ["accuracy"]}, **settings)
    return model
