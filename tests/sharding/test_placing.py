"""Placed programs: partitions of state and batch, and constraints on activations."""

import dataclasses

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from anytpu import program as programs
from anytpu.errors import SettingError
from anytpu.program.jaxprs import inner_jaxprs, level_of
from anytpu.program.placed import inside, placed_specs
from anytpu.sharding import place, resolve

MESH = {"data": 4, "model": 2}
PAIRS = {"up": PartitionSpec(None, "model"), "down": PartitionSpec("model", None)}


def mlp_step(state, batch):
    def loss(weights):
        x, y = batch
        hidden = jax.nn.relu(x @ weights["up"] + weights["bias"])
        return ((hidden @ weights["down"] - y) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state["weights"])
    slots = jax.tree.map(lambda slot, grad: 0.9 * slot + grad, state["slots"], grads)
    weights = jax.tree.map(lambda weight, slot: weight - 0.1 * slot, state["weights"], slots)
    return {"weights": weights, "slots": slots}, {"loss": value}


@pytest.fixture(scope="module")
def mlp():
    weights = {"up": jnp.ones((64, 256)), "bias": jnp.zeros(256), "down": jnp.ones((256, 32))}
    state = {"weights": weights, "slots": jax.tree.map(jnp.zeros_like, weights)}
    return programs.of(mlp_step, (state, (jnp.ones((16, 64)), jnp.ones((16, 32)))))


def placed(program, layout, mesh=None):
    result = place(program, resolve(layout, mesh, 8))
    specs = dict(zip([*programs.program.state_names(program), "x", "y"], result.placement.specs, strict=True))
    return result, specs


def constraints_of(program):
    """Return the partition of each constraint of a placed program, inner functions included."""
    with inside(program.placement):
        trace = jax.make_jaxpr(program.step)(*placed_specs(program))

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "sharding_constraint":
                yield tuple(equation.params["sharding"].spec)
            for inner in inner_jaxprs(equation):
                yield from walk(level_of(inner))

    return list(walk(trace.jaxpr))


def test_slots_lie_like_their_weights(mlp):
    _, specs = placed(mlp, PAIRS, MESH)
    assert specs["weights/up"] == specs["slots/up"] == ((), ("model",))
    assert specs["weights/down"] == specs["slots/down"] == (("model",), ())


def test_a_bias_follows_nothing_unless_a_pattern_names_it(mlp):
    _, specs = placed(mlp, PAIRS, MESH)
    assert specs["weights/bias"] == ()
    _, specs = placed(mlp, {"weights/bias": PartitionSpec("model")}, MESH)
    assert specs["weights/bias"] == specs["slots/bias"] == (("model",),)


def test_rows_are_split_and_activations_follow(mlp):
    program, specs = placed(mlp, PAIRS, MESH)
    assert specs["x"] == specs["y"] == (("data",), ())
    hidden, output = ("data", "model"), ("data", None)
    # The hidden layer, the output, the gradient of the hidden layer; gradients of weights hold no rows.
    assert sorted(constraints_of(program), key=str) == sorted([hidden, output, hidden], key=str)


def test_fsdp_gathers_weights_and_keeps_activations_split_by_rows(mlp):
    program, specs = placed(mlp, "fsdp")
    assert specs["weights/up"] == specs["slots/up"] == ((), ("data",))
    assert set(constraints_of(program)) == {("data", None)}


def test_constraints_reach_the_bodies_of_scans():
    def step(weights, x):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)
        return weights, x.sum()

    program = programs.of(step, (jnp.ones((3, 64, 64)), jnp.ones((16, 64))))
    result = place(program, resolve("data", None, 8))
    assert constraints_of(result) == [("data", None)]


def test_one_device_computes_the_same_without_the_constraints(mlp):
    # On one device of its own mesh a constraint places nothing.
    layout = resolve(PAIRS, {"data": 1, "model": 1}, 1)
    program = place(mlp, layout)
    rng = np.random.default_rng(0)
    state, batch = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype("float32"), (mlp.state, mlp.batch))
    with jax.set_mesh(jax.make_mesh((1, 1), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)):
        found = jax.jit(program.step)(state, batch)
    expected = jax.jit(mlp.step)(state, batch)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_large_weight_that_is_left_whole_is_noted():
    weights = {"a": jnp.zeros((1024, 1024)), "odd": jnp.zeros((1023, 1021))}
    program = programs.of(lambda w, x: (w, (x @ w["a"]).sum()), (weights, jnp.zeros((16, 1024))))
    assert place(program, resolve("fsdp", None, 8)).notes[-1] == (
        "'odd' (3.98 MiB) is replicated on 8 devices: the layout fsdp splits no axis of it."
    )
    assert not any("whole" in note for note in place(program, resolve("data", None, 8)).notes)


