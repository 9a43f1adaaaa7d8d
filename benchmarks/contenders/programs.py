"""Twelve small programs in the style of keras.io. They know nothing of what runs them: see `keras_style.py`.

Each function takes a number of steps and returns what runs so many of them and returns the last loss (the sum of the
predictions, where nothing is trained). Arrays are random, the same for every contender.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from keras import layers, ops

from worker import Train


def mini_gpt(steps: int) -> Train:
    """Text generation: a causal transformer block over 40 words of 2000, two outputs, a loss on one of them."""
    words, length, size = 2000, 40, 64
    inputs = layers.Input((length,), dtype="int32")
    x = TokenAndPosition(length, words, size)(inputs)
    x = TransformerBlock(size, heads=2, hidden=size, is_causal=True)(x)
    model = keras.Model(inputs, [layers.Dense(words)(x), x])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=[loss, None])
    random = np.random.default_rng(0)
    text = random.integers(0, words, (steps * 32, length + 1), dtype=np.int32)
    return fitting(model, text[:, :-1], text[:, 1:], 32)


def transformer(steps: int) -> Train:
    """Text classification: one transformer block over 64 words of 10000."""
    words, length, size = 10000, 64, 32
    inputs = layers.Input((length,), dtype="int32")
    x = TokenAndPosition(length, words, size)(inputs)
    x = layers.GlobalAveragePooling1D()(TransformerBlock(size, heads=2, hidden=32)(x))
    x = layers.Dropout(0.1)(layers.Dense(20, activation="relu")(layers.Dropout(0.1)(x)))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    random = np.random.default_rng(0)
    text = random.integers(0, words, (steps * 32, length), dtype=np.int32)
    return fitting(model, text, random.integers(0, 2, steps * 32), 32)


def vae(steps: int) -> Train:
    """Variational autoencoder of images of 28 x 28: a training step of its own and three means."""
    model = VariationalAutoencoder()
    model.compile(keras.optimizers.Adam())
    model.build((None, 28, 28, 1))
    images = np.random.default_rng(0).random((steps * 32, 28, 28, 1), dtype=np.float32)
    return fitting(model, images, None, 32)


def gan(steps: int) -> Train:
    """Generative adversarial network of images of 28 x 28: a training step of its own with two optimizers."""
    model = Adversarial()
    model.compile(optimizer=keras.optimizers.Adam(3e-4))
    images = np.random.default_rng(0).random((steps * 32, 28, 28, 1), dtype=np.float32)
    return fitting(model, images, None, 32)


def siamese(steps: int) -> Train:
    """Two images through one network, and a contrastive loss on the distance of what comes out."""
    tower = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.BatchNormalization(),
            layers.Conv2D(4, 5, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 5, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.BatchNormalization(),
            layers.Dense(10, activation="tanh"),
        ]
    )
    first, second = layers.Input((28, 28, 1)), layers.Input((28, 28, 1))
    distance = layers.Lambda(_distance, output_shape=(1,))([tower(first), tower(second)])
    outputs = layers.Dense(1, activation="sigmoid")(layers.BatchNormalization()(distance))
    model = keras.Model([first, second], outputs)
    model.compile("rmsprop", _contrastive, metrics=["accuracy"])
    random = np.random.default_rng(0)
    pairs = random.random((2, steps * 16, 28, 28, 1), dtype=np.float32)
    return fitting(model, [pairs[0], pairs[1]], random.integers(0, 2, steps * 16).astype("float32"), 16)


def mlp_metrics(steps: int) -> Train:
    """Credit card fraud: dense layers 29-256-256-256-1 with dropout, batches of 512, weighted classes, 7 metrics."""
    model = keras.Sequential(
        [
            layers.Input((29,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(256, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    kinds = keras.metrics
    metrics = [kinds.FalseNegatives(), kinds.FalsePositives(), kinds.TrueNegatives(), kinds.TruePositives()]
    metrics += [kinds.Precision(), kinds.Recall(), kinds.AUC()]
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=metrics)
    random = np.random.default_rng(0)
    x = random.normal(size=(steps * 512, 29)).astype("float32")
    y = (random.random((steps * 512, 1)) < 0.1).astype("float32")
    return fitting(model, x, y, 512, class_weight={0: 1.0, 1: 9.0})


def convnet(steps: int) -> Train:
    """Images of 32 x 32: three convolutions with BatchNorm."""
    model = keras.Sequential([layers.Input((32, 32, 3)), layers.Rescaling(1 / 255)])
    for filters in (16, 32, 64):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.Activation("relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dropout(0.5))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    random = np.random.default_rng(0)
    return fitting(model, _images(random, steps * 32), random.integers(0, 10, steps * 32), 32)


def lstm(steps: int) -> Train:
    """Film reviews: two bidirectional LSTMs over 80 words of 10000."""
    inputs = layers.Input((80,), dtype="int32")
    x = layers.Embedding(10000, 64)(inputs)
    x = layers.Bidirectional(layers.LSTM(32, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(32))(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    random = np.random.default_rng(0)
    text = random.integers(0, 10000, (steps * 32, 80), dtype=np.int32)
    return fitting(model, text, random.integers(0, 2, (steps * 32, 1)), 32)


def multi(steps: int) -> Train:
    """Customers' tickets: title, text and tags in, priority and department out."""
    title, body = layers.Input((12,), name="title"), layers.Input((40,), name="body")
    tags = layers.Input((12,), name="tags")
    x = layers.LSTM(64)(layers.Embedding(5000, 32)(title))
    z = layers.LSTM(32)(layers.Embedding(5000, 32)(body))
    joined = layers.concatenate([x, z, tags])
    outputs = {
        "priority": layers.Dense(1, name="priority")(joined),
        "department": layers.Dense(4, name="department")(joined),
    }
    model = keras.Model([title, body, tags], outputs)
    losses = {
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    }
    model.compile("rmsprop", losses, loss_weights={"priority": 1.0, "department": 0.2})
    random, rows = np.random.default_rng(0), steps * 32
    x = {"title": random.integers(0, 5000, (rows, 12)), "body": random.integers(0, 5000, (rows, 40))}
    x["tags"] = random.integers(0, 2, (rows, 12)).astype("float32")
    y = {"priority": random.random((rows, 1)), "department": random.integers(0, 2, (rows, 4))}
    return fitting(model, x, {name: labels.astype("float32") for name, labels in y.items()}, 32)


