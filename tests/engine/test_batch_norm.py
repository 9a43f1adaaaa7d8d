"""Batch normalization with the foreign kernels against Keras's own, and both against float64."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

from anytpu.engine import batch_norm
from anytpu.engine.foreign import why_not
from anytpu.engine.kernels import fast_kernels
from engine.kernel_switch import compiled

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"XLA computes everything: {why_not()}")

SHAPE = (16, 12, 12, 24)


def images(shape=SHAPE, dtype="float32", offset=2.0):
    random = np.random.default_rng(0)
    return jnp.asarray(3 * random.normal(size=shape) + offset, dtype)


def training(layer, shape=SHAPE):
    """Return a function of an array: the layer's outputs in training, its new statistics, and the gradients."""
    layer.build(shape)
    random = np.random.default_rng(1)
    weights = [jnp.asarray(random.uniform(0.5, 1.5, v.shape), "float32") for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]

    def train(x):
        def call(weights, x):
            y, new = layer.stateless_call([w.astype(x.dtype) for w in weights], others, x, training=True)
            return jax.nn.relu(y), new

        y, pull, new = jax.vjp(call, weights, x, has_aux=True)
        return y, new, pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return train


def exact(x, weights, epsilon=1e-3):
    """Return outputs and gradients of scale, offset and inputs, computed from the formulas in float64."""
    x = np.asarray(x, "float64")
    scale, offset = (np.asarray(w, "float64") for w in weights)
    axes, count = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    inverse = 1 / np.sqrt(x.var(axes) + epsilon)
    centered = (x - x.mean(axes)) * inverse
    y = centered * scale + offset
    gradient = np.cos(np.arange(y.size, dtype="float64")).reshape(y.shape) * (y > 0)
    d_offset, d_scale = gradient.sum(axes), (gradient * centered).sum(axes)
    d_x = scale * inverse * (gradient - d_offset / count - centered * d_scale / count)
    return np.maximum(y, 0), d_scale, d_offset, d_x


def has_call(function, *args):
    with fast_kernels():
        return "anytpu_column" in jax.jit(lambda *values: function(*values)).lower(*args).as_text()


@pytest.mark.parametrize("shape", [SHAPE, (2**15, 3), (64, 700, 5), (8, 4, 8, 8, 32)], ids=str)
def test_a_training_step_is_as_exact_as_kerass(shape):
    layer = layers.BatchNormalization()
    train, x = training(layer, shape), images(shape)
    assert has_call(train, x)
    ours, own = (compiled(train, x, fast=fast) for fast in (True, False))
    random = np.random.default_rng(1)
    right = exact(x, [random.uniform(0.5, 1.5, shape[-1:]).astype("float32") for _ in range(2)])
    for made, keras_made, value in zip(results(ours), results(own), right, strict=True):
        scale = np.abs(value).max()
        error, theirs = (np.abs(np.asarray(array, "float64") - value).max() / scale for array in (made, keras_made))
        assert error <= max(1.5 * theirs, 1e-6)
    for new, keras_new in zip(ours[1], own[1], strict=True):
        np.testing.assert_allclose(new, keras_new, rtol=1e-5)


def results(trained):
    y, _, ((scale, offset), x) = trained
    return y, scale, offset, x


@pytest.mark.parametrize("settings", [{"scale": False}, {"center": False}, {"renorm": True}], ids=str)
def test_options_of_the_layer(settings):
    train, x = training(layers.BatchNormalization(**settings)), images()
    assert has_call(train, x)
    for ours, own in zip(*(jax.tree.leaves(compiled(train, x, fast=fast)) for fast in (True, False)), strict=True):
        np.testing.assert_allclose(ours, own, rtol=2e-4, atol=2e-4)


def test_each_replica_has_its_own_statistics():
    train, x = (
        training(layers.BatchNormalization(), SHAPE),
        images((3, *SHAPE)) * jnp.arange(1.0, 4)[:, None, None, None, None],
    )
    together = compiled(jax.vmap(train), x, fast=True)
    for i in range(3):
        alone = compiled(train, x[i], fast=True)
        for ours, own in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(ours[i], own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("settings", "shape"), [({"axis": 1}, SHAPE), ({}, (8, 4, 4, 24))], ids=["axis 1", "small"])
def test_other_axes_and_small_arrays_are_kerass(settings, shape):
    assert not has_call(training(layers.BatchNormalization(**settings), shape), images(shape))


def test_half_precision_is_computed_in_float32():
    train, x = training(layers.BatchNormalization(dtype="float16")), images(dtype="float16")
    assert has_call(train, x)
    outputs = [np.asarray(compiled(train, x, fast=fast)[0], "float32") for fast in (True, False)]
    np.testing.assert_allclose(*outputs, rtol=2e-3, atol=2e-3)


def test_without_the_switch_keras_is_unchanged():
    train, x = training(layers.BatchNormalization()), images()
    compiled(train, x, fast=True)
    assert "anytpu_column" not in jax.jit(lambda x: train(x)).lower(x).as_text()


def test_statistics_over_other_axes_are_kerass():
    x = images()
    assert has_call(lambda x: keras.ops.moments(x, (0, 1, 2)), x)
    assert not has_call(lambda x: keras.ops.moments(x, (1, 2)), x)
    kept = compiled(lambda x: keras.ops.moments(x, (0, 1, -2), keepdims=True), x, fast=True)
    assert [result.shape for result in kept] == [(1, 1, 1, 24)] * 2


def test_derivatives_of_other_modes_and_orders():
    x, direction = images(), images(offset=0.0)

    def loss(normalize, moments):
        def value(x):
            mean, variance = moments(x, (0, 1, 2))
            return jnp.sum(jnp.sin(normalize(x, mean, variance, -1, mean * 0.1, variance)))

        return value

    def plain_moments(x, axes):
        return jnp.mean(x, axes), jnp.var(x, axes)

    def plain_normalize(x, mean, variance, axis, offset, scale):
        return (x - mean) * scale * jax.lax.rsqrt(variance + 1e-3) + offset

    def forward(value):
        return jax.jvp(value, (x,), (direction,))[1]

    def twice(value):
        return jax.jvp(jax.grad(value), (x,), (direction,))[1], jax.grad(lambda x: jnp.sum(jax.grad(value)(x) ** 2))(x)

    ours, own = loss(batch_norm.normalize, batch_norm.moments), loss(plain_normalize, plain_moments)
    for derivative in (forward, twice):
        for made, right in zip(*(jax.tree.leaves(derivative(value)) for value in (ours, own)), strict=True):
            np.testing.assert_allclose(made, right, rtol=2e-3, atol=2e-3 * float(jnp.abs(right).max()))
