import itertools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

from anytpu import _keras
from anytpu.engine.foreign import why_not
from anytpu.engine.kernels import fast_kernels
from anytpu.engine.lstm import is_faster
from engine.recurrent import assert_same, is_ours, penalized, sequences, training

FLAGS = ("return_sequences", "go_backwards", "return_state", "masked", "zero_output_for_mask")
SAMPLE = {"00000", "00111", "01010", "01100", "10011", "10100", "11000", "11111"}
"""Every value of each pair of flags, in their order."""

CASES = [
    pytest.param(
        {name: flag == "1" for name, flag in zip(FLAGS, flags, strict=True)},
        marks=[] if flags in SAMPLE else pytest.mark.battery,
        id="-".join(name for name, flag in zip(FLAGS, flags, strict=True) if flag == "1") or "plain",
    )
    for flags in map("".join, itertools.product("01", repeat=5))
    if flags[3] == "1" or flags[4] == "0"
]


@pytest.fixture
def double(monkeypatch):
    """Let Keras compute in float64, all of it: its `result_type` lowers float64 to float32 otherwise."""
    from keras.src.backend.common import dtypes

    monkeypatch.setitem(dtypes.BIT64_TO_BIT32_DTYPE, "float64", "float64")
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_keras(double, case):
    inputs = sequences()
    mask = jnp.asarray(np.random.default_rng(2).random(inputs.shape[:2]) > 0.4) if case["masked"] else None
    layer = keras.layers.LSTM(4, dtype="float64", **{name: on for name, on in case.items() if name != "masked"})
    train, weights = training(layer, inputs, mask=mask)
    assert_same(train, weights, inputs)


@pytest.mark.parametrize(
    ("batch", "time", "features", "units", "dtype"),
    [(1, 1, 1, 1, "float64"), (2, 30, 3, 8, "float32"), (16, 5, 1, 4, "float64")],
)
def test_sizes(double, batch, time, features, units, dtype):
    inputs = sequences(batch, time, features, dtype)
    train, weights = training(keras.layers.LSTM(units, dtype=dtype), inputs)
    assert_same(train, weights, inputs, dtype=dtype)


@pytest.mark.parametrize("masked", [False, True])
def test_a_batch_in_parts(double, masked):
    inputs = sequences(64, 4, 3)
    mask = jnp.asarray(np.random.default_rng(2).random((64, 4)) > 0.4) if masked else None
    train, weights = training(keras.layers.LSTM(9, dtype="float64", return_sequences=masked), inputs, mask=mask)
    assert_same(train, weights, inputs)


def test_an_initial_state_and_its_gradient(double):
    inputs, start = sequences(), [sequences(3, 4, 1)[..., 0], sequences(3, 4, 1)[..., 0] / 2]
    layer = keras.layers.LSTM(4, dtype="float64", return_sequences=True)
    _, weights = training(layer, inputs)

    def from_state(weights, start, inputs):
        others = [v.value for v in layer.non_trainable_variables]
        call = lambda w, s, x: layer.stateless_call(w, others, x, initial_state=s)[0]  # noqa: E731
        outputs, pull = jax.vjp(call, weights, start, inputs)
        return outputs, pull(jnp.sin(outputs))

    assert_same(from_state, weights, start, inputs)


def test_without_a_bias(double):
    inputs = sequences()
    layer = keras.layers.LSTM(4, dtype="float64", use_bias=False)
    train, weights = training(layer, inputs)
    assert_same(train, weights, inputs)
    with fast_kernels():
        assert is_ours(layer, inputs)


def test_bidirectional_with_a_mask(double):
    inputs = sequences()
    mask = jnp.arange(7)[None] < jnp.asarray([[7], [3], [1]])
    layer = keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True, dtype="float64"), dtype="float64")
    train, weights = training(layer, inputs, mask=mask)
    assert_same(train, weights, inputs)


@pytest.mark.parametrize("each_its_own", [False, True])
def test_batched_over_replicas_inside_a_loop(double, each_its_own):
    inputs = sequences(16).reshape(8, 2, 7, 5)
    train, weights = training(keras.layers.LSTM(4, dtype="float64"), inputs[0])
    if each_its_own:
        weights = [jnp.stack([w * (1 + i / 8) for i in range(8)]) for w in weights]

    def steps(weights, inputs):
        def body(_, weights):
            _, (slopes, _) = jax.vmap(train, in_axes=(0 if each_its_own else None, 0))(weights, inputs)
            return [w - 0.01 * (s if each_its_own else s.sum(0)) for w, s in zip(weights, slopes, strict=True)]

        return lax.fori_loop(0, 3, body, weights)

    assert_same(steps, weights, inputs)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_replicas_that_share_weights(double, masked, dtype):
    """Their rows are one batch, as are those of a `vmap` around them."""
    inputs = sequences(24, dtype=dtype).reshape(2, 4, 3, 7, 5)
    mask = jnp.asarray(np.random.default_rng(2).random((3, 7)) > 0.4) if masked else None
    train, weights = training(keras.layers.LSTM(4, dtype=dtype, return_sequences=masked), inputs[0, 0], mask=mask)

    def each(weights, inputs):
        over = jax.vmap(jax.vmap(train, (None, 0)), (None, 0))
        return over(weights, inputs)

    assert_same(each, weights, inputs, dtype=dtype)


def test_rows_of_replicas_are_put_one_after_the_other():
    inputs, layer = sequences(24, dtype="float32").reshape(8, 3, 7, 5), keras.layers.LSTM(4)
    train, weights = training(layer, inputs[0])
    with fast_kernels():
        traced = jax.make_jaxpr(jax.vmap(lambda w, x: train(w, x), (None, 0)))(weights, inputs)
    rows = [e.invars[0].aval.shape for e in traced.eqns if e.primitive.name == "over_rows"]
    assert rows == [(24, 7, 5), (24, 4), (7, 24, 10) if why_not() is None else (7, 10, 24)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_of_a_gradient(double, dtype):
    inputs = sequences(dtype=dtype)
    penalty, weights = penalized(keras.layers.LSTM(4, dtype=dtype, return_sequences=True), inputs)
    assert_same(penalty, weights, inputs, dtype=dtype)


@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "relu"},
        {"recurrent_activation": "hard_sigmoid"},
        {"unroll": True},
        {"recurrent_dropout": 0.5},
        {"use_cudnn": False},
        {"dtype": "mixed_bfloat16"},
    ],
    ids=str,
)
def test_other_settings_are_left_to_keras(settings):
    with fast_kernels():
        assert not is_ours(keras.layers.LSTM(4, **settings), sequences(dtype="float32"))


def test_the_switch_is_off_outside_and_in_other_threads():
    inputs, layer = sequences(dtype="float32"), keras.layers.LSTM(4)
    with fast_kernels(), ThreadPoolExecutor() as threads:
        assert is_ours(layer, inputs)
        assert not threads.submit(is_ours, layer, inputs).result()
    assert not is_ours(layer, inputs)
    assert _keras.is_wrapped(_keras.keras_backend().lstm)


def test_large_batches_of_few_units_are_left_to_keras():
    assert is_faster(64, 100)
    assert is_faster(8, 2)
    assert not is_faster(256, 32)
