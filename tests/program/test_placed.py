from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from anytpu.errors import ProgramError
from anytpu.program import lower, of
from anytpu.program.placed import mesh_of, placed_specs, placement_of
from anytpu.program.program import Placement

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def spec(shape: tuple[int, ...], *parts: Any, mesh: AbstractMesh = MESH) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, PartitionSpec(*parts)))


def step(state: Any, batch: Any) -> Any:
    inside = jax.lax.with_sharding_constraint(batch @ state["w"], PartitionSpec("data", "model"))
    return state, jnp.sum(inside)


STATE = {"w": spec((8, 6), None, "model"), "steps": jax.ShapeDtypeStruct((), "int32")}
BATCH = spec((16, 8), ("data", "model"))


def test_shardings_become_the_placement():
    program = of(step, (STATE, BATCH))
    assert program.placement == Placement((("data", 4), ("model", 2)), ((), ((), ("model",)), (("data", "model"),)))
    assert program.placement.devices == 8
    assert program.state["w"].sharding is None
    state, batch = placed_specs(program)
    assert state["w"].sharding == STATE["w"].sharding and batch.sharding == BATCH.sharding
    assert state["steps"].sharding.spec == PartitionSpec()


def test_code_with_a_placement_is_lowered_over_its_mesh():
    exported = lower(of(step, (STATE, BATCH)), "tpu")
    assert exported.nr_devices == 8
    assert "sdy.sharding_constraint" in exported.mlir_module()


def test_explicit_axes_stay_explicit():
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
    found = placement_of("step", spec((8,), "data", mesh=mesh), ())
    assert found is not None and found.explicit == ("data",)
    assert mesh_of(found) == mesh


def test_arrays_and_specs_without_shardings_ask_for_nothing():
    assert placement_of("step", np.zeros(3), jax.ShapeDtypeStruct((4,), "float32")) is None
    assert placement_of("step", jnp.zeros(3), ()) is None


def test_two_meshes():
    other = AbstractMesh((2,), ("replica",), axis_types=(AxisType.Auto,))
    with pytest.raises(ProgramError) as error:
        placement_of("step/train", {"a": spec((8,), "data")}, spec((8,), "replica", mesh=other))
    assert str(error.value) == (
        "The leaves of 'step/train' are on different meshes, {'data': 4, 'model': 2} and {'replica': 2}; a program has "
        "one."
    )


def test_a_sharding_without_axes():
    there = SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ProgramError) as error:
        placement_of("step/train", {"w": jax.ShapeDtypeStruct((8,), "float32", sharding=there)}, ())
    assert str(error.value) == (
        f"'w' of 'step/train' has the sharding {there!r}; a program is placed on a mesh with named axes: "
        "jax.sharding.NamedSharding(jax.sharding.AbstractMesh((4, 2), ('data', 'model')), "
        "jax.sharding.PartitionSpec('data'))."
    )
