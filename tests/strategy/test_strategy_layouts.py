"""Strategies with a layout: what they say, what they refuse, and how variables come into their shards."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import anytpu as tpu
from anytpu import _env
from anytpu.engine.slices import smallest_slice
from anytpu.errors import BackendError, ProgramError, SettingError
from anytpu.program import REPLICATED, ROWS, Layout, Program
from anytpu.strategy import variables
from anytpu.strategy.arguments import split_arguments
from anytpu.strategy.whole_step import whole_program
from forked import python


def message(function, *args, **kwargs) -> str:
    with pytest.raises(SettingError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def test_it_says_its_layout():
    strategy = tpu.connect("v2-8", layout="fsdp")
    assert repr(strategy) == "<TPUStrategy: v2-8, 8 virtual cores, layout fsdp over data=8>"
    strategy = tpu.connect("v2-8", layout="data", mesh={"data": 4, "model": 2})
    assert repr(strategy) == "<TPUStrategy: v2-8, 8 virtual cores, layout data over data=4, model=2>"
    assert tpu.connect("v2-8").layout is None


def test_a_mesh_has_as_many_devices_as_there_are_cores():
    assert message(tpu.connect, "v2-8", layout="fsdp", mesh={"data": 4}) == (
        "the mesh data=4 has 4 devices, and the system has 8: its sizes must multiply to 8. A size of -1 fills any "
        'system: mesh={"data": -1}'
    )


def test_a_mesh_needs_a_layout():
    assert message(tpu.connect, "v2-8", mesh={"data": 8}) == (
        'mesh={\'data\': 8} needs a layout, which says what it splits: add layout="data" or "fsdp"'
    )


def test_a_step_of_one_replica_has_no_layout():
    strategy = tpu.connect("virtual", cores=2, layout="fsdp")
    assert message(strategy.run, lambda x: x + 1.0, args=(1.0,)) == (
        "<lambda> runs on each replica, and layout='fsdp' splits one model over the cores: use whole-batch code. Train "
        "a Keras model with fit, or call run_steps with state= and a step(state, batch) of the global batch"
    )


def test_a_part_has_no_layout():
    assert message(tpu.connect("v2-8", layout="fsdp").part, 2) == (
        "<TPUStrategy: v2-8, 8 virtual cores, layout fsdp over data=8> splits a model over its 8 cores, and a part of "
        "it has 2: leave layout out"
    )


def test_programs_are_placed_when_they_are_compiled():
    spec = jax.ShapeDtypeStruct((16, 1024), "float32")
    program = Program("add", lambda s, b: (s + b, {}), spec, spec, ROWS, state_names=("w",))
    strategy = tpu.connect("v2-8", layout="fsdp")
    placed = strategy.place(program)
    assert placed.placement is not None
    assert placed.placement.specs == (((), ("data",)), (("data",), ()))
    assert strategy.place(placed) is placed
    assert tpu.connect("v2-8").place(program) is program
    ones = np.ones((16, 1024), "float32")
    executable, backend = strategy.compile(program), strategy.backend
    state, _ = executable.step(backend.put(ones, REPLICATED), backend.put(ones, ROWS))
    assert np.all(np.asarray(backend.get(state)) == 2)


def test_cores_have_the_memory_of_the_real_ones():
    specs = jax.ShapeDtypeStruct((2**22, 1024), "float32"), jax.ShapeDtypeStruct((64, 4), "float32")
    program = Program("large/train", lambda s, b: (s, {}), *specs, ROWS, state_names=("w",))
    assert tpu.connect("v2-8", layout="fsdp").compile(program).outputs == {}
    with pytest.raises(BackendError) as caught:
        tpu.connect("v2-8", layout="data").compile(program)
    assert str(caught.value) == (
        "the state and the batch of 'large/train' take 16 GiB on each core of a mesh of 8 devices (data=8), and a core "
        "has 8 GiB: 8 GiB are missing, before any activation. Split more of the weights; as they are split, the "
        "smallest slice that holds them is v4-16, tpu.connect('v4-16')"
    )


@pytest.mark.parametrize(
    ("rows", "layout", "mesh", "slice_name"),
    [
        (2**21, "data", None, "v3-8"),  # 8 GiB and the batch on each core
        (2**25, "fsdp", None, "v4-16"),
        (2**27, "fsdp", {"data": 2, "model": 4}, "v5p-64"),  # 256 GiB of a core over data=2, 64 GiB over data=8
        (2**27, "data", None, None),
    ],
)
def test_the_smallest_slice_that_holds_a_state(rows, layout, mesh, slice_name):
    specs = jax.ShapeDtypeStruct((rows, 1024), "float32"), jax.ShapeDtypeStruct((64, 4), "float32")
    program = Program("large/train", lambda s, b: (s, {}), *specs, ROWS, state_names=("w",))
    assert smallest_slice(tpu.connect("v2-8", layout=layout, mesh=mesh).place(program)) == slice_name


def test_a_slice_divides_the_state():
    """No more than 8 cores divide the rows of this state, so a larger slice would refuse it."""
    specs = jax.ShapeDtypeStruct((8 * 3 * 2**18 + 8, 4096), "float32"), jax.ShapeDtypeStruct((64, 4), "float32")
    layout = {"w": PartitionSpec("data")}
    program = Program("odd/train", lambda s, b: (s, {}), *specs, ROWS, state_names=("w",))
    assert smallest_slice(tpu.connect("v2-8", layout=layout).place(program)) == "v3-8"


def test_an_explicit_mesh_in_a_step():
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), axis_types=explicit)

    def step(state, x):
        x = jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, PartitionSpec("data", "model")))
        return state, (x @ state).sum()

    strategy = tpu.connect("v2-8", layout="data", mesh={"data": 4, "model": 2})
    with pytest.raises(ProgramError) as caught:
        strategy.run_steps(step, iter([WIDE]), 1, state=np.zeros((4, 2), "float32"))
    assert str(caught.value) == (
        "the step 'step' names a mesh with axes of jax.sharding.AxisType.Explicit, and the mesh of layout='data' "
        "has axes of AxisType.Auto: make the mesh with axis_types=(jax.sharding.AxisType.Auto,) * 2, and use "
        "jax.lax.with_sharding_constraint in place of jax.sharding.reshard"
    )


WIDE = np.ones((16, 4), "float32")


def step_of_sums(state, x):
    return {"w": state["w"] + x.sum()}, x.sum()


@pytest.mark.parametrize(
    ("wrap", "specs"),
    [
        (lambda whole, rows: step_of_sums, ((("data",), ()), (("data",), ()))),
        (lambda whole, rows: jax.jit(step_of_sums, in_shardings=(whole, whole)), ((), ())),
        (lambda whole, rows: jax.jit(step_of_sums, in_shardings=(whole, rows)), ((), (("data",),))),
        (
            lambda whole, rows: lambda s, x: step_of_sums(s, jax.lax.with_sharding_constraint(x, rows)),
            ((("data",), ()), (("data",), ())),
        ),
    ],
    ids=["none", "replicated", "rows", "constraint"],
)
def test_a_step_keeps_the_shardings_that_it_names(wrap, specs):
    """Also if they replicate everything; a constraint places a value inside and leaves the state to the layout."""
    mesh = jax.sharding.AbstractMesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
    whole, rows = (jax.sharding.NamedSharding(mesh, PartitionSpec(*parts)) for parts in ((), ("data",)))
    state = {"w": jax.ShapeDtypeStruct((1024, 1024), "float32")}
    form, _ = split_arguments((WIDE,), None, 8)
    strategy = tpu.connect("v2-8", layout="fsdp")
    program, _ = whole_program("step", wrap(whole, rows), form, state, strategy.layout)
    placed = strategy.place(program)
    assert placed.placement is not None
    assert placed.placement.specs == specs
    _, total = strategy.run_steps(wrap(whole, rows), iter([WIDE] * 2), 2, state={"w": np.zeros((1024, 1024))})
    assert float(total) == 64


def test_a_variable_moves_to_the_layout_of_a_call():
    backend = tpu.connect("twin", cores=2).backend
    variable = keras.Variable(jnp.ones(4))
    split = Layout(None, (("data",),), (("data", 2),))
    (first,) = variables.take(backend, [variable], layouts=[split])
    (again,) = variables.take(backend, [variable], layouts=[split])
    assert again is first
    variables.take(backend, [variable])
    assert np.all(np.asarray(variable.value) == 1)


MOVED = """
import keras, numpy as np
import anytpu as tpu

