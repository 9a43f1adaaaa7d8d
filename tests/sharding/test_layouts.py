"""Layouts as users write them, and what is refused."""

import json

import keras
import pytest
from jax.sharding import PartitionSpec

from anytpu.errors import SettingError
from anytpu.sharding.forms import resolve
from anytpu.sharding.layouts import ModelLayout, split_largest
from anytpu.sharding.searched import searched_layout, to_record

MESH = {"data": 4, "model": 2}


def test_data_leaves_every_weight_whole():
    layout = resolve("data", None, 8)
    assert (layout.axes, layout.row_axes, layout.spec_of("dense/kernel", (512, 2048))) == (
        (("data", 8),),
        ("data",),
        (),
    )


def test_fsdp_splits_the_largest_axis_that_the_cores_divide():
    layout = resolve("fsdp", None, 8)
    assert layout.spec_of("dense/kernel", (512, 2048)) == ((), ("data",))
    assert layout.spec_of("dense/kernel", (513, 2048)) == ((), ("data",))
    assert layout.spec_of("dense/kernel", (2048, 2049)) == (("data",), ())
    assert layout.spec_of("dense/kernel", (2047, 2049)) == ()
    assert layout.spec_of("dense/bias", (2048,)) == ()


@pytest.mark.parametrize(
    ("shape", "cores", "axis"),
    [
        ((3072, 16, 256), 2, 0),
        ((5376, 32, 512), 4, 0),
        ((16, 256, 3072), 2, 2),
        ((8, 512, 8192), 4, 2),
        ((1024, 262144), 8, 1),
        ((262144, 1024), 8, 1),
        ((262144, 512), 8, 0),
        ((8192, 1024), 8, 0),
    ],
)
def test_fsdp_splits_the_features_of_long_matrices_alone(shape: tuple[int, ...], cores: int, axis: int):
    spec = tuple(("data",) if place == axis else () for place in range(len(shape)))
    assert resolve("fsdp", None, cores).spec_of("w", shape) == spec


def test_a_size_of_minus_1_fills_the_devices():
    assert resolve("data", {"data": -1, "model": 2}, 8).axes == (("data", 4), ("model", 2))
    assert resolve("data", {"data": -1, "model": 2}, 32).axes == (("data", 16), ("model", 2))
    layout = resolve("fsdp", {"data": 4, "model": -1}, 8)
    assert resolve(layout, {"data": -1, "model": 2}, 8) is layout


def test_a_second_split_leaves_the_first_alone():
    taken = (("model",), ())
    assert split_largest((2048, 512), ("data",), MESH, taken) == (("model",), ("data",))
    assert split_largest((2048, 3), ("data",), MESH, taken) == taken


def test_rows_lie_over_the_axes_named_for_data_else_over_the_first():
    assert resolve("data", MESH, 8).row_axes == ("data",)
    assert resolve("data", {"replica": 2, "fsdp": 2, "model": 2}, 8).row_axes == ("replica", "fsdp")
    assert resolve("data", {"a": 4, "b": 2}, 8).row_axes == ("a",)


def test_patterns_are_searched_in_names_and_exact_names_come_first():
    layout = resolve({"kernel": PartitionSpec(None, "model"), "head/kernel": ("model",)}, MESH, 8)
    assert layout.spec_of("block/dense/kernel", (4, 4)) == ((), ("model",))
    assert layout.spec_of("head/kernel", (4, 4)) == (("model",),)
    assert layout.spec_of("block/dense/bias", (4,)) is None
    assert str(layout) == "2 patterns over data=4, model=2"
    assert str(resolve({"kernel": ("model",)}, MESH, 8)) == "1 pattern over data=4, model=2"


def test_a_file_is_given_by_its_path(tmp_path):
    specs, shapes = {"w": (("data",),)}, {"w": (8,)}
    layout = searched_layout("split", (("data", 8),), specs, shapes, ("w",), {})
    path = tmp_path / "layouts.json"
    path.write_text(json.dumps({"candidates": [{"layout": to_record(layout)}]}))
    assert str(resolve(path, None, 8)) == str(resolve(str(path), None, 8)) == "split over data=8"


def test_a_function_decides_by_name_and_shape():
    def by_rank(name, shape):
        return PartitionSpec(None, ("data", "model")) if len(shape) == 2 else None

    layout = resolve(by_rank, MESH, 8)
    assert (layout.name, layout.spec_of("w", (8, 8)), layout.spec_of("b", (8,))) == (
        "by_rank",
        ((), ("data", "model")),
        None,
    )


def test_a_function_that_fails_is_named_with_the_weight():
    def last(name, shape):
        return PartitionSpec(*[None] * len(shape[:-1]), "model" if shape[-1] > 8 else None)

    with pytest.raises(SettingError) as error:
        resolve(last, MESH, 8).spec_of("scale", ())
    assert str(error.value) == (
        "the layout function 'last' raised IndexError for the weight 'scale' of shape (): tuple index out of range. "
        "Let it return None for a weight that it does not split"
    )


