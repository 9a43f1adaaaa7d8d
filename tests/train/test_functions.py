"""`train_on_batch` and its siblings: the first call, and those after it, do what Keras does."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from anytpu.train.adopt import trainer_of
from keras_oracle import PLACES, agrees, classifier, rows, run

X, Y = rows()
WEIGHTS = np.linspace(0.0, 2.0, len(X), dtype="float32")


def some_calls(model: Any) -> list[Any]:
    return [
        model.train_on_batch(X[:8], Y[:8]),
        model.train_on_batch(X[:8], Y[:8], return_dict=True),
        model.train_on_batch(X[:9], Y[:9], sample_weight=WEIGHTS[:9]),
        model.train_on_batch(X[:8], Y[:8], class_weight={0: 1.0, 1: 2.0, 2: 3.0}),
        model.test_on_batch(X, Y),
        model.test_on_batch(X, Y, sample_weight=WEIGHTS, return_dict=True),
        model.predict_on_batch(X[:5]),
        model.predict_on_batch(X[:5]),
        model.predict(X[:1], verbose=0),
        model.evaluate(X, Y, batch_size=len(X), verbose=0),
    ]


def test_calls_again_and_again():
    agrees(classifier, lambda model: [some_calls(model) for _ in range(3)], places=PLACES)


def test_a_new_optimizer_between_calls():
    def train(model: Any) -> list[Any]:
        logs = [model.train_on_batch(X, Y) for _ in range(2)]
        model.optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
        return logs + [model.train_on_batch(X, Y) for _ in range(3)]

    agrees(classifier, train, places=PLACES)


def test_layers_that_are_frozen_between_calls():
    def train(model: Any) -> list[Any]:
        logs = [model.train_on_batch(X, Y) for _ in range(2)]
        model.layers[0].trainable = False
        model.compile("sgd", model.loss, metrics=["accuracy"])
        return logs + [model.train_on_batch(X, Y) for _ in range(2)]

    # Compiled again outside of the scope, it is Keras's own from then on.
    with pytest.warns(UserWarning, match="is compiled outside of it"):
        agrees(classifier, train)


def test_both_kinds_of_weights_are_refused_by_keras_also_later():
    model, _ = run(classifier, lambda model: [model.train_on_batch(X, Y) for _ in range(2)], "virtual")
    with pytest.raises(ValueError, match="`sample_weight` and `class_weight`"):
        model.train_on_batch(X, Y, sample_weight=WEIGHTS, class_weight={0: 1.0, 1: 2.0, 2: 3.0})


def test_a_batch_of_another_length_is_another_program():
    model, _ = run(classifier, lambda model: None, "virtual")
    for size in (8, 8, 3, 8, 3):
        model.train_on_batch(X[:size], Y[:size])
        model.predict(X[:size], verbose=0)
        model.predict(X[:size], verbose=0)
    trainer = trainer_of(model)
    assert trainer is not None
    assert trainer.compilations == 4


def test_a_prediction_of_one_batch_is_not_affected_by_a_change_afterwards():
    model, _ = run(classifier, lambda model: None, "virtual")
    x = X[:4].copy()
    first = model.predict(x, verbose=0)
    kept = first.copy()
    x[:] = 0
    assert not np.array_equal(model.predict(x, verbose=0), kept)
    np.testing.assert_array_equal(first, kept)
