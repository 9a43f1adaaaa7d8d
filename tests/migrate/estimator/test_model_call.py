from __future__ import annotations

import keras
import numpy as np

import anytpu as tpu
from anytpu.errors import EstimatorError
from error_texts import error_text
from estimator_samples import arrays, estimator, input_fn, model_fn, spec_of

X, _ = arrays()


def test_names_count_from_the_beginning_in_every_call(tmp_path):
    first = keras.backend.get_uid("dense")
    one = estimator(tmp_path, model_fn).train(input_fn, max_steps=1)
    layers = {name.split("/")[0] for name in one.get_variable_names()}
    assert layers == {"global_step", "dense", "dense_1", "batch_normalization", "seed_generator", "adam"}
    assert keras.backend.get_uid("dense") == first + 1


def test_a_layer_that_changes_between_modes(tmp_path):
    def changing(features, labels, mode, params):
        x = keras.layers.Dense(4 if mode == "train" else 5)(features)
        return spec_of(mode, params, keras.layers.Dense(3)(x), labels, keras.optimizers.SGD(0.1))

    one = estimator(tmp_path, changing).train(input_fn, max_steps=1)
    assert error_text(lambda: one.evaluate(input_fn, steps=1), kind=EstimatorError) == (
        "model_fn makes the layer 'dense' of another form than before: its 'kernel' was float32[6, 4] and is "
        "float32[6, 5] now. A model_fn must make the same layers in the same order in every mode; give a layer that "
        "only one mode has a name of its own"
    )


def test_a_layer_that_training_has_not_made(tmp_path):
    def more(features, labels, mode, params):
        x = keras.layers.Dense(4)(features)
        if mode != "train":
            x = keras.layers.Dense(4)(x)
        return spec_of(mode, params, keras.layers.Dense(3, name="logits")(x), labels, keras.optimizers.SGD(0.1))

    one = estimator(tmp_path, more).train(input_fn, max_steps=1)
    assert error_text(lambda: next(one.predict(lambda params: X)), kind=EstimatorError) == (
        "model_fn makes the layer 'dense_1', which it did not make when it was called before: a variable "
        "'dense_1/kernel' of the form float32[4, 4]. A model_fn must make the same layers in the same order in every "
        "mode; what one mode makes depends on mode and params only"
    )


def test_a_model_of_another_form_than_the_checkpoint(tmp_path):
    def wide(features, labels, mode, params):
        return spec_of(mode, params, keras.layers.Dense(9)(features), labels, keras.optimizers.SGD(0.1))

    def narrow(features, labels, mode, params):
        return spec_of(mode, params, keras.layers.Dense(3)(features), labels, keras.optimizers.SGD(0.1))

    estimator(tmp_path, wide).train(input_fn, max_steps=1)
    assert error_text(lambda: estimator(tmp_path, narrow).evaluate(input_fn, steps=1), kind=EstimatorError) == (
        f"the checkpoint of step 1 in {str(tmp_path)!r} is of another model than model_fn makes to evaluate or "
        "predict, and none of it is loaded. With another shape: 'dense/kernel' float32[6, 9] in the checkpoint and "
        "float32[6, 3] in the model, 'dense/bias' float32[9] in the checkpoint and float32[3] in the model. Use the "
        "model_fn that it was trained with, or train the changed one in another model_dir"
    )


def test_a_model_that_was_made_outside(tmp_path):
    shared = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])

    def outside(features, labels, mode, params):
        return spec_of(mode, params, shared(features), labels, keras.optimizers.SGD(0.1))

    one = estimator(tmp_path, outside).train(input_fn, max_steps=4)
    predicted = np.stack([row["logits"] for row in one.predict(lambda params: X)])
    np.testing.assert_allclose(predicted, np.asarray(shared(X)), rtol=1e-5, atol=1e-6)
    loss = one.evaluate(input_fn, steps=4)["loss"]
    assert one.train(input_fn, max_steps=20).evaluate(input_fn, steps=4)["loss"] < loss


def test_a_functional_model_inside(tmp_path):
    def functional(features, labels, mode, params):
        inputs = keras.Input(features.shape[1:])
        hidden = keras.layers.Dense(4, activation="relu")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
        return spec_of(mode, params, model(features), labels, keras.optimizers.Adam(0.05))

    one = estimator(tmp_path, functional).train(input_fn, max_steps=4)
    loss = one.evaluate(input_fn, steps=4)["loss"]
    assert one.train(input_fn, max_steps=24).evaluate(input_fn, steps=4)["loss"] < loss
    assert "dense_1/kernel" in one.get_variable_names()


def test_there_is_no_global_step_elsewhere():
    assert tpu.get_global_step() is None
