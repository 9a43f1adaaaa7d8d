import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

from anytpu.engine.foreign import why_not
from anytpu.engine.kernels import fast_kernels
from engine.recurrent import assert_same, is_ours, penalized, sequences, training

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"the GRU is Keras's own: {why_not()}")


def mask_of(inputs):
    return jnp.asarray(np.random.default_rng(2).random(inputs.shape[:2]) > 0.4)


@pytest.mark.parametrize(
    ("settings", "masked"),
    [
        ({}, False),
        ({}, True),
        ({"use_bias": False}, False),
        ({"go_backwards": True}, True),
        ({"return_sequences": True, "go_backwards": True}, False),
        ({"return_sequences": True, "return_state": True}, True),
        ({"return_sequences": True, "zero_output_for_mask": True}, True),
    ],
    ids=str,
)
def test_outputs_and_gradients_are_those_of_keras(settings, masked):
    inputs, layer = sequences(dtype="float32"), keras.layers.GRU(4, **settings)
    train, weights = training(layer, inputs, mask=mask_of(inputs) if masked else None)
    assert_same(train, weights, inputs, dtype="float32")
    with fast_kernels():
        assert is_ours(layer, inputs)


def test_bidirectional_with_an_initial_state():
    inputs, start = sequences(dtype="float32"), [sequences(3, 4, 1, "float32")[..., 0]] * 2
    layer = keras.layers.Bidirectional(keras.layers.GRU(4, return_sequences=True))
    train, weights = training(layer, inputs, initial_state=start)
    assert_same(train, weights, inputs, dtype="float32")


@pytest.mark.parametrize("masked", [False, True])
def test_replicas_that_share_weights(masked):
    inputs, layer = sequences(24, dtype="float32").reshape(8, 3, 7, 5), keras.layers.GRU(4, return_sequences=masked)
    train, weights = training(layer, inputs[0], mask=mask_of(inputs[0]) if masked else None)
    each = jax.vmap(lambda w, x: train(w, x), (None, 0))
    assert_same(each, weights, inputs, dtype="float32")
    with fast_kernels():
        traced = jax.make_jaxpr(each)(weights, inputs)
    rows = [e.invars[0].aval.shape for e in traced.eqns if e.primitive.name == "over_rows"]
    assert rows == [(24, 7, 5), (24, 4), (7, 24, 10)]


def test_replicas_with_weights_of_their_own_inside_a_loop():
    inputs = sequences(16, dtype="float32").reshape(8, 2, 7, 5)
    train, weights = training(keras.layers.GRU(4), inputs[0])
    weights = [jnp.stack([w * (1 + i / 8) for i in range(8)]) for w in weights]

    def steps(weights, inputs):
        def body(_, weights):
            _, (slopes, _) = jax.vmap(train)(weights, inputs)
            return [w - 0.01 * s for w, s in zip(weights, slopes, strict=True)]

        return lax.fori_loop(0, 3, body, weights)

    assert_same(steps, weights, inputs, dtype="float32")


@pytest.mark.parametrize("masked", [False, True])
def test_a_gradient_of_a_gradient(masked):
    inputs = sequences(dtype="float32")
    layer = keras.layers.GRU(4, return_sequences=True)
    penalty, weights = penalized(layer, inputs, mask=mask_of(inputs) if masked else None)
    assert_same(penalty, weights, inputs, dtype="float32")


@pytest.mark.parametrize(
    "settings",
    [
        {"reset_after": False},
        {"activation": "relu"},
        {"recurrent_activation": "hard_sigmoid"},
        {"unroll": True},
        {"recurrent_dropout": 0.5},
        {"use_cudnn": False},
    ],
    ids=str,
)
def test_other_settings_are_left_to_keras(settings):
    with fast_kernels():
        assert not is_ours(keras.layers.GRU(4, **settings), sequences(dtype="float32"))