def callback(steps: int) -> Train:
    """Fit with a callback that reads the logs after every batch."""
    seen: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(float(logs["loss"])))
    x, y = _digits(steps * 32)
    return fitting(_mlp(), x, y, 32, callbacks=[note])


def train_on_batch(steps: int) -> Train:
    """Train with a loop of one's own around `train_on_batch`."""
    model = _mlp()
    x, y = _digits(64 * 32)

    def train() -> float:
        loss = 0.0
        for step in range(steps):
            rows = slice(step % 64 * 32, (step % 64 + 1) * 32)
            loss = model.train_on_batch(x[rows], y[rows])[0]
        return float(loss)

    return train


def predict_row(steps: int) -> Train:
    """Predict one row a call, as a small server does."""
    model = _mlp()
    x, _ = _digits(steps)
    return lambda: float(sum(model.predict(x[row : row + 1], verbose=0).sum() for row in range(steps)))


def fitting(model: Any, x: Any, y: Any, batch_size: int, **others: Any) -> Train:
    """Return a function that goes over the data once."""
    keras.utils.set_random_seed(0)

    def train() -> float:
        history = model.fit(x, y, batch_size=batch_size, verbose=0, **others)
        return history.history["loss"][-1]

    return train


def _mlp() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Input((64,)), layers.Dense(128, activation="relu"), layers.Dropout(0.2)])
    model.add(layers.Dense(128, activation="relu"))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _digits(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.random((rows, 64), dtype=np.float32), random.integers(0, 10, rows)


def _images(random: np.random.Generator, rows: int) -> np.ndarray:
    return 255 * random.random((rows, 32, 32, 3), dtype=np.float32)


def _distance(vectors: Any) -> Any:
    square = ops.sum(ops.square(vectors[0] - vectors[1]), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(square, keras.config.epsilon()))


def _contrastive(y_true: Any, y_pred: Any) -> Any:
    margin = ops.square(ops.maximum(1.0 - y_pred, 0.0))
    return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * margin)


