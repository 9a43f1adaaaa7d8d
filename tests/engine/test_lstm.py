import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras.src import backend
from keras.src.backend.common import dtypes

from anytpu.engine.kernels import fast_kernels

OPTIONS = [
    {},
    {"return_sequences": True},
    {"return_sequences": True, "go_backwards": True},
    {"return_state": True},
    {"use_bias": False, "return_sequences": True},
    {"unroll": True},
    {"activation": "relu"},
    {"recurrent_activation": "hard_sigmoid"},
    {"dropout": 0.0, "unit_forget_bias": False},
]


def layer_of(options, features=5, dtype="float32"):
    keras.utils.set_random_seed(3)
    layer = keras.layers.LSTM(4, dtype=dtype, **options)
    layer.build((None, None, features))
    for variable in layer.trainable_variables:
        variable.assign(np.random.default_rng(1).normal(size=variable.shape) * 0.5)
    return layer


def step_of(layer, **call):
    def loss(weights, x):
        out, _ = layer.stateless_call(weights, [v.value for v in layer.non_trainable_variables], x, **call)
        return sum(jnp.sum(jnp.sin(one)) for one in jax.tree.leaves(out)), out

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)


def both(layer, x, **call):
    """Compute loss, outputs and gradients with Keras's own LSTM and with ours, each from a fresh function."""
    weights = [v.value for v in layer.trainable_variables]
    own = jax.jit(step_of(layer, **call)).lower(weights, x).compile()(weights, x)
    with fast_kernels():
        ours = jax.jit(step_of(layer, **call)).lower(weights, x).compile()(weights, x)
    return ours, own


def is_close(ours, own, tolerance):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(own), strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        scale = max(1.0, float(jnp.max(jnp.abs(other))))
        assert float(jnp.max(jnp.abs(one - other))) <= tolerance * scale


def sequences(rows=3, steps=7, features=5, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=(rows, steps, features)).astype(dtype))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_outputs_and_gradients_are_those_of_keras(options):
    is_close(*both(layer_of(options), sequences()), 1e-5)


@pytest.fixture
def double_precision(monkeypatch):
    """Let Keras compute in float64: its `result_type` lowers float64 to float32, also under floatx float64."""

    def result_type(*of):
        return str(jnp.result_type(*[one for one in of if one is not None]))

    monkeypatch.setattr(dtypes, "result_type", result_type)
    monkeypatch.setattr(backend, "result_type", result_type)
    keras.config.set_floatx("float64")
    with jax.enable_x64(True):
        yield
    keras.config.set_floatx("float32")


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("options", OPTIONS[:5], ids=str)
def test_in_double_precision(options):
    is_close(*both(layer_of(options, dtype="float64"), sequences(dtype=np.float64)), 1e-11)


@pytest.mark.parametrize(
    "options", [{}, {"return_sequences": True}, {"zero_output_for_mask": True, "return_sequences": True}]
)
def test_masked_steps(options):
    options = dict(options)
    zero = options.pop("zero_output_for_mask", False)
    layer = layer_of(options)
    layer.zero_output_for_mask = zero
    mask = jnp.asarray([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1]], bool)
    is_close(*both(layer, sequences(), mask=mask), 1e-5)


def test_an_initial_state():
    state = [jnp.full((3, 4), 0.3), jnp.full((3, 4), -0.2)]
    is_close(*both(layer_of({"return_sequences": True}), sequences(), initial_state=state), 1e-5)


def test_a_long_sequence_is_walked_back_in_spans():
    is_close(*both(layer_of({}), sequences(rows=64, steps=250)), 1e-4)


def test_ours_is_really_used():
    layer = layer_of({"return_sequences": True})
    weights, x = [v.value for v in layer.trainable_variables], sequences()
    own = jax.jit(step_of(layer)).lower(weights, x).as_text()
    with fast_kernels():
        ours = jax.jit(step_of(layer)).lower(weights, x).as_text()
    assert ours != own
    assert jax.jit(step_of(layer)).lower(weights, x).as_text() == own


def test_over_replicas():
    layer = layer_of({})
    weights, x = [v.value for v in layer.trainable_variables], sequences(rows=6).reshape(2, 3, 7, 5)

    def mapped(weights, x):
        return jax.vmap(step_of(layer), in_axes=(None, 0))(weights, x)

    own = jax.jit(lambda w, x: mapped(w, x)).lower(weights, x).compile()(weights, x)
    with fast_kernels():
        ours = jax.jit(lambda w, x: mapped(w, x)).lower(weights, x).compile()(weights, x)
    is_close(ours, own, 1e-5)


def test_half_precision_is_left_to_keras():
    layer = layer_of({}, dtype="mixed_bfloat16")
    is_close(*both(layer, sequences()), 2e-2)
