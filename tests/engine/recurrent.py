"""A recurrent layer of Keras, trained with and without the CPU's own kernels."""

import jax
import jax.numpy as jnp
import keras
import numpy as np

from engine.kernel_switch import compiled

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


def build(layer, shape) -> None:
    """Build a layer with weights of zero: these tests draw their own, and to compile Keras's draws takes longer."""
    if layer.built:
        return
    parts = (layer.forward_layer, layer.backward_layer) if isinstance(layer, keras.layers.Bidirectional) else (layer,)
    for part in parts:
        part.cell.kernel_initializer = part.cell.recurrent_initializer = keras.initializers.Zeros()
        part.cell.unit_forget_bias = False  # Of an LSTM.
    layer.build(shape)


def training(layer, steps, **call):
    """Return a function that runs a layer and pulls a gradient back to its weights and inputs."""
    others = [v.value for v in layer.non_trainable_variables]

    def train(weights, inputs):
        outputs, pull = jax.vjp(lambda w, x: layer.stateless_call(w, others, x, **call)[0], weights, inputs)
        return outputs, pull(jax.tree.map(jnp.cos, outputs))

    build(layer, steps.shape)
    weights = [
        jnp.asarray(np.random.default_rng(1).normal(size=v.shape) * 0.5, v.dtype) for v in layer.trainable_variables
    ]
    return train, weights


def penalized(layer, steps, **call):
    """Return the weights' gradient of a gradient penalty, which is a norm of the inputs' gradient."""
    _, weights = training(layer, steps, **call)
    others = [v.value for v in layer.non_trainable_variables]

    def penalty(weights, inputs):
        def total(inputs):
            return (layer.stateless_call(weights, others, inputs, **call)[0] ** 2).sum()

        return (jax.grad(total)(inputs) ** 2).sum()

    return jax.grad(penalty), weights


def assert_same(function, *args, dtype: str = "float64") -> None:
    got, want = compiled(function, *args, fast=True), compiled(function, *args, fast=False)
    for ours, own in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (ours.shape, ours.dtype) == (own.shape, own.dtype)
        assert np.max(np.abs(ours - own)) <= TOLERANCE[dtype] * max(1, np.max(np.abs(own)))


def sequences(batch=3, time=7, features=5, dtype="float64"):
    return jnp.asarray(np.random.default_rng(0).normal(size=(batch, time, features)), dtype)


def is_ours(layer, inputs) -> bool:
    """Return whether a layer traces to anytpu's loop: only that has a gradient of its own."""
    build(layer, inputs.shape)
    others = [v.value for v in layer.non_trainable_variables]
    weights = [v.value for v in layer.trainable_variables]
    return "custom_vjp_call" in str(jax.make_jaxpr(lambda w, x: layer.stateless_call(w, others, x)[0])(weights, inputs))
