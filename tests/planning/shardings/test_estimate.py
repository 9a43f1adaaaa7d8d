"""Estimates of layouts: products, collectives and memory, against arithmetic by hand."""

import jax
import jax.numpy as jnp
import pytest

from anytpu import program as programs
from anytpu.planning.records.target import target_named
from anytpu.planning.shardings.candidates import candidates
from anytpu.planning.shardings.estimate import estimate
from anytpu.planning.timing.irregular import ROW_S, UPDATE_S
from anytpu.sharding import resolve, trace_step

TARGET = target_named("v5e-8")
WIDTH, ROWS = 8192, 4096


@pytest.fixture(scope="module")
def traced():
    def step(weight, x):
        return weight - jax.grad(lambda w: ((x @ w).astype("float32") ** 2).sum())(weight), ()

    weight, x = jnp.zeros((WIDTH, WIDTH), "bfloat16"), jnp.zeros((ROWS, WIDTH), "bfloat16")
    return trace_step(programs.of(step, (weight, x)))


def of(traced, layout, mesh=None):
    return estimate(traced, resolve(layout, mesh, 8), TARGET)


def test_eight_devices_share_the_products(traced):
    two_products_s = 2 * 2 * ROWS * WIDTH * WIDTH / TARGET.flops_per_s
    data = of(traced, "data")
    assert 1 / 8 <= data.computing_s / two_products_s < 1.2 / 8
    whole = estimate(traced, resolve("data", None, 1), target_named("v5e-1"))
    assert whole.network_s == 0
    assert 1 <= whole.computing_s / two_products_s < 1.2


def test_weights_of_fsdp_take_an_eighth_of_the_memory(traced):
    weight_bytes, batch_bytes = 2 * WIDTH * WIDTH, 2 * ROWS * WIDTH
    assert of(traced, "data").state_bytes == weight_bytes + batch_bytes // 8
    assert of(traced, "fsdp").state_bytes == (weight_bytes + batch_bytes) // 8


def trained(rows):
    """Return the trace of a step with momentum over two scanned layers."""

    def step(state, batch):
        def loss(weight):
            return (jax.lax.scan(lambda x, w: (x @ w, None), batch, weight)[0].astype("float32") ** 2).sum()

        value, gradients = jax.value_and_grad(loss)(state["weight"])
        slot = 0.9 * state["slot"] + gradients
        return {"weight": state["weight"] - slot, "slot": slot}, value

    weights = jnp.zeros((2, 4096, 4096))
    return trace_step(programs.of(step, ({"weight": weights, "slot": weights}, jnp.zeros((rows, 4096)))))


def estimates(traced, *names):
    layouts = {layout.name: layout for layout in candidates(traced, 8)}
    return [estimate(traced, layouts[name], TARGET) for name in names]


def test_products_hide_the_gathers_of_fsdp():
    (many_data, many_fsdp), (few_data, few_fsdp) = (estimates(trained(rows), "data", "fsdp") for rows in (65536, 64))
    # A reduce-scatter moves half the bytes of an all-reduce, and reaches 91 % of the links where that reaches 60 %.
    assert many_fsdp.network_s / many_data.network_s == pytest.approx(0.5 * 0.6 / 0.91, rel=0.05)
    assert few_fsdp.network_s > 1.5 * many_fsdp.network_s
    assert few_data.network_s == pytest.approx(many_data.network_s)


def test_new_weights_of_zero_1_are_gathered_at_the_end_of_a_step():
    data, zero, fsdp = estimates(trained(65536), "data", "zero-1", "fsdp")
    assert zero.network_s > 1.9 * fsdp.network_s
    # A split optimizer updates an eighth of each weight; a scanned layer sees a weight without its stacked axis.
    assert fsdp.computing_s == zero.computing_s < data.computing_s


@pytest.mark.parametrize(("rows", "update_s"), [(2**20, UPDATE_S), (2**17, ROW_S)])
def test_rows_of_a_large_table_are_updated_one_by_one(rows, update_s):
    lookups = 2**18

    def step(table, ids):
        return table - jax.grad(lambda table: table[ids].sum())(table), ()

    traced = trace_step(programs.of(step, (jnp.zeros((rows, 128)), jnp.zeros(lookups, "int32"))))
    data, fsdp = (estimate(traced, resolve(name, None, 8), TARGET) for name in ("data", "fsdp"))
    streamed_s = data.computing_s - update_s * lookups / 8
    assert 0 < streamed_s < 4 * 4 * rows * 128 / 737e9
    # Each device goes through all updates if the shards of a large table are apart.
    assert fsdp.computing_s > update_s * lookups / (1 if update_s == UPDATE_S else 8)
    # The gradients of a whole table are added up over the devices.
    assert data.network_s > 2 * fsdp.network_s > 0


def test_a_split_contraction_adds_up_its_results(traced):
    from jax.sharding import PartitionSpec

    mesh = {"data": 1, "model": 8}
    contracted = of(traced, {"state": PartitionSpec("model", None)}, mesh)
    free = of(traced, {"state": PartitionSpec(None, "model")}, mesh)
    assert contracted.network_s > 0
    assert free.network_s == 0