def test_a_layout_map_is_read_as_keras_reads_it():
    mesh = keras.distribution.DeviceMesh((4, 2), ("batch", "model"), [f"cpu:{i}" for i in range(8)])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts["dense.*kernel"] = (None, "model")
    layouts["dense.*output"] = ("batch", None)
    layouts["dense_2.*"] = ("model", None)
    layout = resolve(layouts, None, 8)
    assert (layout.axes, layout.row_axes, layout.is_literal) == ((("batch", 4), ("model", 2)), ("batch",), True)
    assert layout.spec_of("dense_1/kernel", (4, 4)) == ((), ("model",))
    # Keys are whole paths.
    assert layout.spec_of("net/dense_1/kernel", (4, 4)) == layout.spec_of("dense_1/lora_kernel_a", (4, 2)) is None
    assert layout.patterns == ("dense.*kernel", "dense_2.*")
    assert layout.outputs == ("dense.*output",)
    with pytest.raises(SettingError) as error:
        layout.spec_of("dense_2/kernel", (4, 4))
    assert str(error.value) == (
        "Keras refuses its LayoutMap for 'dense_2/kernel': Path 'dense_2/kernel' matches multiple layout specification "
        "keys: ['dense.*kernel', 'dense_2.*']. Please make sure each tensor/variable path only matches at most one "
        "layout specification key in the LayoutMap."
    )


def test_a_resolved_layout_is_taken_as_it_is():
    layout = resolve("fsdp", MESH, 8)
    assert resolve(layout, None, 8) is layout
    assert repr(layout) == "<ModelLayout: fsdp over data=4, model=2>"


@pytest.mark.parametrize(
    ("layout", "mesh", "message"),
    [
        (
            "fdsp",
            None,
            'layout must be "data", "fsdp", a keras.distribution.LayoutMap, a dictionary {pattern: '
            "PartitionSpec}, a function (name, shape) -> PartitionSpec, a result of tpu.find_layouts or the path of "
            "its JSON file, not 'fdsp'. Did you mean 'fsdp'?",
        ),
        (
            "auto",
            None,
            'the best layout is found by compiling: found = tpu.find_layouts(model, tpu="v5e-8", batch_size=64), then '
            'layout=found. Without a search, "fsdp" needs the least memory of a core and "data" the least exchange',
        ),
        (
            "fsdp",
            {"data": 4},
            "the mesh data=4 has 4 devices, and the system has 8: its sizes must multiply to 8. A size of -1 fills any "
            'system: mesh={"data": -1}',
        ),
        (
            "fsdp",
            {"data": 4.0},
            'mesh must be the sizes of its axes, such as {"data": 4, "model": 2}, at most one of them -1, not '
            "{'data': 4.0}",
        ),
        (
            "fsdp",
            {"data": -1, "model": -1},
            'mesh must be the sizes of its axes, such as {"data": 4, "model": 2}, at most one of them -1, not '
            "{'data': -1, 'model': -1}",
        ),
        (
            "fsdp",
            {"data": -1, "model": 3},
            "the other axes of mesh={'data': -1, 'model': 3} have 3 devices together, which do not divide the 8 of the "
            "system",
        ),
        (
            {"kernel": PartitionSpec("modle")},
            MESH,
            "'kernel' is split over 'modle', and the mesh has the axes 'data', 'model'. Did you mean 'model'?",
        ),
        (
            {"kernel": PartitionSpec("model", "model")},
            MESH,
            "'kernel' is split over 'model' along two axes; a mesh axis splits one axis of an array",
        ),
        ({}, MESH, 'the layout has no pattern; layout="data" leaves every weight whole'),
        (
            {"up/(kernel": PartitionSpec("model")},
            MESH,
            "'up/(kernel' in the layout is no regular expression: missing ), unterminated subpattern at position 3",
        ),
        (
            {"kernel": PartitionSpec("model")},
            None,
            "'kernel' is split over 'model', and the mesh has the axes 'data'. Name the axes: mesh={\"data\": 4, "
            '"model": 2}.',
        ),
        ({"kernel": 3}, MESH, "'kernel' has 3; a partition is written PartitionSpec(None, \"model\")"),
    ],
)
def test_a_layout_that_means_nothing_is_refused(layout, mesh, message):
    with pytest.raises(SettingError) as error:
        resolve(layout, mesh, 8)
    assert str(error.value) == message


def test_two_patterns_that_disagree_are_refused():
    layout = resolve({"kernel": PartitionSpec("model"), "dense": PartitionSpec(None, "model")}, MESH, 8)
    with pytest.raises(SettingError) as error:
        layout.spec_of("dense/kernel", (4, 4))
    assert str(error.value) == (
        "'dense/kernel' matches two patterns of the layout, 'kernel' (('model',)) and 'dense' ((None, 'model')). "
        "Make one of them narrower"
    )


def test_a_layout_map_of_another_number_of_devices_is_refused():
    mesh = keras.distribution.DeviceMesh((4, 2), ("batch", "model"), [f"cpu:{i}" for i in range(8)])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts["kernel"] = (None, "model")
    for layout in (layouts, keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")):
        with pytest.raises(SettingError) as error:
            resolve(layout, None, 4)
        assert str(error.value) == (
            "the mesh batch=4, model=2 has 8 devices, and the system has 4: make a DeviceMesh whose sizes multiply to 4"
        )


def test_a_found_layout_of_another_number_of_devices_is_refused():
    found = searched_layout("fsdp", (("data", 8),), {"w": (("data",),)}, {"w": (64,)}, ("w",), {})
    with pytest.raises(SettingError) as error:
        resolve(found, None, 4)
    assert str(error.value) == (
        "the mesh data=8 has 8 devices, and the system has 4: it was found for that number, so search again on this "
        "system: tpu.find_layouts(model, tpu=..., batch_size=...)"
    )


def test_another_mesh_than_that_of_the_layout_is_refused():
    layout: ModelLayout = resolve("fsdp", MESH, 8)
    with pytest.raises(SettingError) as error:
        resolve(layout, {"data": 8}, 8)
    assert str(error.value) == "the layout has the mesh data=4, model=2: leave mesh={'data': 8} out"
