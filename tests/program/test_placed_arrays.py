"""Arrays that lie split over real devices, and steps that name a mesh of them: in a process with 8 devices."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from forked import python
from mesh_checks import EIGHT_DEVICES

CHILD = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P
from anytpu.errors import ProgramError
from anytpu.program import lower, of

devices = np.array(jax.devices()).reshape(4, 2)
auto = (AxisType.Auto,) * 2
mesh = Mesh(devices, ("data", "model"), axis_types=auto)
names_only = AbstractMesh((4, 2), ("data", "model"), axis_types=auto)
explicit = Mesh(devices, ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
state, batch = np.zeros((8, 8), "float32"), np.zeros((16, 8), "float32")
shapes = jax.eval_shape(lambda: (jnp.asarray(state), jnp.asarray(batch)))

def step(state, batch):
    return state + (batch @ state).sum(), batch.sum(1)

def shards(state, batch):
    def one(state, batch):
        return state + jax.lax.psum(batch.sum(), ("data", "model")), batch.sum(1)
    return jax.shard_map(
        one, mesh=mesh, in_specs=(P(None, "model"), P("data")), out_specs=(P(None, "model"), P("data")),
        check_vma=False,
    )(state, batch)

def many_shards(state, batch):
    return jax.lax.scan(lambda carry, _: shards(carry, batch), state, length=2)

def bare(state, batch):
    return step(jax.lax.with_sharding_constraint(state, P(None, "model")), batch)

def lies(of_mesh, array, *parts, **settings):
    return jax.device_put(array, NamedSharding(of_mesh, P(*parts), **settings))

def sharded(of_mesh, **settings):
    return lies(of_mesh, state, None, "model", **settings), lies(of_mesh, batch, "data")

def specs(of_mesh):
    shardings = NamedSharding(of_mesh, P(None, "model")), NamedSharding(of_mesh, P("data"))
    return jax.tree.map(lambda one, how: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=how), shapes, shardings)

def found(job, given, context=None):
    try:
        if context is None:
            program = of(job, given)
        else:
            with jax.set_mesh(context):
                program = of(job, given)
        if program.placement is None:
            return None
        return program.placement.axes, program.placement.specs, program.rows, lower(program, "tpu").nr_devices
    except ProgramError as error:
        return str(error)

asked = (NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("data")))
one = jax.make_mesh((1,), ("one",), axis_types=(AxisType.Auto,), devices=jax.devices()[3:4])
print(json.dumps({
    "arrays": found(step, sharded(mesh)),
    "explicit arrays": found(lambda state, batch: (state, batch * 2), sharded(explicit)),
    "jit": found(jax.jit(step, in_shardings=asked), shapes),
    "jit, names only in the specs": found(jax.jit(step, in_shardings=asked), specs(names_only)),
    "shard_map": found(shards, shapes),
    "shard_map, arrays": found(shards, sharded(mesh)),
    "shard_map, names only in the specs": found(shards, specs(names_only)),
    "shard_map in a loop, names only in the specs": found(many_shards, specs(names_only)),
    "set_mesh": found(bare, (shapes[0], specs(names_only)[1]), mesh),
    "set_mesh, explicit": found(lambda state, batch: (state, batch * 2), sharded(explicit), explicit),
    "host memory": found(step, sharded(mesh, memory_kind="pinned_host")),
    "one device": found(step, (jax.device_put(state, jax.devices()[3]), lies(one, batch, "one"))),
    "jit of bare specs": found(jax.jit(step, in_shardings=(P(), P("data"))), shapes, mesh),
}))
"""
PLACED = [[["data", 4], ["model", 2]], [[[], ["model"]], [["data"]]], 16, 8]


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    done = subprocess.run([*python(), "-c", CHILD], env={**os.environ, **EIGHT_DEVICES}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "case",
    [
        "arrays",
        "explicit arrays",
        "jit",
        "jit, names only in the specs",
        "shard_map",
        "shard_map, arrays",
        "shard_map, names only in the specs",
        "shard_map in a loop, names only in the specs",
        "set_mesh",
        "set_mesh, explicit",
    ],
)
def test_what_lies_on_devices_is_placed(found, case):
    assert found[case] == PLACED


def test_where_an_array_happens_to_be(found):
    assert found["one device"] is None


def test_the_memory_of_the_host(found):
    assert found["host memory"] == (
        "'state' of 'step/train' is in the memory 'pinned_host' by its spec, and a program's inputs are in the "
        "memory of its devices. Leave memory_kind out; what a step keeps on the host is not planned."
    )


def test_specs_of_jit_that_the_mesh_in_force_completes(found):
    assert found["jit of bare specs"] == (
        "The step of 'step/train' gives jax.jit a PartitionSpec, which needs a mesh of devices around each call. Give "
        "it jax.sharding.NamedSharding(mesh, spec) in its place."
    )
