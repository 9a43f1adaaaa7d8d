"""`run_steps` on a strategy with a layout: whole-batch steps of pure JAX, placed by the layout or by themselves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import anytpu as tpu
from anytpu.errors import BackendError, DataError, SettingError

MESH = {"data": 4, "model": 2}
RNG = np.random.default_rng(0)
STATE = {
    "in": 0.1 * RNG.normal(size=(32, 64)).astype("float32"),
    "out": 0.1 * RNG.normal(size=(64, 4)).astype("float32"),
}
BATCHES = [(RNG.normal(size=(16, 32)).astype("float32"), RNG.normal(size=(16, 4)).astype("float32")) for _ in range(7)]
LAYOUT = {"^in$": PartitionSpec(None, "model"), "^out$": PartitionSpec("model")}


def step(state, batch):
    x, y = batch
    hidden = lambda w: jnp.tanh(x @ w["in"])  # noqa: E731
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((hidden(w) @ w["out"] - y) ** 2))(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, slope), {"loss": loss, "rows": x[:, 0]}


def plain(step, batches):
    state, step = STATE, jax.jit(step)
    for batch in batches:
        state, outputs = step(state, batch)
    return state, outputs


def assert_close(found, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize("kind", ["virtual", "twin"])
def test_many_steps_of_a_whole_batch(kind: str):
    strategy = tpu.connect(kind, cores=8, layout=LAYOUT, mesh=MESH)
    found = strategy.run_steps(step, iter(BATCHES), 7, state=STATE)
    assert_close(found, plain(step, BATCHES))
    assert found[1]["loss"].shape == ()
    before = strategy.compilations
    strategy.run_steps(step, iter(BATCHES), 3, state=STATE)
    assert strategy.compilations == before


def test_a_step_that_names_axes_of_the_mesh():
    def constrained(state, batch):
        x, y = batch
        x = jax.lax.with_sharding_constraint(x, PartitionSpec("data"))
        total = jax.shard_map(
            lambda x: jax.lax.psum(x.sum(), ("data", "model")),
            in_specs=PartitionSpec("data", "model"),
            out_specs=PartitionSpec(),
        )(x)
        return step(state, (x, y))[0], {"total": total}

    strategy = tpu.connect("v2-8", layout=LAYOUT, mesh=MESH)
    state, outputs = strategy.run_steps(constrained, iter(BATCHES), 7, state=STATE)
    assert_close(state, plain(step, BATCHES)[0])
    np.testing.assert_allclose(outputs["total"], BATCHES[-1][0].sum(), rtol=1e-4)


def test_a_step_keeps_its_own_shardings():
    mesh = AbstractMesh((2, 2), ("data", "model"), (AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    own = jax.jit(step, in_shardings=(None, rows), out_shardings=None)
    strategy = tpu.connect("virtual", cores=4, layout="data", mesh={"data": 2, "model": 2})
    assert_close(strategy.run_steps(own, iter(BATCHES), 2, state=STATE), plain(step, BATCHES[:2]))


def test_what_is_refused():
    strategy = tpu.connect("virtual", cores=2, layout="fsdp")
    with pytest.raises(SettingError) as caught:
        strategy.run_steps(lambda batch: batch[0].sum(), iter(BATCHES), 2)
    assert str(caught.value) == (
        "<lambda> runs on each replica, and layout='fsdp' splits one model over the cores: use whole-batch code. Train "
        "a Keras model with fit, or call run_steps with state= and a step(state, batch) of the global batch"
    )
    with pytest.raises(DataError) as failed:
        strategy.run_steps(step, iter(strategy.distribute_dataset(BATCHES)), 2, state=STATE)
    assert str(failed.value) == (
        "the iterator yields batches that are split over replicas, and layout='fsdp' takes the global batch: use "
        "iter(dataset)"
    )
    mesh = AbstractMesh((4,), ("data",), (AxisType.Auto,))
    other = jax.jit(step, in_shardings=(None, NamedSharding(mesh, PartitionSpec("data"))))
    with pytest.raises((BackendError, ValueError)):
        strategy.run_steps(other, iter(BATCHES), 2, state=STATE)
