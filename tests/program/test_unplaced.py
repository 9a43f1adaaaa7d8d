"""`unplaced`: programs with a placement as code for one device. The battery of the backends runs them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program import ROWS, Placement, Program, spec_of
from anytpu.program.unplaced import unplaced

MESH = AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
BOTH = PartitionSpec("data", "model")


def program_of(step: Any, state: Any, batch: Any) -> Program:
    leaves = len(jax.tree.leaves((state, batch)))
    placement = Placement((("data", 4), ("model", 2)), ((),) * leaves)
    layout = jax.tree.map(lambda _: ROWS, batch)
    return Program("placed", step, spec_of(state), spec_of(batch), layout, placement=placement)


def results(shard: Any, array: np.ndarray, in_specs: Any, out_specs: Any, **settings: Any) -> Any:
    """Return what a function for each shard makes of an array, on one device."""

    def step(state: Any, batch: Any) -> Any:
        return state, jax.shard_map(shard, in_specs=in_specs, out_specs=out_specs, **settings)(batch)

    return jax.jit(unplaced(program_of(step, np.float32(0), array)).step)(np.float32(0), array)[1]


def shards_of(array: np.ndarray) -> np.ndarray:
    """Return the (4, 2) shards of an array, `(4, 2, rows, columns)`."""
    rows, columns = array.shape[0] // 4, array.shape[1] // 2
    return array.reshape(4, rows, 2, columns).transpose(0, 2, 1, 3)


ARRAY = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
SHARDS = shards_of(ARRAY)
COLLECTIVES = {
    "psum": (lambda x: lax.psum(x, "data"), SHARDS.sum(0)[None].repeat(4, 0)),
    "psum of both": (lambda x: lax.psum(x, ("data", "model")), np.broadcast_to(SHARDS.sum((0, 1)), SHARDS.shape)),
    "pmax": (lambda x: lax.pmax(x, "model"), SHARDS.max(1)[:, None].repeat(2, 1)),
    "ppermute": (lambda x: lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]), np.roll(SHARDS, 1, 0)),
    "all_gather": (lambda x: lax.all_gather(x, "model")[0], SHARDS[:, :1].repeat(2, 1)),
    "index": (lambda x: x * 0 + lax.axis_index(("model", "data")), None),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name: str, check_vma: bool):
    shard, expected = COLLECTIVES[name]
    got = results(shard, ARRAY, BOTH, BOTH, check_vma=check_vma)
    if expected is None:
        expected = np.arange(8).reshape(2, 4).T[:, :, None, None] * np.ones_like(SHARDS)
    np.testing.assert_allclose(shards_of(np.asarray(got)), expected, rtol=1e-6)


def test_an_axis_split_over_two_mesh_axes():
    spec = PartitionSpec(("model", "data"))
    got = results(lambda x: x + lax.axis_index("model"), ARRAY, spec, spec)
    np.testing.assert_allclose(got, ARRAY + np.repeat([0, 1], 4)[:, None], rtol=1e-6)


def test_an_array_that_every_device_holds():
    got = results(lambda x: lax.psum(x, "data"), ARRAY, PartitionSpec(), PartitionSpec())
    np.testing.assert_allclose(got, 4 * ARRAY, rtol=1e-6)


def test_only_some_axes_are_manual():
    spec = PartitionSpec("data")
    got = results(lambda x: lax.psum(x, "data"), ARRAY, spec, PartitionSpec(), axis_names={"data"})
    np.testing.assert_allclose(got, ARRAY.reshape(4, 2, 6).sum(0), rtol=1e-6)


def test_collectives_inside_loops_and_branches():
    def shard(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            return total + lax.psum(row, ("data", "model")).sum(), None

        total, _ = lax.scan(body, 0.0, x)
        return lax.cond(total > 0, lambda x: x + total, lambda x: x - total, x)

    got = results(shard, ARRAY, BOTH, BOTH, check_vma=False)
    np.testing.assert_allclose(got, ARRAY + abs(ARRAY.sum()), rtol=1e-5)


def test_constraints_go():
    def step(state: Any, batch: Any) -> Any:
        @jax.jit
        def halved(x: Any) -> Any:
            return lax.with_sharding_constraint(x, BOTH) / 2

        return lax.with_sharding_constraint(halved(halved(state)), NamedSharding(MESH, BOTH)), {}

    state = np.ones((8, 6), "float32")
    plain = unplaced(program_of(step, state, np.float32(0)))
    assert plain.placement is None
    trace = jax.make_jaxpr(plain.step)(state, np.float32(0))
    assert "sharding_constraint" not in str(trace)
    np.testing.assert_array_equal(plain.step(state, np.float32(0))[0], state / 4)


def test_a_jitted_step_with_shardings():
    rows = NamedSharding(MESH, PartitionSpec("data"))
    step = jax.jit(lambda s, b: (s + b.sum(0), {}), in_shardings=(None, rows), out_shardings=None)
    state, batch = np.zeros(6, "float32"), ARRAY
    got, _ = jax.jit(unplaced(program_of(step, state, batch)).step)(state, batch)
    np.testing.assert_allclose(got, ARRAY.sum(0), rtol=1e-6)


def test_a_program_without_placement_is_itself():
    program = Program("plain", lambda s, b: (s, b), (), spec_of(ARRAY), ROWS)
    assert unplaced(program) is program


def test_a_collective_that_one_device_cannot_express():
    def shard(x: Any) -> Any:
        return lax.psum(x, "data", axis_index_groups=[[0, 1], [2, 3]])

    with pytest.raises(ProgramError) as caught:
        results(shard, ARRAY, BOTH, BOTH, check_vma=False)
    assert str(caught.value) == (
        "The jax.shard_map in the step of 'placed' cannot run on one device, as virtual cores do: "
        "psum with axis_index_groups. It runs on a real mesh, also of 8 CPU devices: start Python with "
        "JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8, and connect with "
        'tpu.TPUStrategy(tpu.TPUClusterResolver.from_address(tpu.system.Address("local", 8)), layout=...).'
    )


def test_gradients_through_a_mapped_function():
    def step(w: Any, x: Any) -> Any:
        mapped = jax.shard_map(
            lambda w, x: lax.psum(jnp.sum((x @ w) ** 2), "data"),
            in_specs=(PartitionSpec(), PartitionSpec("data")),
            out_specs=PartitionSpec(),
        )
        return w - jax.grad(mapped)(w, x), {}

    w = np.random.default_rng(1).normal(size=(6, 2)).astype("float32")
    got, _ = jax.jit(unplaced(program_of(step, w, ARRAY)).step)(w, ARRAY)
    np.testing.assert_allclose(got, w - 2 * ARRAY.T @ (ARRAY @ w), rtol=1e-4)


@jax.custom_vjp
def halved_below_zero(x: Any) -> Any:
    return jnp.where(x > 0, x, 0.5 * x)


halved_below_zero.defvjp(lambda x: (halved_below_zero(x), x), lambda x, g: (g * jnp.where(x > 0, 1.0, 0.5),))

# Each has a rule of its own for gradients, or a body: their traces hold scalars of which JAX keeps the mesh.
WITH_RULES = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "silu": jax.nn.silu,
    "logsumexp": jax.nn.logsumexp,
    "custom_vjp": halved_below_zero,
    "clip": lambda x: jnp.clip(x, -0.5, 0.5),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(jax.nn.relu(x))),
    "scan": lambda x: lax.scan(lambda total, row: (total + jax.nn.relu(row).sum(), jax.nn.relu(row)), x[0, 0], x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, jax.nn.relu, lambda x: 2.0 * jnp.tanh(x), x),
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, x: jax.nn.relu(x) * 1.1 + i, x),
    "bfloat16": lambda x: jax.nn.relu(x.astype("bfloat16")).astype("float32"),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("function", WITH_RULES.values(), ids=WITH_RULES)
def test_gradients_inside_a_shard_map(function: Any, check_vma: bool):
    def gradient(x: Any) -> Any:
        return jax.grad(lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(function(x))))(x)

    got = results(gradient, ARRAY, BOTH, BOTH, check_vma=check_vma)
    expected = jax.vmap(jax.vmap(gradient))(SHARDS)
    np.testing.assert_allclose(shards_of(np.asarray(got)), expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_shard_map():
    def step(state: Any, batch: Any) -> Any:
        def loss(x: Any) -> Any:
            return lax.psum(jax.nn.relu(x).sum(), ("data", "model"))

        total = jax.shard_map(loss, in_specs=BOTH, out_specs=PartitionSpec())
        return state, jax.grad(total)(batch)

    got = jax.jit(unplaced(program_of(step, np.float32(0), ARRAY)).step)(np.float32(0), ARRAY)[1]
    np.testing.assert_array_equal(got, ARRAY > 0)
