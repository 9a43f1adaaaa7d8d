from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu.errors import PlanError
from anytpu.planning.compiler import export
from anytpu.planning.compiler.request import request_of
from anytpu.planning.records.target import target_named
from anytpu.program import Program, of, program_digest
from anytpu.program.placed import tpu_kind
from compiler_samples import SQUARE, program_of, train
from program_samples import per_replica

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def placed(shape: tuple[int, ...], *spec: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(MESH, PartitionSpec(*spec)))


def test_rows_are_split_and_the_state_is_whole():
    request = request_of(program_of(train), target_named("v3-8"), {"option": "1"})
    assert request.header() == {
        "topology": ("v3:2x2", {"chips_per_host_bounds": (2, 2, 1)}),
        "axes": (("replica", 8),),
        "ordered": False,
        "arguments": (((64, 64), ()), ((64, 64), (("replica",),))),
        "results": ((), (), (("replica",),)),
        "donated": 1,
        "options": {"option": "1"},
        "wide": False,
        "stage": "code",
        "explicit": (),
    }
    assert json.loads(json.dumps(request.header()))["axes"] == [["replica", 8]]


def test_a_batch_that_the_devices_do_not_divide_travels_padded():
    program = program_of(train, batch=jax.ShapeDtypeStruct((60, 64), "float32"))
    request = request_of(program, target_named("v3-8"), {})
    assert request.arguments[1] == ((64, 64), (("replica",),))
    assert request.results == ((), (), ())


def test_results_are_split_along_the_axis_of_the_examples():
    wide = jax.ShapeDtypeStruct((3, 64), "float32")
    program = of(lambda state, batch: (state, (batch * 2, batch.sum(1), batch.sum(0))), ((), wide), batch_axis=1)
    request = request_of(program, target_named("v3-8"), {})
    assert request.arguments == (((3, 64), ((), ("replica",))),)
    assert request.results == (((), ("replica",)), (), (("replica",),))


def test_whole_batch_code_is_exported_once_for_all_targets():
    program = program_of(train)
    first, second = (request_of(program, target_named(name), {}).code for name in ("v3-8", "v5e-4"))
    assert first is second


def test_a_program_that_is_gone_takes_its_code_along():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="relu")])
    model.compile("adam", "mse")
    gc.collect()
    before = len(export._KEPT), len(program_digest._DIGESTS)
    program = of(model, batch_size=8)
    code = weakref.ref(request_of(program, target_named("v3-8"), {}).code)
    program_digest.program_digest(program)
    assert (len(export._KEPT), len(program_digest._DIGESTS)) == (before[0] + 1, before[1] + 1)
    gone = [code, weakref.ref(program), weakref.ref(model)]
    del program, model
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
    assert (len(export._KEPT), len(program_digest._DIGESTS)) == before


def test_weights_do_not_travel():
    weights = np.zeros((64, 1000), "float32")
    program = of(lambda state, batch: (state, batch @ state), (weights, SQUARE), tensors=True)
    assert len(request_of(program, target_named("v3-8"), {}).code.content) < weights.nbytes / 20


def test_per_replica_code_is_exported_over_its_devices():
    request = request_of(per_replica(4).program, target_named("v4-8"), {})
    assert request.axes == (("replica", 4),)
    assert jax.export.deserialize(bytearray(request.code.content)).nr_devices == 4


def test_per_replica_code_for_another_number_of_devices():
    with pytest.raises(PlanError) as error:
        request_of(per_replica(4).program, target_named("v3-8"), {})
    assert str(error.value) == (
        "The program 'replica/train' is written for 4 replicas, and v3-8 has 8. Make it again for that many: its step "
        'under tpu.connect("virtual", cores=8).'
    )


def repeated(state: Any, batch: Any) -> Any:
    """Copy `(2, 256, 128)` to `(8, 256, 128)`: four heads in turn read one block, by a floor division."""

    def copy(source: Any, target: Any) -> None:
        target[...] = source[...]

    block = (1, 256, 128)
    return state, pl.pallas_call(
        copy,
        grid=(8,),
        in_specs=[pl.BlockSpec(block, lambda head: (head // 4, 0, 0))],
        out_specs=pl.BlockSpec(block, lambda head: (head, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 256, 128), jnp.float32),
    )(batch)


def test_a_kernel_is_lowered_for_the_chip_that_is_asked_for():
    program = of(repeated, (np.float32(0), np.zeros((2, 256, 128), "float32")))
    codes = [request_of(program, target_named(name), {}).code for name in ("v5e-1", "v6e-1", "v5e-1")]
    assert codes[0] is codes[2] and codes[0] is not codes[1]
    assert all(jax.export.deserialize(bytearray(code.content)).nr_devices == 1 for code in codes)


def spread_kernel(mesh: AbstractMesh) -> Program:
    """Return `repeated` as the body of a `shard_map` over four devices."""
    body = jax.shard_map(
        lambda batch: repeated(None, batch)[1],
        mesh=mesh,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec("data"),
        check_vma=False,
    )
    spec = jax.ShapeDtypeStruct((8, 256, 128), "float32", sharding=NamedSharding(mesh, PartitionSpec("data")))
    return of(lambda state, batch: (state, body(batch)), (np.float32(0), spec))


def test_a_kernel_on_a_mesh_is_lowered_for_the_device_that_the_mesh_names():
    with pytest.raises(PlanError) as caught:
        request_of(spread_kernel(AbstractMesh((4,), ("data",))), target_named("v5e-4"), {})
    assert str(caught.value) == (
        "A Pallas kernel of '<lambda>/train' has an operation that is lowered for one kind of TPU, and the mesh of the "
        "step does not name it. Give it one: AbstractMesh(sizes, names, abstract_device=jax.sharding.AbstractDevice("
        '"TPU v5 lite", 1, "tpu")).'
    )
    mesh = AbstractMesh((4,), ("data",), abstract_device=tpu_kind("TPU v5 lite", 1))
    code = request_of(spread_kernel(mesh), target_named("v5e-4"), {}).code
    assert jax.export.deserialize(bytearray(code.content)).nr_devices == 4


def sharded(state: Any, batch: Any) -> Any:
    hidden = jax.lax.with_sharding_constraint(batch @ state, PartitionSpec("data", "model"))
    return state, jnp.sum(hidden)


def sharded_program() -> Program:
    return of(sharded, (placed((64, 32), None, "model"), placed((16, 64), "data")))


def test_code_with_a_placement_lies_as_it_says():
    request = request_of(sharded_program(), target_named("v3-8"), {})
    assert (request.axes, request.ordered) == ((("data", 4), ("model", 2)), True)
    assert request.arguments == (((64, 32), ((), ("model",))), ((16, 64), (("data",),)))
    assert request.results == (((), ("model",)), None)
    assert jax.export.deserialize(bytearray(request.code.content)).nr_devices == 8


def test_code_with_a_placement_on_another_number_of_devices():
    with pytest.raises(PlanError) as error:
        request_of(sharded_program(), target_named("v5e-16"), {})
    assert str(error.value) == (
        "The program 'sharded/train' is placed on a mesh of 8 devices (data=4, model=2), and v5e-16 has 16. Make it "
        "again over a jax.sharding.AbstractMesh whose sizes multiply to 16, or plan a function devices -> (step, "
        "input_specs), which makes it for each system."
    )
