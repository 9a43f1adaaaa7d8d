"""What a training step keeps for its backward pass, read from small traced steps."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

from anytpu.planning.advice import residuals
from anytpu.planning.advice.residuals import residuals_of

LAYERS, ROWS, LENGTH, WIDTH, HEADS = 6, 2, 128, 32, 2
X_BYTES = ROWS * LENGTH * WIDTH * 4
SCORES = f"float32[{ROWS},{HEADS},{LENGTH},{LENGTH}]"


def block(x, w):
    q, k, v = (jnp.einsum("bld,dhe->bhle", x, w[name].reshape(WIDTH, HEADS, -1)) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bhle,bhme->bhlm", q, k))
    x = x + jnp.einsum("bhlm,bhme->blhe", scores, v).reshape(x.shape)
    return x + jnp.tanh(x @ w["u"]) @ w["u"].T


def step(loops, remat, dtype, state, batch):
    each = jax.checkpoint(block) if remat else block

    def loss(state):
        w, x = jax.tree.map(lambda leaf: leaf.astype(dtype), (state, batch))
        if loops:
            x, _ = jax.lax.scan(lambda x, one: (each(x, one), None), x, w)
        else:
            for layer in range(LAYERS):
                x = each(x, jax.tree.map(lambda leaf, layer=layer: leaf[layer], w))
        return x.astype("float32").mean()

    gradients = jax.grad(loss)(state)
    return jax.tree.map(lambda w, g: w - g, state, gradients), {}


def traced(loops: bool, remat: bool = False, dtype: str = "float32"):
    spec = functools.partial(jax.ShapeDtypeStruct, dtype="float32")
    state = {name: spec((LAYERS, WIDTH, WIDTH)) for name in "qkv"} | {"u": spec((LAYERS, WIDTH, 4 * WIDTH))}
    function = functools.partial(step, loops, remat, dtype)
    return jax.make_jaxpr(jax.jit(function))(state, spec((ROWS, LENGTH, WIDTH))), len(state)


@pytest.mark.parametrize("loops", [True, False])
def test_blocks_keep_little(loops):
    found = residuals_of(*traced(loops))
    each = found.total_bytes / LAYERS
    assert each > 10 * X_BYTES
    assert LAYERS <= found.blocks <= 3 * LAYERS
    # The inputs of the blocks, and the inside of one block at most.
    assert found.kept_bytes <= 3 * LAYERS * X_BYTES + each
    assert found.attention == SCORES
    assert found.attention_bytes >= LAYERS * ROWS * HEADS * LENGTH**2 * 4


def test_the_attention_of_keras_is_found():
    """Its products have an axis of one more, and other orders."""

    def attend(w, x):
        def loss(w):
            query = (x @ w).reshape(ROWS, LENGTH, HEADS, -1)
            return jax.nn.dot_product_attention(query, query, query).sum()

        return jax.grad(loss)(w), {}

    known = jax.make_jaxpr(attend)(jnp.zeros((WIDTH, WIDTH)), jnp.zeros((ROWS, LENGTH, WIDTH)))
    found = residuals_of(known, 1)
    assert found.attention_bytes >= ROWS * HEADS * LENGTH**2 * 4
    assert found.attention.endswith(f"{ROWS},{HEADS},{LENGTH},{LENGTH}]")


def test_a_step_that_rematerialises_keeps_the_inputs_of_its_blocks():
    found = residuals_of(*traced(loops=True, remat=True))
    assert (found.total_bytes, found.attention_bytes) == (LAYERS * X_BYTES, 0)
    assert found.kept_bytes >= found.total_bytes


def test_weights_that_were_cast_do_not_grow_with_the_batch():
    def cast(w, x):
        return jax.grad(lambda w: (x.astype("bfloat16") @ w.astype("bfloat16")).astype("float32").sum())(w), {}

    known = jax.make_jaxpr(cast)(jnp.zeros((8, 8)), jnp.zeros((4, 8)))
    assert residuals_of(known, 1).total_bytes == 4 * 8 * 2


def test_a_step_without_a_backward_pass_keeps_nothing():
    assert residuals_of(jax.make_jaxpr(lambda w, x: (w, jnp.tanh(x @ w)))(jnp.zeros((8, 8)), jnp.zeros((4, 8))), 1) == (
        residuals.Residuals()
    )