class TokenAndPosition(layers.Layer):
    """The sum of what a word and its place are embedded as."""

    def __init__(self, length: int, words: int, size: int) -> None:
        super().__init__()
        self.token_emb: Any = layers.Embedding(words, size)
        self.pos_emb: Any = layers.Embedding(length, size)

    def call(self, x: Any) -> Any:
        return self.token_emb(x) + self.pos_emb(ops.arange(0, x.shape[-1]))


class TransformerBlock(layers.Layer):
    """Attention and two dense layers, each with dropout, a residual and a normalization."""

    def __init__(self, size: int, heads: int, hidden: int, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.att = layers.MultiHeadAttention(heads, size // heads)
        self.ffn = keras.Sequential([layers.Dense(hidden, activation="relu"), layers.Dense(size)])
        self.norm1, self.norm2 = (layers.LayerNormalization(epsilon=1e-6) for _ in range(2))
        self.drop1, self.drop2 = (layers.Dropout(0.1) for _ in range(2))

    def call(self, x: Any) -> Any:
        attended = self.norm1(x + self.drop1(self.att(x, x, use_causal_mask=self.is_causal)))
        return self.norm2(attended + self.drop2(self.ffn(attended)))


class Sampling(layers.Layer):
    """Draw from the normal distribution of a mean and the logarithm of a variance."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seed_generator)


class VariationalAutoencoder(keras.Model):
    """An encoder to two numbers, and a decoder of them."""

    def __init__(self) -> None:
        super().__init__()
        inputs = layers.Input((28, 28, 1))
        x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(inputs)
        x = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(x)
        x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
        mean, log_variance = layers.Dense(2)(x), layers.Dense(2)(x)
        self.encoder = keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])])
        latent = layers.Input((2,))
        x = layers.Reshape((7, 7, 16))(layers.Dense(7 * 7 * 16, activation="relu")(latent))
        x = layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(x)
        x = layers.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same")(x)
        outputs = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
        self.decoder = keras.Model(latent, outputs)
        names = ("loss", "reconstruction_loss", "kl_loss")
        self.means = [keras.metrics.Mean(name=name) for name in names]

    def call(self, x: Any, training: bool = False) -> Any:
        mean, log_variance, z = self.encoder(x)
        return self.decoder(z), mean, log_variance

    def build(self, input_shape: Any) -> None:
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return self.means

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, fixed, slots, metrics = state
        images, _, _ = keras.utils.unpack_x_y_sample_weight(data)

        def losses(trainable: Any, fixed: Any) -> Any:
            model: Any = self
            (made, mean, log_variance), fixed = model.stateless_call(trainable, fixed, images, training=True)
            reconstruction = ops.mean(ops.sum(keras.losses.binary_crossentropy(images, made), axis=(1, 2)))
            distances = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            divergence = ops.mean(ops.sum(distances, axis=1))
            total: Any = ops.add(reconstruction, divergence)
            return total, (reconstruction, divergence, fixed)

        (loss, (reconstruction, divergence, fixed)), gradients = jax.value_and_grad(losses, has_aux=True)(
            trainable, fixed
        )
        trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        logs, new_metrics = {}, []
        for number, value in enumerate((loss, reconstruction, divergence)):
            mean = self.means[number]
            kept = mean.stateless_update_state(metrics[2 * number : 2 * number + 2], value)
            logs[mean.name] = mean.stateless_result(kept)
            new_metrics += kept
        return logs, (trainable, fixed, slots, new_metrics)


class Adversarial(keras.Model):
    """A discriminator and a generator, each with an optimizer: the generator's is the model's own."""

    size = 32

    def __init__(self) -> None:
        super().__init__()
        self.discriminator: Any = keras.Sequential(
            [
                layers.Input((28, 28, 1)),
                layers.Conv2D(8, 3, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Conv2D(16, 3, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.GlobalMaxPooling2D(),
                layers.Dense(1),
            ]
        )
        self.generator: Any = keras.Sequential(
            [
                layers.Input((self.size,)),
                layers.Dense(7 * 7 * 16),
                layers.LeakyReLU(0.2),
                layers.Reshape((7, 7, 16)),
                layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Conv2D(1, 7, padding="same", activation="sigmoid"),
            ]
        )
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        self.d_mean, self.g_mean = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="loss")
        optimizer = keras.optimizers.Adam(3e-4)
        optimizer.build(self.discriminator.trainable_variables)
        self.d_slots = list(optimizer.variables)  # Keras carries them with the weights that are not trained.
        self.d_optimizer = optimizer
        self.built = True

    def call(self, x: Any) -> Any:
        return self.discriminator(x)

    @property
    def metrics(self) -> list[Any]:
        return [self.d_mean, self.g_mean]

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, fixed, slots, metrics = state
        images, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        rows, entropy = images.shape[0], self.entropy
        weights = dict(zip((v.path for v in self.trainable_variables), trainable, strict=True))
        others = dict(zip((v.path for v in self.non_trainable_variables), fixed, strict=True))
        d_names = [v.path for v in self.discriminator.trainable_variables]
        g_names = [v.path for v in self.generator.trainable_variables]
        d_weights, g_weights = [weights[name] for name in d_names], [weights[name] for name in g_names]
        slot_names, seed_name = [v.path for v in self.d_slots], self.seed_generator.state.path
        with keras.StatelessScope([(self.seed_generator.state, others[seed_name])]) as scope:
            first = keras.random.normal((rows, self.size), seed=self.seed_generator)
            second = keras.random.normal((rows, self.size), seed=self.seed_generator)
        others[seed_name] = scope.get_current_value(self.seed_generator.state)

        def d_loss(d_weights: Any) -> Any:
            made, _ = self.generator.stateless_call(g_weights, [], first)
            both = ops.concatenate([made, images])
            logits, _ = self.discriminator.stateless_call(d_weights, [], both)
            return entropy(ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))]), logits)

        def g_loss(g_weights: Any) -> Any:
            made, _ = self.generator.stateless_call(g_weights, [], second)
            logits, _ = self.discriminator.stateless_call(d_weights, [], made)
            return entropy(ops.zeros((rows, 1)), logits)

        d_value, gradients = jax.value_and_grad(d_loss)(d_weights)
        d_slots = [others[name] for name in slot_names]
        d_weights, d_slots = self.d_optimizer.stateless_apply(d_slots, gradients, d_weights)
        g_value, gradients = jax.value_and_grad(g_loss)(g_weights)
        zeros = [ops.zeros_like(weight) for weight in d_weights]
        ours = dict(zip(g_names, gradients, strict=True)) | dict(zip(d_names, zeros, strict=True))
        g_all, slots = self.optimizer.stateless_apply(slots, [ours[name] for name in weights], list(weights.values()))
        weights = dict(zip(weights, g_all, strict=True)) | dict(zip(d_names, d_weights, strict=True))
        others |= dict(zip(slot_names, d_slots, strict=True))
        kept = self.d_mean.stateless_update_state(metrics[:2], d_value)
        kept += self.g_mean.stateless_update_state(metrics[2:], g_value)
        logs = {"d_loss": self.d_mean.stateless_result(kept[:2]), "loss": self.g_mean.stateless_result(kept[2:])}
        return logs, (list(weights.values()), list(others.values()), slots, kept)


PROGRAMS: dict[str, Callable[[int], Train]] = {
    "mini_gpt": mini_gpt,
    "transformer": transformer,
    "vae": vae,
    "gan": gan,
    "siamese": siamese,
    "mlp_metrics": mlp_metrics,
    "convnet": convnet,
    "lstm": lstm,
    "multi": multi,
    "callback": callback,
    "train_on_batch": train_on_batch,
    "predict_row": predict_row,
}