resolver = tpu.TPUClusterResolver.from_address(tpu.system.Address("local", 8))
whole, split = tpu.TPUStrategy(resolver), tpu.TPUStrategy(resolver, layout="fsdp")
with whole.scope():
    model = keras.Sequential([keras.Input((128,)), keras.layers.Dense(512), keras.layers.Dense(1)])
    model.compile("adam", "mse")
x, y = np.ones((32, 128), "float32"), np.ones((32, 1), "float32")
model.fit(x, y, verbose=0)
before = np.asarray(model.layers[0].kernel.value)
with split.scope():
    model.compile("sgd", "mse")
model.predict(x, verbose=0)
np.testing.assert_array_equal(np.asarray(model.layers[0].kernel.value), before)
assert model.layers[0].kernel.value.addressable_shards[0].data.shape == (128, 64)
print("moved")
"""


def test_variables_move_into_their_shards():
    """As `layout="auto"` needs it: it is chosen after the model is made."""
    environment = _env.forced_devices(8)
    done = subprocess.run([*python(), "-c", MOVED], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["moved"], done.stderr


MADE_IN_SHARDS = """
import jax, keras, numpy as np
import anytpu as tpu
from keras.layers import BatchNormalization, Dense, Embedding

def model_of(layout):
    resolver = tpu.TPUClusterResolver.from_address(tpu.system.Address("local", 8))
    strategy = tpu.TPUStrategy(resolver, layout=layout)
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [keras.Input((128,)), Dense(512), BatchNormalization(), Dense(256, kernel_initializer="he_normal")]
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    return model

