"""The identity of a step."""

import dataclasses

import jax
import jax.numpy as jnp

from anytpu.program.program import REPLICA_AXIS, ROWS, Program
from anytpu.program.program_digest import program_digest


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
