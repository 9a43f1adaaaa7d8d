"""The identities of a step."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compute_on import compute_on

from anytpu.program.program import REPLICA_AXIS, ROWS, Program
from anytpu.program.trace_digest import program_digest, trace_digest

X = np.ones((4, 4), "float32")


def digest(function, *arguments):
    return trace_digest(jax.make_jaxpr(function)(*(arguments or (X,))))


def scanned(length):
    return lambda x: jax.lax.scan(lambda carry, _: (jnp.sin(carry), None), x, length=length)[0]


def drawn(x):
    return jax.nn.relu(x) + jax.random.uniform(jax.random.key(0), x.shape)


def on_host(x: jax.Array) -> jax.Array:
    if "out_memory_spaces" in inspect.signature(compute_on).parameters:  # From JAX 0.12 on.
        return compute_on(lambda y: y + 1, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)(x)
    with compute_on("device_host"):
        return x + 1


@pytest.mark.parametrize("function", [scanned(3), drawn, jax.grad(lambda x: jax.nn.gelu(x).sum())])
def test_an_equal_step_has_an_equal_digest(function):
    assert digest(function) == digest(lambda x: function(x)) is not None


def test_any_difference_changes_the_digest():
    steps = [
        lambda x: x @ x,
        lambda x: x @ x.T,
        lambda x: x * 2,
        lambda x: x * 3,
        lambda x: x * X,
        lambda x: x * (2 * X),
        lambda x: x.astype("bfloat16"),
        scanned(3),
        scanned(4),
        drawn,
        lambda x: (x + 1, x),
        lambda x: (x, x + 1),
        jax.jit(lambda x: x + 1),
        lambda x: x + 1,
        on_host,
    ]
    digests = [digest(step) for step in steps]
    digests.append(digest(lambda x: x @ x, X.astype("bfloat16")))
    assert None not in digests
    assert len(set(digests)) == len(digests)


def test_a_step_with_a_closure_among_its_parameters_has_none():
    scale = [2.0]
    assert digest(lambda x: jax.pure_callback(lambda y: y * scale[0], x, x)) is None


def program(rows=8, mode="train", replicas=None):
    def step(state, batch):
        total = batch.sum()
        return state + (total if replicas is None else jax.lax.psum(total, REPLICA_AXIS)), ()

    return Program(f"sum/{mode}", step, jnp.zeros(()), jax.ShapeDtypeStruct((rows, 4), "float32"), ROWS, replicas, mode)


def products(dtype, function=jnp.tanh, is_reversed=False):
    """A product in some precision, of float32 arrays that give a float32 state."""

    def step(state, batch):
        parts = [batch.astype(dtype), state.astype(dtype)]
        x, w = parts[:: -1 if is_reversed else 1]
        return state, jax.jit(lambda x, w: function(w @ x if is_reversed else x @ w))(x, w).astype("float32")

    return Program("net/train", step, jnp.zeros((4, 4)), jax.ShapeDtypeStruct((8, 4), "float32"), ROWS)


def test_a_program_digest_knows_shapes_mode_replicas_precision_and_operations():
    assert program_digest(program()) == program_digest(dataclasses.replace(program(), name="another"))
    programs = [program(), program(rows=16), program(mode="infer"), program(replicas=8)]
    steps = [products(jnp.float32), products(jnp.bfloat16), products(jnp.float32, jnp.exp)]
    assert len(set(map(program_digest, [*programs, *steps]))) == 7


def test_a_program_digest_ignores_the_order_of_operations():
    assert program_digest(products(jnp.bfloat16)) == program_digest(products(jnp.bfloat16, is_reversed=True))