whole, split = model_of(None), model_of("fsdp")
for one, other in zip(whole.variables, split.variables, strict=True):
    np.testing.assert_array_equal(np.asarray(one.value), np.asarray(other.value))
kernels = [v for v in [*split.variables, *split.optimizer.variables] if np.prod(v.shape) >= 2**16]
assert len(kernels) == 6, [v.path for v in split.optimizer.variables]
for variable in kernels:
    shards = {shard.data.shape for shard in variable.value.addressable_shards}
    assert [np.prod(shape) for shape in shards] == [np.prod(variable.shape) // 8], (variable.path, shards)
kernel = split.layers[0].kernel
kernel.assign(np.ones(kernel.shape))
assert kernel.value.addressable_shards[0].data.shape == (128, 64)
print("made in shards")
"""


def test_variables_are_made_in_their_shards():
    environment = _env.forced_devices(8)
    done = subprocess.run([*python(), "-c", MADE_IN_SHARDS], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["made in shards"], done.stderr


def test_a_mesh_rematerialises_and_takes_a_layout_that_is_chosen_later():
    """In a process of its own, 9 s: JAX has its number of host devices from its start."""
    child = Path(__file__).with_name("layout_mesh_child.py")
    command, environment = [*python(), str(child)], {**os.environ, **_env.forced_devices(8)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["barriers"] > 0, "nothing is computed again"
    for name in ("remat", "auto"):
        assert found[name]["partition"] == ["model", None]
        assert found[name]["worst"] < 1e-6
