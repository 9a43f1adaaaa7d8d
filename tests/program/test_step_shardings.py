"""Shardings that a step asks for itself are followed, or refused by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Format
from jax.experimental.layout import Layout as MemoryLayout
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program import lower, of
from anytpu.program.program import Placement

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
STATE, BATCH = jax.ShapeDtypeStruct((8, 8), "float32"), jax.ShapeDtypeStruct((16, 8), "float32")
WEIGHTS, ROWS = ((), ("model",)), (("data",),)
TWICE = (
    "The new state takes the memory of the old one, as anytpu runs a step. By jax.jit alone that needs "
    "donate_argnums=0; without it the state takes its memory twice."
)


def named(*parts: Any) -> NamedSharding:
    return NamedSharding(MESH, PartitionSpec(*parts))


def step(state: Any, batch: Any) -> Any:
    return state + (batch @ state).sum(), batch.sum()


def jitted(function: Any = step, **settings: Any) -> Any:
    return jax.jit(function, donate_argnums=0, **settings)


def shards(state: Any, batch: Any) -> Any:
    def one(state: Any, batch: Any) -> Any:
        return state + jax.lax.psum(batch.sum(), ("data", "model")), batch.sum(1)

    inputs, outputs = (
        (PartitionSpec(None, "model"), PartitionSpec("data")),
        (PartitionSpec(None, "model"), PartitionSpec("data")),
    )
    return jax.shard_map(one, mesh=MESH, in_specs=inputs, out_specs=outputs, check_vma=False)(state, batch)


def constrained(state: Any, batch: Any) -> Any:
    state = jax.lax.with_sharding_constraint(state, named(None, "model"))
    return step(state, jax.lax.with_sharding_constraint(batch, named("data")))


ASKED: dict[str, Any] = {"in_shardings": (named(None, "model"), named("data"))}
RETURNED: dict[str, Any] = {"in_shardings": (None, named("data")), "out_shardings": (named(None, "model"), None)}


@pytest.mark.parametrize(
    "job",
    [
        jitted(**ASKED),
        jitted(jitted(**ASKED)),  # inside of another
        lambda state, batch: jitted(**ASKED)(state, batch),
        jitted(**RETURNED),  # from the second step on
        shards,
        jitted(shards),
        constrained,
    ],
)
def test_what_a_step_asks_is_its_placement(job):
    program = of(job, (STATE, BATCH))
    assert program.placement == Placement((("data", 4), ("model", 2)), (WEIGHTS, ROWS))
    assert (program.rows, program.notes) == (16, ())
    assert lower(program, "tpu").nr_devices == 8


def sharded_loss(weights: Any, batch: Any) -> Any:
    def one(weights: Any, batch: Any) -> Any:
        whole = jax.lax.all_gather(weights, "model", axis=1, tiled=True)
        return jax.lax.psum((batch.astype(whole.dtype) @ whole).sum(), ("data", "model"))

    inputs = PartitionSpec(None, "model"), PartitionSpec("data")
    return jax.shard_map(one, mesh=MESH, in_specs=inputs, out_specs=PartitionSpec(), check_vma=False)(weights, batch)


def half(weights: Any) -> Any:
    return weights.astype("bfloat16")


@jax.custom_vjp
def half_by_vjp(weights: Any) -> Any:
    return half(weights)


half_by_vjp.defvjp(lambda weights: (half(weights), None), lambda _, gradient: (gradient.astype("float32"),))


@jax.custom_jvp
def half_by_jvp(weights: Any) -> Any:
    return half(weights)


half_by_jvp.defjvps(lambda tangent, *_: half(tangent))


def named_half(weights: Any) -> Any:
    return checkpoint_name(jax.lax.optimization_barrier(half(weights)), "half")


@pytest.mark.parametrize("cast", [half, half_by_vjp, half_by_jvp, jitted(half), jax.checkpoint(half), named_half])
def test_what_is_asked_after_a_cast(cast):
    def loss(weights: Any, batch: Any) -> Any:
        return sharded_loss(cast(weights), batch).astype("float32")

    def trained(weights: Any, batch: Any) -> Any:
        return weights - jax.grad(loss)(weights, batch), ()

    def checkpointed(weights: Any, batch: Any) -> Any:
        return weights - jax.grad(jax.checkpoint(loss))(weights, batch), ()

    def forward(weights: Any, batch: Any) -> Any:
        return weights, jax.checkpoint(loss)(weights, batch)

    for job in (trained, checkpointed, forward):
        program = of(job, (STATE, BATCH))
        assert (program.placement, program.notes) == (Placement((("data", 4), ("model", 2)), (WEIGHTS, ROWS)), ())


def test_a_result_that_is_cast_after_it_is_laid():
    def returned(state: Any, batch: Any) -> Any:
        new = jax.lax.with_sharding_constraint(half(state) * 2, named(None, "model"))
        return new.astype("float32"), jax.lax.with_sharding_constraint(batch, named("data"))

    assert of(returned, (STATE, BATCH)).placement == Placement((("data", 4), ("model", 2)), (WEIGHTS, ROWS))


def test_a_state_that_the_step_gathers_and_jit_splits():
    def gathered(state: Any, batch: Any) -> Any:
        return step(state, batch @ jax.lax.with_sharding_constraint(half(state), named()).astype("float32"))

    assert (
        of(jitted(gathered, **RETURNED), (STATE, BATCH)).placement
        == of(jitted(gathered, **ASKED), (STATE, BATCH)).placement
    )


def test_a_large_state_that_nobody_lays_is_told():
    def notes(**state: tuple[Any, ...]) -> tuple[str, ...]:
        specs = {
            of: jax.ShapeDtypeStruct(shape, "float32", sharding=named(*parts) if parts else None)
            for of, (shape, *parts) in state.items()
        }
        rows = jax.ShapeDtypeStruct((16, 8), "float32", sharding=named("data"))
        return of(lambda state, batch: (state, batch.sum()), (specs, rows)).notes

    large, small = (1024, 512), (512,)
    assert notes(w=(large,)) == ("'w' (2 MiB) is replicated on 8 devices: no spec says otherwise.",)
    assert notes(a=(small,), b=(large,), w=(large, "model")) == (
        "2 leaves of the state, 2 MiB together, are replicated on 8 devices: no spec says otherwise. The largest is "
        "'b' (2 MiB).",
    )
    assert notes(w=(large, None), b=(small,)) == ()  # Whole, as its spec says.
    assert notes(w=((2**17, 1024), "data"), b=(large,)) == ()  # Under 1 % of the state.


def test_a_step_and_specs_that_ask_the_same():
    specs = jax.ShapeDtypeStruct((8, 8), "float32", sharding=named(None, "model")), BATCH
    assert of(jitted(**ASKED), specs).placement == of(jitted(**ASKED), (STATE, BATCH)).placement


def test_rows_along_the_axis_that_the_step_splits():
    job = jitted(in_shardings=(named(), named(None, "data")))
    program = of(job, (jax.ShapeDtypeStruct((8, 8), "float32"), BATCH), batch_size=8)
    assert (program.rows, program.batch.shape, program.layout.axis) == (8, (16, 8), 1)


def test_a_mesh_that_only_the_inside_of_a_step_names():
    def inner(state: Any, batch: Any) -> Any:
        hidden = jax.lax.with_sharding_constraint(batch @ state, named("data", "model"))
        return state, hidden.sum()

    program = of(inner, (STATE, jax.ShapeDtypeStruct((16, 8), "float32")))
    assert program.placement == Placement((("data", 4), ("model", 2)), ((), (("data", "model"),)))
    assert program.notes == (
        "16 examples a step: axis 0 of the batch, as no sharding or batch_axis says another. The step names a mesh "
        "(data=4, model=2) and does not say how its inputs do: its state is whole on each device, its examples are "
        "split over all axes that divide them. Give the specs shardings to change that.",
    )


def test_a_batch_that_nobody_splits():
    assert of(jitted(in_shardings=(named(None, "model"), None)), (STATE, BATCH)).notes == (
        "16 examples a step: axis 0 of the batch, as no sharding or batch_axis says another.",
        "No leaf of the batch is split over the mesh (data=4, model=2): each device takes all of it. Give its specs a "
        "sharding to split it.",
    )


def test_a_state_that_jit_does_not_donate():
    assert of(jax.jit(step, **ASKED), (STATE, BATCH)).notes == (TWICE,)


@pytest.mark.parametrize("context", [jax.sharding.use_abstract_mesh], ids=["abstract"])
def test_the_mesh_in_force(context):
    def bare(state: Any, batch: Any) -> Any:
        return step(state, jax.lax.with_sharding_constraint(batch, PartitionSpec("data")))

    with context(MESH):
        program = of(bare, (STATE, BATCH))
        whole = of(step, (STATE, BATCH))
    assert program.placement == Placement((("data", 4), ("model", 2)), ((), ROWS))
    assert whole.placement == Placement((("data", 4), ("model", 2)), ((), ()))
    assert lower(program, "tpu").nr_devices == 8


def test_explicit_axes():
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    specs = STATE, jax.ShapeDtypeStruct((16, 8), "float32", sharding=NamedSharding(mesh, PartitionSpec("data")))
    program = of(lambda state, batch: (state, jnp.sin(batch)), specs)
    assert program.placement == Placement((("data", 8),), ((), ROWS), ("data",))
    assert lower(program, "tpu").nr_devices == 8


def error_of(job: Any, *specs: Any) -> str:
    with pytest.raises(ProgramError) as raised:
        of(job, specs or (STATE, BATCH))
    return str(raised.value)


def test_shardings_that_contradict_each_other():
    rows = jax.ShapeDtypeStruct((16, 8), "float32", sharding=named("model"))
    assert error_of(jitted(**ASKED), STATE, rows) == (
        "'batch' of 'step/train' has the sharding P('model',) by its spec, and the step takes it as P('data',) by "
        "jax.jit: JAX refuses to call it. Give both the same sharding."
    )
    returned = jitted(in_shardings=(named(None, "model"), None), out_shardings=(named(), None))
    assert error_of(returned) == (
        "'state' of 'step/train' has the sharding P(None, 'model') by jax.jit, and the step returns it as P() by "
        "jax.jit: JAX refuses to call it. Give both the same sharding."
    )


def test_a_step_for_one_device():
    with pytest.deprecated_call():
        job = jax.jit(step, device=jax.devices()[0])
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="device")
    assert error_of(job) == (
        f"'state' of 'step/train' has the sharding {one!r} by jax.jit; a program is placed on a mesh with named axes: "
        "jax.sharding.NamedSharding(jax.sharding.AbstractMesh((4, 2), ('data', 'model')), "
        "jax.sharding.PartitionSpec('data')). Leave device= and backend= out of jax.jit."
    )


def test_settings_of_jit_that_a_program_does_not_carry():
    assert error_of(jax.jit(step, compiler_options={"xla_cpu_enable_fast_math": "1"})) == (
        "The step of 'step/train' is jitted with compiler_options, which a program does not carry. Give them to "
        "the compilation, anytpu.plan(..., options={...}), and jax.jit none."
    )
    columns = Format(MemoryLayout((1, 0)), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert error_of(jax.jit(step, in_shardings=(columns, None))) == (
        "The step of 'step/train' asks jax.jit for an order of dimensions in memory (a Format with a Layout), which "
        "the TPU compiler chooses. Give in_shardings and out_shardings a NamedSharding alone."
    )


def test_axes_of_no_mesh():
    def bare(state: Any, batch: Any) -> Any:
        return state, jax.lax.with_sharding_constraint(batch, PartitionSpec("data"))

    assert error_of(bare).startswith(
        "The step of 'bare/train' names axes of a mesh, and no mesh is set. Put shardings over the mesh on the specs, "
        "or call this inside `with jax.set_mesh(mesh):`, or `with jax.sharding.use_abstract_mesh(mesh):` for a mesh "
        "without devices. JAX said: with_sharding_constraint requires a non-empty mesh in context"
    )
    assert error_of(jitted(in_shardings=(None, PartitionSpec("data")))) == (
        "The step of 'step/train' gives jax.jit a PartitionSpec, which needs a mesh of devices around each call. Give "
        "it jax.sharding.NamedSharding(mesh, spec) in its place."
    )


def test_devices_that_do_not_divide():
    explicit = NamedSharding(
        AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2), PartitionSpec("data")
    )
    for sharding in (named("data"), explicit):
        assert error_of(step, STATE, jax.ShapeDtypeStruct((10, 8), "float32", sharding=sharding)) == (
            "'batch' of 'step/train' has the shape (10, 8), and its sharding splits axis 0 over 4 devices (data=4), "
            "which do not divide 10. Make it a multiple of 4."
        )
    assert error_of(jitted(**ASKED), STATE, jax.ShapeDtypeStruct((10, 8), "float32")).startswith(
        "The step of 'step/train' asks for a sharding that does not fit: "
    )


def test_what_an_input_cannot_lie_as():
    def given(sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((16, 8), "float32", sharding=sharding)

    explicit = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    for sharding in (
        named(PartitionSpec.UNCONSTRAINED),
        NamedSharding(explicit, PartitionSpec(unreduced=frozenset({"data"}))),
    ):
        assert error_of(step, STATE, given(sharding)) == (
            f"'batch' of 'step/train' has the sharding {sharding.spec} by its spec; an input has for each axis names "
            "of the mesh or None: jax.sharding.PartitionSpec('data', None)."
        )
    assert error_of(step, STATE, given(NamedSharding(MESH, PartitionSpec(), memory_kind="pinned_host"))) == (
        "'batch' of 'step/train' is in the memory 'pinned_host' by its spec, and a program's inputs are in the "
        "memory of its devices. Leave memory_kind out; what a step keeps on the host is not planned."
    )