def layout_map(**layouts):
    devices = [f"cpu:{index}" for index in range(8)]
    made = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((4, 2), ("batch", "model"), devices))
    for pattern, axes in layouts.items():
        made[f".*{pattern.replace('__', '/')}"] = axes
    return resolve(made, None, 8)


@pytest.fixture(scope="module")
def network():
    layers = [keras.layers.Dense(64, "relu", name="up"), keras.layers.Dense(8, name="down")]
    model = keras.Sequential([keras.Input((16,)), *layers], name="net")
    # Keras numbers the names that it gives itself.
    model.compile(keras.optimizers.SGD(name="sgd"), "mse")
    return programs.of(model, batch_size=32)


def test_a_layout_map_constrains_the_outputs_that_it_names_and_nothing_else(network):
    program = place(network, layout_map(up__kernel=(None, "model"), up__output=("batch", "model")))
    # The forward pass and its transpose in the backward pass.
    assert set(constraints_of(program)) == {("batch", "model")}
    assert constraints_of(place(network, layout_map(up__kernel=(None, "model")))) == []
    assert keras.distribution.distribution() is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (".*side/output", "the pattern '.*side/output' of the layout matches the output of no layer of the step."),
        (
            "up/output",
            "the pattern 'up/output' of the layout matches the output of no layer of the step. Keras matches whole "
            "paths, such as 'net/up/output': write '.*up/output'.",
        ),
        (
            "up/kernel",
            "the pattern 'up/kernel' of the layout matches no weight of 'net/train'. Keras matches whole paths, such "
            "as 'net/up/kernel': write '.*up/kernel'.",
        ),
        (
            "upp/kernel",
            "the pattern 'upp/kernel' of the layout matches no weight of 'net/train'. The nearest names are "
            "'net/up/kernel', 'net/down/kernel', 'sgd/learning_rate'.",
        ),
        (
            "up",
            "the pattern 'up' of the layout matches no weight of 'net/train'. Keras matches whole paths, such as "
            "'net/up/kernel': write '.*(?:up).*'.",
        ),
        (
            "^up$|/up/",
            "the pattern '^up$|/up/' of the layout matches no weight of 'net/train'. Keras matches whole paths, such "
            "as 'net/up/kernel': write '.*(?:^up$|/up/).*'.",
        ),
    ],
)
def test_a_key_of_a_layout_map_that_matches_nothing_is_refused(network, pattern, message):
    layouts = keras.distribution.LayoutMap(
        keras.distribution.DeviceMesh((4, 2), ("batch", "model"), [f"cpu:{index}" for index in range(8)])
    )
    layouts[pattern] = ("batch", None)
    with pytest.raises(SettingError) as error:
        place(network, resolve(layouts, None, 8))
    assert str(error.value) == message
    assert keras.distribution.distribution() is None


def test_a_partition_of_weights_that_does_not_fit_an_output_is_refused():
    layer = keras.layers.EinsumDense("bhd,hdf->bf", (16,), name="out")
    model = keras.Sequential([keras.Input((4, 4)), layer], name="net")
    model.compile("sgd", "mse")
    layouts = layout_map(**{"out.*": ("model", None, None)})
    with pytest.raises(SettingError) as error:
        place(programs.of(model, batch_size=8), layouts)
    assert str(error.value) == (
        f"the partition {PartitionSpec('model', None, None)} of the layout does not fit the output 'net/out/output', "
        "which a key of it matches too. Let the key of the weights end in their name, as in '.*/kernel'"
    )


def test_a_layout_map_over_a_step_without_keras_splits_what_it_names_and_nothing_else():
    def gated(weights, x):
        return weights, ((x @ weights["gate"]) * (x @ weights["up"])).sum()

    spec = jax.ShapeDtypeStruct((16, 32), "float32")
    program = programs.of(gated, ({"gate": spec, "up": spec}, jax.ShapeDtypeStruct((8, 16), "float32")))
    assert place(program, layout_map(up=(None, "model"))).placement.specs[:2] == ((), ((), ("model",)))


