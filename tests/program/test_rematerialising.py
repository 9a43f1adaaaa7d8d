"""Steps that compute parts of their forward pass again: the same numbers, and less that is kept."""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from anytpu import program as programs
from anytpu.program.jaxprs import inner_jaxprs, level_of
from anytpu.program.rematerialising import REMATS, REPEATED, live_bytes, rematerialised
from anytpu.sharding import trace_step
from engine.kernel_switch import QUICKLY

LAYERS, ROWS, WIDTH = 6, 64, 32


def block(x, w):
    return x + jnp.tanh(jnp.sin(x @ w["up"]) ** 2) @ w["down"]


def step(loops, state, batch):
    def loss(state):
        if loops:
            x, _ = jax.lax.scan(lambda x, w: (block(x, w), None), batch, state)
        else:
            x = batch
            for layer in range(LAYERS):
                x = block(x, {name: w[layer] for name, w in state.items()})
        return (x**2).mean()

    value, gradients = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradients), {"loss": value}


@functools.cache
def traced(loops):
    spec = functools.partial(jax.ShapeDtypeStruct, dtype="float32")
    state = {"up": spec((LAYERS, WIDTH, 4 * WIDTH)), "down": spec((LAYERS, 4 * WIDTH, WIDTH))}
    return jax.make_jaxpr(functools.partial(step, loops))(state, spec((ROWS, WIDTH)))


@functools.cache
def step_of(kind):
    return trace_step(programs.of(model(kind), batch_size=8))


def model(kind):
    layers = keras.layers
    if kind == "transformer":
        x = inputs = keras.Input((16, 32))
        for _ in range(2):
            x = x + layers.MultiHeadAttention(2, 16, dropout=0.2)(x, x)
            x = x + layers.Dense(32)(layers.Dropout(0.3)(layers.Dense(64, "gelu")(layers.LayerNormalization()(x))))
        outputs = layers.Dense(4)(layers.GlobalAveragePooling1D()(x))
        made = keras.Model(inputs, outputs)
    elif kind == "cnn":
        blocks = [
            layer
            for _ in range(2)
            for layer in (layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), layers.Activation("swish"))
        ]
        made = keras.Sequential([keras.Input((8, 8, 3)), *blocks, layers.Flatten(), layers.Dense(4)])
    else:
        made = keras.Sequential([keras.Input((12, 8)), layers.LSTM(16, return_sequences=True), layers.GRU(16)])
        made.add(layers.Dense(4))
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return made


def values_of(trace):
    rng = np.random.default_rng(3)
    return [
        jnp.asarray(rng.normal(0, 0.1, aval.shape).astype(aval.dtype))
        if jnp.issubdtype(aval.dtype, jnp.floating)
        else jnp.asarray(rng.integers(0, 4, aval.shape).astype(aval.dtype))
        for aval in trace.in_avals
    ]


@functools.cache
def _compiled(jaxpr):
    return jax.jit(jaxpr_as_fun(jaxpr), compiler_options=QUICKLY)


def check_equal(trace, again):
    arguments = values_of(trace)
    wanted, made = (_compiled(jaxpr)(*arguments) for jaxpr in (trace, again))
    for ours, theirs in zip(made, wanted, strict=True):
        largest = float(jnp.abs(theirs).max()) if theirs.size else 0.0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * largest)


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("loops", [False, True])
def test_the_numbers_of_a_step_are_the_same(loops, remat):
    trace = traced(loops)
    again = rematerialised(trace, 2, remat)
    assert REPEATED in "".join(_stacks(again.jaxpr))
    check_equal(trace, again)


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize("kind", ["transformer", "cnn", "recurrent"])
def test_the_numbers_of_keras_models_are_the_same_with_their_dropout(kind, remat):
    step = step_of(kind)
    check_equal(step.trace, step.rematerialised(remat).trace)


@pytest.mark.parametrize("loops", [False, True])
def test_blocks_keep_less_than_products_and_these_less_than_all(loops):
    trace = traced(loops)
    whole, products, blocks = (live_bytes(rematerialised(trace, 2, remat), 2) for remat in ("", *REMATS))
    x_bytes = 4 * ROWS * WIDTH
    # A block has the sine, the square, the derivatives and the result, each 4 times as wide as x.
    assert whole > LAYERS * 3 * 4 * x_bytes
    assert products < 0.75 * whole
    assert blocks < 0.85 * products


def test_products_are_repeated_by_block_only():
    trace = traced(loops=False)
    counts = [_count(rematerialised(trace, 2, remat).jaxpr, "dot_general") for remat in ("", *REMATS)]
    assert counts[0] == counts[1] == 6 * LAYERS - 1
    # The first product of each block but the last is needed again.
    assert counts[2] >= counts[0] + LAYERS - 2


def test_a_prediction_is_unchanged():
    def infer(w, x):
        return w, jnp.tanh(x @ w)

    trace = jax.make_jaxpr(infer)(jnp.zeros((WIDTH, WIDTH)), jnp.zeros((ROWS, WIDTH)))
    assert str(rematerialised(trace, 1, "by block")) == str(trace)
    assert rematerialised(trace, 1, "") is trace


def test_a_block_waits_for_the_gradient_that_meets_it():
    again = rematerialised(traced(loops=False), 2, "by block").jaxpr
    barriers = [equation for equation in again.eqns if equation.primitive.name == "optimization_barrier"]
    assert len(barriers) >= LAYERS - 2
    made = set()
    for equation in again.eqns:
        if "transpose(" in str(equation.source_info.name_stack):
            made.update(equation.outvars)
        if equation.primitive.name == "optimization_barrier":
            assert made.intersection(equation.invars)
            made.update(equation.outvars[-1:])


def _stacks(jaxpr):
    for equation in jaxpr.eqns:
        yield str(equation.source_info.name_stack)
        for inner in map(level_of, inner_jaxprs(equation)):
            yield from _stacks(inner)


def _count(jaxpr, name):
    return sum(equation.primitive.name == name for equation in jaxpr.eqns)
