"""Candidate layouts of traced steps."""

import jax
import jax.numpy as jnp
import pytest

from anytpu import program as programs
from anytpu.planning.shardings.candidates import batch_rows_divide, candidates, weights_of
from anytpu.sharding import trace_step


def train_step(state, batch):
    """Two products in each of two blocks, with a momentum for each weight."""

    def loss(weights):
        x = batch
        for up, down in weights:
            x = x + jax.nn.relu(x @ up) @ down
        return (x**2).mean()

    value, grads = jax.value_and_grad(loss)(state["weights"])
    slots = jax.tree.map(lambda slot, grad: 0.9 * slot + grad, state["slots"], grads)
    return {"weights": jax.tree.map(lambda w, s: w - s, state["weights"], slots), "slots": slots}, {"loss": value}


@pytest.fixture(scope="module")
def traced():
    weights = [(jnp.zeros((256, 1024)), jnp.zeros((1024, 256))) for _ in range(2)]
    state = {"weights": weights, "slots": jax.tree.map(jnp.zeros_like, weights)}
    return trace_step(programs.of(train_step, (state, jnp.zeros((64, 256)))))


def layout_named(traced, name, devices=8):
    return next(layout for layout in candidates(traced, devices) if layout.name == name)


def split_of(layout):
    return {name: spec for name, spec in layout.specs.items() if spec}


def test_slots_are_told_from_weights(traced):
    assert weights_of(traced) == [False] * 4 + [True] * 4


def test_data_zero_and_fsdp_split_the_batch_the_slots_and_all(traced):
    assert split_of(layout_named(traced, "data")) == {}
    assert set(split_of(layout_named(traced, "zero-1"))) == {f"slots/{i}/{j}" for i in (0, 1) for j in (0, 1)}
    fsdp = split_of(layout_named(traced, "fsdp"))
    assert len(fsdp) == 8
    assert fsdp["weights/0/0"] == fsdp["slots/0/0"] == ((), ("data",))


def test_tensor_layouts_split_pairs_of_products_that_share_no_weight(traced):
    pairs = [layout for layout in candidates(traced, 2) if layout.name.startswith("tensor=2")]
    hidden = {"weights/0/0": ((), ("model",)), "weights/0/1": (("model",), ())}
    features = {"weights/0/0": (("model",), ()), "weights/0/1": ((), ("model",))}
    found = [{name: spec for name, spec in split_of(pair).items() if name in hidden} for pair in pairs]
    assert hidden in found
    assert features in found


def test_fsdp_and_tensor_split_different_axes_of_a_weight(traced):
    names = [layout.name for layout in candidates(traced, 8)]
    both = next(
        layout
        for layout in candidates(traced, 8)
        if layout.name.startswith("fsdp, tensor=2") and layout.specs["weights/0/0"] == (("data",), ("model",))
    )
    assert both.axes == (("data", 4), ("model", 2))
    assert both.specs["slots/0/1"] == (("model",), ("data",))
    assert len(names) == len(set(names))


def test_positions_of_a_sequence_are_a_candidate_and_features_are_not():
    def step(weights, tokens):
        x = weights["embedding"][tokens]
        scores = jax.nn.softmax(jnp.einsum("bsd,btd->bst", x @ weights["query"], x))
        return weights, (jnp.einsum("bst,btd->bsd", scores, x) ** 2).sum()

    weights = {"embedding": jnp.zeros((512, 64)), "query": jnp.zeros((64, 64))}
    traced = trace_step(programs.of(step, (weights, jnp.zeros((16, 32), "int32")), "infer"))
    layout = layout_named(traced, "sequence=4")
    assert (layout.axes, layout.inner) == ((("data", 2), ("sequence", 4)), {1: ("sequence",)})
    features = trace_step(programs.of(lambda w, x: (w, (x @ w).sum()), (jnp.zeros((512, 64)), jnp.zeros((16, 512)))))
    assert not any("sequence" in layout.name for layout in candidates(features, 8))


def test_one_device_has_one_layout(traced):
    assert [layout.name for layout in candidates(traced, 1)] == ["data"]


