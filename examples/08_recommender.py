"""A recommender: two towers on one embedding table, trained on made clicks, beside the most popular items.

    python examples/08_recommender.py [--users 30000] [--items 5000] [--epochs 3] [--smoke]

A user is the mean of the items clicked before; the next click is the target. The popularity of the items is skewed, and
each user likes two of 40 topics. Training compares each target with the other targets of its batch, corrected for their
popularity. The table is `tpu.layers.ShardedEmbedding`: its rows are split over the cores, and a step updates the rows
of its batch. The result is the share of users whose hidden last click is among ten recommended items.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import NamedTuple

import numpy as np

import anytpu as tpu  # isort: skip
import keras

TOPICS, HISTORY, WIDTH, TOP = 40, 15, 32, 10


class Clicks(NamedTuple):
    """Clicks of users in their order.

    Attributes:
        history: items clicked before, `(users, HISTORY)`.
        next: the next click, `(users,)`, for training.
        last: the click after that, `(users,)`, which no training sees.
        popularity: probability of each item over all users, `(items,)`.
    """

    history: np.ndarray
    next: np.ndarray
    last: np.ndarray
    popularity: np.ndarray


def make_clicks(users: int, items: int, seed: int = 0) -> Clicks:
    """Make clicks: popularity falls with the rank of an item, and a user clicks items of two topics."""
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, items + 1) ** 0.8
    topic_of_item = rng.integers(0, TOPICS, items)
    rng.shuffle(weight)
    topics = np.stack([rng.permutation(TOPICS)[:2] for _ in range(users)])
    # The topic of each click: mostly one of the user's two, sometimes any.
    chosen = np.take_along_axis(topics, rng.integers(0, 2, (users, HISTORY + 2)), 1)
    chosen = np.where(rng.random(chosen.shape) < 0.15, rng.integers(0, TOPICS, chosen.shape), chosen)
    clicks = np.empty(chosen.shape, "int32")
    for topic in range(TOPICS):
        members = np.flatnonzero(topic_of_item == topic)
        share = np.cumsum(weight[members]) / weight[members].sum()
        places = chosen == topic
        clicks[places] = members[np.minimum(np.searchsorted(share, rng.random(places.sum())), len(members) - 1)]
    popularity = np.bincount(clicks[:, : HISTORY + 1].ravel(), minlength=items) + 1.0
    return Clicks(clicks[:, :HISTORY], clicks[:, HISTORY], clicks[:, HISTORY + 1], popularity / popularity.sum())


@keras.saving.register_keras_serializable("examples")
class BatchSoftmax(keras.layers.Layer):
    """The loss of each user: cross-entropy of the user's target among the targets of the batch."""

    def call(self, user, item, log_popularity):
        logits = keras.ops.matmul(user, keras.ops.transpose(item)) - keras.ops.transpose(log_popularity)
        targets = keras.ops.arange(keras.ops.shape(logits)[0])
        return keras.ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)[:, None]


def make_model(items: int) -> tuple[keras.Model, tpu.layers.ShardedEmbedding]:
    """Return the model of a training step, and its table."""
    history = keras.Input((HISTORY,), dtype="int32", name="history")
    item = keras.Input((), dtype="int32", name="item")
    log_popularity = keras.Input((1,), name="log_popularity")
    table = tpu.layers.ShardedEmbedding(items, WIDTH, combiner="mean", optimizer=keras.optimizers.Adam(0.003))
    # One call for both features: they share the table.
    vectors = table({"history": history, "item": item})
    loss = BatchSoftmax()(6.0 * vectors["history"], vectors["item"], log_popularity)
    model = keras.Model([history, item, log_popularity], loss)
    model.compile("sgd", lambda _, loss: loss)
    return model, table


def recall(vectors: np.ndarray, clicks: Clicks) -> float:
    """Return the share of users whose last click is among the TOP items nearest to the mean of their clicks."""
    found = 0
    for first in range(0, len(clicks.last), 1024):
        part = slice(first, first + 1024)
        seen = np.concatenate([clicks.history[part], clicks.next[part, None]], 1)
        scores = vectors[seen].mean(1) @ vectors.T
        np.put_along_axis(scores, seen, -np.inf, 1)
        found += (np.argpartition(-scores, TOP, 1)[:, :TOP] == clicks.last[part, None]).any(1).sum()
    return found / len(clicks.last)


def popular_recall(clicks: Clicks) -> float:
    """Return the same share for the TOP most popular items."""
    return float(np.isin(clicks.last, np.argsort(-clicks.popularity)[:TOP]).mean())


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", type=int, default=30_000)
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="few users, for a test")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.users, options.items = 4_000, 500
    keras.utils.set_random_seed(0)
    clicks = make_clicks(options.users, options.items)
    strategy = tpu.connect()
    with strategy.scope():
        model, table = make_model(options.items)
    began = time.perf_counter()
    log_popularity = np.log(clicks.popularity[clicks.next]).astype("float32")[:, None]
    inputs = {"history": clicks.history, "item": clicks.next, "log_popularity": log_popularity}
    model.fit(inputs, np.zeros((options.users, 1), "float32"), batch_size=256, epochs=options.epochs, verbose=2)
    seconds = time.perf_counter() - began
    print(f"trained {options.users:,} users and {options.items:,} items in {seconds:.0f} s on {strategy}")
    print(
        f"recall at {TOP}: {recall(np.asarray(table.embeddings), clicks):.3f}; the most popular items: "
        f"{popular_recall(clicks):.3f}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
