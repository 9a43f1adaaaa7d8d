"""Labels outside of a model's classes: one warning, from arrays and from the first batch of a stream."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.train.labels import LabelCheck

X = np.zeros((8, 4), np.float32)
OUTSIDE = np.array([0, 1, 2, 5, 0, 1, 2, 0])
TEXT = (
    "y has labels from 0 to 5, and 'classifier' has 3 classes, 0 to 2. The loss of a label outside of them is 0, and "
    "nothing is learned from it: give its last layer 6 units"
)


def classifier(loss: Any = "sparse_categorical_crossentropy") -> Any:
    with tpu.connect("virtual", cores=2).scope():
        layers = [keras.Input((4,)), keras.layers.Dense(3, "softmax")]
        model = keras.Sequential(layers, name="classifier")
        model.compile("sgd", loss)
    return model


def texts(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught]


def test_arrays():
    model = classifier()
    assert texts(lambda: model.fit(X, OUTSIDE, batch_size=4, verbose=0)) == [TEXT]
    assert texts(lambda: model.evaluate(X, OUTSIDE, batch_size=4, verbose=0)) == [TEXT]
    assert texts(lambda: model.fit(X, OUTSIDE % 3, batch_size=4, verbose=0)) == []


def test_labels_of_the_validation_data():
    model, right = classifier(), OUTSIDE % 3
    assert texts(lambda: model.fit(X, right, validation_data=(X, OUTSIDE), verbose=0)) == [TEXT]
    assert texts(lambda: model.fit(X, right, validation_data=(X, right), verbose=0)) == []


def test_the_warning_points_to_the_call():
    batches = ((X[:4], OUTSIDE[:4]) for _ in range(2))
    with pytest.warns(UserWarning) as warned:
        classifier().fit(X, OUTSIDE, verbose=0)
        classifier().fit(batches, steps_per_epoch=2, shuffle=False, verbose=0)
    assert [warning.filename for warning in warned] == [__file__, __file__]


def test_labels_below_0():
    assert texts(lambda: LabelCheck(classifier()).check((X[:2], np.array([-1.0, 2.0]))))[0].endswith(
        "number the labels from 0"
    )


def test_what_cannot_be_checked_is_not():
    assert texts(lambda: LabelCheck(classifier()).check((X[:3], np.array([0.0, np.inf, np.nan])))) == []
    ignoring = keras.losses.SparseCategoricalCrossentropy(ignore_class=5)
    for loss in ("mse", ignoring, lambda y_true, y_pred: y_pred):
        assert texts(lambda loss=loss: LabelCheck(classifier(loss)).check((X, OUTSIDE))) == []
    assert texts(lambda: LabelCheck(classifier()).check((X, None))) == []


@pytest.mark.parametrize(
    "loss", [keras.losses.sparse_categorical_crossentropy, keras.losses.SparseCategoricalCrossentropy()]
)
def test_forms_of_the_loss(loss: Any):
    assert texts(lambda: LabelCheck(classifier(loss)).check((X, OUTSIDE))) == [TEXT]


class Own(keras.Model):
    """A model that does not know its outputs before it is called."""

    def __init__(self) -> None:
        super().__init__(name="classifier")
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def own(loss: Any = None, **settings: Any) -> Any:
    with tpu.connect("virtual", cores=2).scope():
        model = Own()
        model.compile("sgd", loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True), **settings)
    return model


def no_input() -> Any:
    with tpu.connect("virtual", cores=2).scope():
        model: Any = keras.Sequential([keras.layers.Dense(3), keras.layers.Softmax()], name="classifier")
        model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def fit_stream(*labels: Any) -> Any:
    batches = ((X[:4], each) for each in labels)
    return classifier().fit(batches, steps_per_epoch=len(labels), shuffle=False, verbose=0)


WARNED = {
    "arrays of one batch, once": lambda: classifier().evaluate(X, OUTSIDE, batch_size=8, verbose=0),
    "a model without an input": lambda: no_input().fit(X, OUTSIDE, batch_size=4, verbose=0),
    "a model of the user's own": lambda: own().fit(X, OUTSIDE, batch_size=4, verbose=0),
    "labels of JAX": lambda: own().fit(X, jnp.asarray(OUTSIDE), verbose=0),
    "a stream": lambda: fit_stream(OUTSIDE[:4], OUTSIDE[:4]),
    "a later batch": lambda: fit_stream(OUTSIDE[4:] % 3, OUTSIDE[4:] % 3, OUTSIDE[:4], OUTSIDE[:4]),
}


@pytest.mark.parametrize("case", WARNED)
def test_one_warning_for_each_way_to_pass_labels(case: str):
    assert texts(WARNED[case]) == [TEXT]


def test_calls_on_a_batch():
    for name in ("train_on_batch", "test_on_batch"):
        model = own()
        model.fit(X, OUTSIDE % 3, verbose=0)
        assert texts(lambda model=model, name=name: getattr(model, name)(X, OUTSIDE)) == [TEXT]


def test_a_mask_may_have_any_label():
    masked = np.where(OUTSIDE > 2, -1, OUTSIDE)
    assert texts(lambda: own().fit(X, masked, sample_weight=np.float32(masked >= 0), verbose=0)) == []
    ignoring = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-1)
    assert texts(lambda: own(ignoring).fit(X, masked, verbose=0)) == []
    assert len(texts(lambda: own(ignoring).fit(X, OUTSIDE, verbose=0))) == 1


@pytest.mark.parametrize("form", [dict, list])
def test_each_output_has_its_classes(form: Any):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tpu.connect("virtual", cores=2).scope():
        x = keras.Input((4,))
        outputs = {"b": keras.layers.Dense(3, name="b")(x), "a": keras.layers.Dense(9, name="a")(x)}
        model: Any = keras.Model(x, outputs if form is dict else list(outputs.values()), name="classifier")
        model.compile("sgd", {"a": loss, "b": loss} if form is dict else [loss, loss])
    for b, a, wanted in ((OUTSIDE % 3, OUTSIDE, []), (OUTSIDE, OUTSIDE, [TEXT])):
        labels = {"b": b, "a": a} if form is dict else [b, a]
        assert texts(lambda labels=labels: model.fit(X, labels, verbose=0)) == wanted


def test_a_metric_has_classes_too():
    metrics = [keras.metrics.SparseTopKCategoricalAccuracy(2)]
    model = own(lambda y, y_pred: keras.ops.mean(y_pred, axis=-1), metrics=metrics)
    assert texts(lambda: model.fit(X, OUTSIDE, verbose=0)) == [TEXT]


def test_misspelt_arguments_of_keras_methods():
    model = classifier()
    with pytest.raises(TypeError) as error:
        model.fit(X, OUTSIDE % 3, epoch=3)
    assert str(error.value) == "fit() has no argument 'epoch'; did you mean 'epochs'?"
    with pytest.raises(TypeError) as error:
        model.evaluate(X, OUTSIDE % 3, batchsize=3)
    assert str(error.value) == "evaluate() has no argument 'batchsize'; did you mean 'batch_size'?"
    with pytest.raises(TypeError) as error:
        model.compile("sgd", "mse", metric=["mae"])
    assert str(error.value) == "compile() has no argument 'metric'; did you mean 'metrics'?"