def test_rows_that_the_mesh_does_not_divide_are_known():
    traced = trace_step(programs.of(lambda w, x: (w, (x @ w).sum()), (jnp.zeros((512, 512)), jnp.zeros((12, 512)))))
    divided = {layout.name: batch_rows_divide(traced, layout) for layout in candidates(traced, 8)}
    assert not divided["data"]
    assert divided["tensor=2"]


def dense_mixture(weights, x):
    gates = jax.nn.softmax(x @ weights["router"])
    hidden = jax.nn.relu(jnp.einsum("bd,edf->bef", x, weights["up"]))
    return jnp.einsum("be,bef,efd->bd", gates, hidden, weights["down"])


def sparse_mixture(weights, x):
    experts, room = weights["router"].shape[1], 16
    gate, chosen = jax.lax.top_k(jax.nn.softmax(x @ weights["router"]), 1)
    mask = jax.nn.one_hot(chosen[:, 0], experts)
    slot = jax.nn.one_hot((jnp.cumsum(mask, 0) * mask - 1).astype(int), room) * mask[..., None]
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", jnp.einsum("bec,bd->ecd", slot, x), weights["up"]))
    return gate * jnp.einsum("bec,ecd->bd", slot, jnp.einsum("ecf,efd->ecd", hidden, weights["down"]))


@pytest.mark.parametrize("mixture", [dense_mixture, sparse_mixture])
def test_the_experts_of_a_mixture_are_split_over_an_axis_of_their_own(mixture):
    weights = {"router": jnp.zeros((64, 8)), "up": jnp.zeros((8, 64, 256)), "down": jnp.zeros((8, 256, 64))}

    def step(weights, x):
        value, grads = jax.value_and_grad(lambda weights: (mixture(weights, x) ** 2).mean())(weights)
        return jax.tree.map(lambda w, g: w - g, weights, grads), {"loss": value}

    layout = layout_named(trace_step(programs.of(step, (weights, jnp.zeros((64, 64))))), "expert=4")
    assert layout.axes == (("data", 2), ("expert", 4))
    assert split_of(layout)["up"] == split_of(layout)["down"] == (("expert",), (), ())


def test_heads_with_biases_of_positions_are_no_experts():
    def step(weights, x):
        query = jnp.einsum("btd,dhe->bhte", x, weights["query"])
        bias = jnp.einsum("bhte,hse->bhts", query, weights["positions"])
        scores = jax.nn.softmax(jnp.einsum("bhte,bhse->bhts", query, query) + bias)
        return weights, (jnp.einsum("bhts,bhse->bthe", scores, query) ** 2).sum()

    weights = {"query": jnp.zeros((64, 4, 16)), "positions": jnp.zeros((4, 32, 16))}
    names = [layout.name for layout in candidates(trace_step(programs.of(step, (weights, jnp.zeros((8, 32, 64))))), 4)]
    assert not any("expert" in name for name in names)
    assert "tensor=4" in names


def test_fsdp_by_features_never_splits_the_examples():
    def step(state, tokens):
        x = state["table"][tokens] + state["cache"].mean(1)
        return state, (x @ state["out"]).sum()

    shapes = {"cache": (64, 4096, 128), "out": (128, 512), "table": (512, 128)}
    state = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    traced = trace_step(programs.of(step, (state, jax.ShapeDtypeStruct((64,), "int32")), "infer", batch_axis=0))
    specs = {layout.name: layout.specs for layout in candidates(traced, 8)}
    assert specs["fsdp by features"]["cache"] == ((), (), ("data",))


def test_fsdp_by_features_splits_each_weight_along_the_axis_between_blocks():
    def step(weights, ids):
        x = weights["table"][ids]
        x = x + jax.nn.relu(x @ weights["up"]) @ weights["down"]
        return weights, (x @ weights["table"].T).sum()

    shapes = {"down": (512, 128), "table": (4096, 128), "up": (128, 512)}
    weights = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    ids = jax.ShapeDtypeStruct((64, 16), "int32")
    traced = trace_step(programs.of(step, (weights, ids), batch_axis=0))
    specs = {layout.name: tuple(layout.specs.values()) for layout in candidates(traced, 8)}
    rows, columns = (("data",), ()), ((), ("data",))
    assert specs["fsdp"] == (rows, rows, columns)
    assert specs["fsdp by features"] == (columns, columns, rows)
