"""The search for layouts, with the real TPU compiler: one small network."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError, SettingError
from anytpu.planning.records.target import target_named
from anytpu.planning.shardings import find_layouts
from anytpu.program.placed import axes_text
from anytpu.sharding import resolve


def network():
    """Return a network whose weights are large beside its batch, under the name that its layouts have."""
    layers = [keras.layers.Dense(2048, "relu", name="up"), keras.layers.Dense(512, name="down")]
    model = keras.Sequential([keras.Input((512,)), *layers], name="net")
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    return model


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def found(said):
    return tpu.find_layouts(network(), tpu="v5e-8", batch_size=256, compile=2, progress=said.append)


def test_compiled_layouts_come_first_and_the_fastest_of_them_is_best(found):
    compiled = [sharding for sharding in found if sharding.prediction is not None]
    assert [sharding.prediction is not None for sharding in found] == [True] * 2 + [False] * (len(found) - 2)
    assert found.best.step_s == min(sharding.step_s for sharding in compiled)
    assert found.layout is found.best.layout


def test_data_parallelism_is_always_compiled(found):
    assert "data" in [sharding.layout.name for sharding in found if sharding.prediction]


def test_a_file_of_layouts_is_a_layout(found, tmp_path):
    path = found.to_json(tmp_path / "layouts.json")
    read = resolve(str(path), None, 8)
    assert (read.axes, read.specs, read.patterns) == (found.layout.axes, found.layout.specs, found.layout.patterns)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(SettingError) as error:
        resolve(str(tmp_path / "other.json"), None, 8)
    assert str(error.value) == (
        f"'{tmp_path / 'other.json'}' is no file of layouts: write one with anytpu shard --json, or found.to_json(path)"
    )
    with pytest.raises(SettingError) as error:
        resolve("none.json", None, 8)
    assert str(error.value) == "the layout 'none.json' cannot be read: No such file or directory"


def test_a_model_made_again_trains_in_the_layout(found):
    strategy = tpu.connect("v2-8", layout=found)
    with strategy.scope():
        layers = [keras.layers.Dense(2048, "relu", name="first"), keras.layers.Dense(512, name="second")]
        model = keras.Sequential([keras.Input((512,)), *layers], name="again")
        model.compile("adam", "mse")
    x = np.ones((256, 512), "float32")
    first, *_, last = model.fit(x, x, batch_size=256, epochs=3, verbose=0).history["loss"]
    assert last < first


def test_the_others_have_a_reason(found):
    assert {sharding.reason for sharding in found.candidates[2:]} == {
        "not compiled, because others have a shorter estimate."
    }


def test_progress_names_the_first_estimate_and_each_compiled_layout(found, said):
    assert said[0].startswith(f"{len(found)} layouts on v5e-8; by FLOPs and bytes the first is ")
    assert [line.rpartition(" a step")[2] for line in said[1:]] == [" by its schedule", " by its schedule", ""]


def test_only_the_best_is_compiled_to_machine_code_and_the_others_are_calibrated_by_it(found):
    best, other, *others = found
    assert [best.stage, other.stage, *{sharding.stage for sharding in others}] == ["code", "schedule", ""]
    assert re.fullmatch(
        r"Priced by its schedule, times \d\.\d\d: so much longer the best layout takes with machine code\.",
        other.prediction.notes[-1],
    )
    low_s, high_s = other.prediction.interval_s
    assert low_s < other.step_s < high_s
    assert high_s / low_s > best.prediction.interval_s[1] / best.prediction.interval_s[0]
    assert other.prediction.cost.usd_per_step / best.prediction.cost.usd_per_step == pytest.approx(
        other.step_s / best.step_s
    )


def test_a_plan_of_the_best_layout_is_its_prediction(found):
    planned = tpu.plan(network(), 256, "v5e-8", layout=found)
    assert planned["v5e-8"].step_s == found.best.step_s


def test_jax_gets_a_sharding_for_each_array(found):
    shardings = found.shardings()
    up = shardings["net/up/kernel"]
    assert dict(up.mesh.shape) == dict(found.layout.axes)
    assert shardings["adam/net_up_kernel_momentum"].spec == up.spec


def test_jax_puts_arrays_on_a_mesh_of_devices(found):
    one = dataclasses.replace(found.layout, axes=(("data", 1),), specs={"w": (("data",),)})
    of_one = dataclasses.replace(found, candidates=(dataclasses.replace(found.best, layout=one),))
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    assert jax.device_put(jnp.ones(8), of_one.shardings(mesh)["w"]).sharding.mesh == mesh
    with pytest.raises(SettingError) as error:
        found.shardings(mesh)
    assert str(error.value) == (
        f"the layout is over the mesh {axes_text(found.layout.axes)}, not over data=1: make it with "
        f"jax.make_mesh({tuple(size for _, size in found.layout.axes)}, {tuple(name for name, _ in found.layout.axes)})"
    )
    with pytest.raises(SettingError) as error:
        found.shardings(8)
    assert str(error.value) == "mesh must be a jax.sharding.Mesh, not int"


def test_keras_gets_a_layout_map(found):
    axes = dict(found.layout.axes)
    devices = [f"cpu:{index}" for index in range(8)]
    mesh = keras.distribution.DeviceMesh(tuple(axes.values()), list(axes), devices)
    mapping = found.layout_map(mesh)
    for name in found.layout.patterns:
        assert len(mapping[name].axes) == len(found.layout.specs[name])
    assert mapping[f"other/{found.layout.patterns[0]}"] is None
    assert (
        resolve(mapping, None, 8).spec_of(found.layout.patterns[0], ()) == found.layout.specs[found.layout.patterns[0]]
    )
    with pytest.raises(SettingError) as error:
        found.layout_map()
    assert str(error.value) == (
        f"the layout is for 8 devices, and this machine has {len(jax.devices())}. Call layout_map() there, or pass a "
        "keras.distribution.DeviceMesh"
    )


def test_the_file_has_every_layout(found, tmp_path):
    record = json.loads(found.to_json(tmp_path / "layouts.json").read_text())
    assert [candidate["layout"]["name"] for candidate in record["candidates"]] == [
        sharding.layout.name for sharding in found
    ]
    assert record["candidates"][0]["prediction"]["step_s"] == found.best.step_s


def test_repr_is_two_lines(found):
    assert repr(found).startswith(f"<Shardings of net/train: {found.best.layout.name} (")
    assert repr(found).endswith(f"2 of {len(found)} layouts compiled.\nfound.show() prints them.>")


def test_layouts_that_cannot_fit_are_not_compiled_and_the_missing_memory_is_named():
    def step(weights, x):
        return weights, (x @ weights["a"] @ weights["b"]).sum()

    shape = jax.ShapeDtypeStruct((131072, 65536), "float32")
    specs = (
        {"a": shape, "b": jax.ShapeDtypeStruct((65536, 131072), "float32")},
        jax.ShapeDtypeStruct((8, 131072), "float32"),
    )
    found = find_layouts(step, "v5e-1", input_specs=specs, mode="infer")
    reason = "it needs at least 64 GiB a device, and v5e-1 has 15.7 GiB: 48.3 GiB are missing."
    assert [sharding.reason for sharding in found] == [reason]
    with pytest.raises(SettingError) as error:
        _ = found.best
    assert str(error.value) == (
        f"no layout of step/infer fits. Of the layouts on v5e-1, data (data=1) needs the least memory: {reason} "
        "The smallest slice that holds its state and batch is v7x-2."
    )


def test_the_cost_can_order_the_layouts(found):
    assert find_layouts(network(), "v5e-8", 256, compile=2, rank="cost").best.layout.name == found.best.layout.name


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"rank": "speed"}, SettingError, "rank must be 'time' or 'cost', not 'speed'"),
        ({"compile": 0}, SettingError, "compile must be a positive integer, not 0"),
        (
            {"tpu": []},
            SettingError,
            'tpu must name at least one system, such as "v3-8" or ["v2-8", "v3-8"], not []',
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, error, message):
    with pytest.raises(error) as caught:
        find_layouts(network(), **{"tpu": "v5e-8", "batch_size": 256, **settings})
    assert str(caught.value) == message


def test_a_step_with_shardings_of_its_own_is_refused():
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    specs = jnp.zeros(4), jax.ShapeDtypeStruct((8, 4), "float32", sharding=rows)
    with pytest.raises(ProgramError) as error:
        find_layouts(lambda state, batch: (state, batch.sum()), "v5e-8", input_specs=specs)
    assert str(error.value) == (
        "'<lambda>/train' has shardings of its own, so there is nothing to find. Leave the shardings out of its specs "
        "and its step, or plan it as it is: anytpu.plan"
    )


def test_shard_is_the_former_name():
    with pytest.warns(FutureWarning) as warned, pytest.raises(SettingError):
        tpu.shard(network(), tpu="v5e-8", batch_size=0)
    assert str(warned[0].message) == (
        "tpu.shard(model, tpu=...) is now tpu.find_layouts(model, tpu=...), with the same arguments; the next version "
        "has only the new name"
    )
    assert warned[0].filename == __file__
    with pytest.raises(TypeError) as error:
        tpu.shard(network(), batch_size=64)
    assert str(error.value) == (
        "shard() has no argument 'batch_size'; its arguments are computation, inputs, num_shards, input_shard_axes, "
        "outputs_from_all_shards, output_shard_axes, tpu"
    )


def test_the_system_of_a_layout_is_the_slice_that_was_named(found):
    assert {sharding.target for sharding in found} == {target_named("v5e-8")}