class Inside(keras.layers.Layer):
    """A layer with a layer of any name."""

    def __init__(self, inner, name):
        super().__init__(name=name)
        self.inner = keras.layers.Dense(16, use_bias=False, name=inner)

    def call(self, x):
        return self.inner(x)


def test_slots_of_equal_names_are_split_like_their_weights():
    model = keras.Sequential([keras.Input((16,)), Inside("c", "a_b"), Inside("b_c", "a")], name="net")
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    layouts = layout_map(**{"a_b/c/kernel": (None, "model"), "a/b_c/kernel": ("model", None)})
    program = place(programs.of(model, batch_size=8), layouts)
    named = zip(program.state_names, program.placement.specs, strict=False)
    assert [spec for name, spec in named if "kernel" in name] == 2 * [((), ("model",)), (("model",), ())]


def test_a_program_with_shardings_of_its_own_keeps_them(mlp):
    first, _ = placed(mlp, PAIRS, MESH)
    assert place(first, resolve("fsdp", None, 8)) is first


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            {"wieghts/up": PartitionSpec("model")},
            "the pattern 'wieghts/up' of the layout matches no weight of 'mlp_step/train'. The nearest names are "
            "'weights/up', 'weights/down', 'weights/bias'.",
        ),
        (
            {"^weights/bias": PartitionSpec(None, "model")},
            "'weights/bias' has the shape (256,), and its partition in the layout is for 2 axes: give it at most 1",
        ),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(mlp, layout, message):
    with pytest.raises(SettingError) as error:
        placed(mlp, layout, MESH)
    assert str(error.value) == message


def test_cores_that_do_not_divide_a_weight_are_refused():
    program = programs.of(lambda w, x: (w, (x @ w).sum()), (jnp.ones((63, 9)), jnp.ones((8, 63))))
    with pytest.raises(SettingError) as error:
        place(program, resolve({"state": PartitionSpec("model")}, MESH, 8))
    assert str(error.value) == (
        "'state' has the shape (63, 9), and the layout splits axis 0 over 2 cores (model=2), which do not divide 63. "
        "Split another axis, or leave this weight whole"
    )


def test_per_replica_code_is_refused(mlp):
    program = dataclasses.replace(mlp, replicas=8)
    with pytest.raises(SettingError) as error:
        place(program, resolve("fsdp", None, 8))
    assert str(error.value) == (
        "'mlp_step/train' is a step for one replica, and layout='fsdp' splits one model over the cores. Write "
        "whole-batch code: fit of a Keras model, or a function step(state, batch) of the global batch"
    )


def mapped_step(state, batch):
    """A step whose kernel is mapped over a mesh of its own, as a Pallas kernel has to be."""
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    at = PartitionSpec("data", "model")

    def loss(weights):
        x, y = batch
        hidden = jax.shard_map(jax.nn.relu, mesh=mesh, in_specs=at, out_specs=at)(x @ weights["up"] + weights["bias"])
        return ((hidden @ weights["down"] - y) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state["weights"])
    slots = jax.tree.map(lambda slot, grad: 0.9 * slot + grad, state["slots"], grads)
    weights = jax.tree.map(lambda weight, slot: weight - 0.1 * slot, state["weights"], slots)
    return {"weights": weights, "slots": slots}, {"loss": value}


def test_a_layout_places_the_inputs_of_a_step_that_only_names_a_mesh(mlp):
    mapped = programs.of(mapped_step, (mlp.state, mlp.batch))
    assert mapped.placement is not None and not any(mapped.placement.specs[: len(jax.tree.leaves(mlp.state))])
    patterns = {f"weights/{name}": spec for name, spec in PAIRS.items()}
    result, specs = placed(mapped, patterns, MESH)
    assert result.placement.specs == placed(mlp, patterns, MESH)[0].placement.specs
    assert specs["weights/up"] == specs["slots/up"] == ((), ("model",))
    assert (None, "model") not in constraints_of(result) and ("data", "model") in constraints_of(result)
    assert not any("names a mesh" in note for note in result.notes)


def test_a_layout_over_another_mesh_than_that_of_the_step_is_refused(mlp):
    mapped = programs.of(mapped_step, (mlp.state, mlp.batch))
    with pytest.raises(SettingError) as error:
        place(mapped, resolve("fsdp", None, 8))
    assert str(error.value) == (
        "the step of 'mapped_step/train' names the mesh data=4, model=2, and the layout 'fsdp' has data=8. Give the "
        'layout the mesh of the step: mesh={"data": 4, "model": 2}'
    )
