"""What advice has to know of a program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu.planning.advice.facts import facts_of, float32_share
from anytpu.program import of

MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def test_the_parts_and_the_axes_of_the_batch():
    def spec(shape: tuple[int, ...], *parts: str | None) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(MESH, PartitionSpec(*parts)) if parts else None
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    def step(state, batch):
        return state, batch["images"].sum()

    batch = {"images": spec((8, 8, 3, 16)), "labels": spec((16,)), "scale": spec(())}
    split = {"images": spec((8, 8, 3, 16), None, None, None, "data"), "labels": spec((16,), "data")}
    own = facts_of(of(step, (spec((4, 4)), batch), batch_axis={"images": 3, "labels": 0, "scale": None}), False, 8)
    assert (own.batch_parts, own.is_placed) == (8, False)
    laid = facts_of(of(step, (spec((4, 4)), split)), False, 8)
    assert (laid.batch_parts, laid.is_placed) == (2, True)
    assert (laid.state_bytes, laid.weights) == (64, {"state": (4, 4)})


def test_the_type_of_the_products_is_that_of_the_program():
    def layers(dtype: str) -> ClosedJaxpr:
        def step(weights, x):
            return jax.lax.scan(lambda x, w: (x.astype(dtype) @ w.astype(dtype), None), x.astype(dtype), weights)

        return jax.make_jaxpr(jax.jit(step))(jnp.zeros((6, 8, 8)), jnp.zeros((4, 8)))

    assert float32_share(layers("float32")) == 1.0
    assert float32_share(layers("bfloat16")) == 0.0
    assert float32_share(jax.make_jaxpr(jnp.tanh)(1.0)) is None


def test_products_that_are_to_be_exact_are_no_float32_by_neglect():
    x = jnp.zeros((8, 8))
    assert float32_share(jax.make_jaxpr(lambda x: jnp.dot(x, x, precision="highest"))(x)) == 0.0
