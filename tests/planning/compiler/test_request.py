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
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu.errors import PlanError
from anytpu.planning import identity
from anytpu.planning.compiler import export
from anytpu.planning.compiler.request import request_of
from anytpu.planning.target import target_named
from anytpu.program import Program, of
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
    before = len(export._KEPT), len(identity._KEPT)
    program = of(model, batch_size=8)
    code = weakref.ref(request_of(program, target_named("v3-8"), {}).code)
    identity.digest(program)
    assert (len(export._KEPT), len(identity._KEPT)) == (before[0] + 1, before[1] + 1)
    gone = [code, weakref.ref(program), weakref.ref(model)]
    del program, model
    gc.collect()
    assert [one() for one in gone] == [None, None, None]
    assert (len(export._KEPT), len(identity._KEPT)) == before


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
