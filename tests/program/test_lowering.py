"""`one_device_step` and `lower`: the form of a Program that any one device runs, and its StableHLO."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import ProgramError, ReplicaError, SettingError
from anytpu.program import REPLICA_AXIS, ROWS, Program, lower, read, write
from anytpu.program.lowering import PLATFORMS, one_device_step
from program_samples import SAMPLES, assert_same_bits, linear, per_replica, without_batch

F32 = jax.ShapeDtypeStruct((), "float32")
PAIRS = jax.ShapeDtypeStruct((4, 2), "float32")


def replica_program(step, state=F32) -> Program:
    return Program("step/train", step, state, PAIRS, ROWS, replicas=4)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", SAMPLES)
def test_every_program_lowers_for_every_platform(name: str, platform: str):
    assert lower(SAMPLES[name]().program, platform).platforms == (platform,)


@pytest.mark.parametrize("name", SAMPLES)
def test_lowered_is_flat_and_runs_the_same(name: str):
    sample = SAMPLES[name]()
    expected = jax.jit(one_device_step(sample.program))(sample.state, sample.batch)
    exported = lower(sample.program)
    flat = exported.call(*jax.tree.leaves((sample.state, sample.batch)))
    assert exported.platforms == ("cpu",)
    assert isinstance(flat, tuple)
    assert_same_bits(flat, expected)


def test_lower_for_several_platforms():
    assert lower(linear().program, "cpu", "tpu").platforms == ("cpu", "tpu")


def test_whole_batch_step_is_the_step_itself():
    program = linear().program
    assert one_device_step(program) is program.step


def test_per_replica_step_on_stacked_arrays():
    sample = per_replica(4)
    state, outputs = one_device_step(sample.program)(sample.state, sample.batch)
    assert state["sum"].shape == ()
    np.testing.assert_allclose(state["sum"], 1 + sample.batch[0].sum() * 0.5, rtol=1e-6)
    np.testing.assert_allclose(outputs["mine"], sample.batch[0].sum(axis=(1, 2)), rtol=1e-6)
    assert outputs["index"].tolist() == [0, 1, 2, 3]


def test_per_replica_step_without_a_batch():
    state, outputs = one_device_step(without_batch().program)(jnp.int32(0), ())
    assert int(state) == 3
    assert outputs.tolist() == [0, 1, 2]


def test_unknown_platform():
    with pytest.raises(SettingError) as caught:
        lower(linear().program, "gpu")
    assert str(caught.value) == "A platform must be 'cpu', 'cuda' (for a GPU) or 'tpu', not 'gpu'."


def test_state_that_differs_between_replicas_is_named():
    def step(state, batch):
        mean = jax.lax.pmean(batch.sum(), REPLICA_AXIS)
        return {"same": state["same"] + mean, "layer": {"bias": batch.sum()}}, {}

    program = replica_program(step, {"same": F32, "layer": {"bias": F32}})
    with pytest.raises(ReplicaError) as caught:
        jax.eval_shape(one_device_step(program), program.state, program.batch)
    assert str(caught.value) == (
        "The step of 'step/train' returns a state that differs between its 4 replicas: 'layer/bias'. State is the same "
        "on every core: sum it with jax.lax.psum or average it with jax.lax.pmean, over the axis 'replica', or return "
        "it with the outputs, of which each replica has its own. Gradients of one replica alone are reduced before "
        'they are used: tpu.get_replica_context().all_reduce("MEAN", gradients).'
    )
    with pytest.raises(ReplicaError, match="'layer/bias'"):
        lower(program)


def test_many_states_that_differ():
    def step(state, batch):
        return [leaf + batch[0] for leaf in state], {}

    program = replica_program(step, [F32] * 5)
    with pytest.raises(ReplicaError) as caught:
        lower(program)
    assert "between its 4 replicas: '0' and '1' and '2' and 2 more. State" in str(caught.value)


def test_the_program_names_its_states():
    program = Program(
        "step/train", lambda state, batch: (batch[0], {}), F32, PAIRS, ROWS, replicas=4, state_names=("dense/kernel",)
    )
    with pytest.raises(ReplicaError, match="4 replicas: 'dense/kernel'"):
        lower(program)


def test_an_error_of_the_step_is_its_own():
    def step(state, batch):
        raise ValueError("out of cheese")

    with pytest.raises(ValueError, match=r"^out of cheese"):
        one_device_step(replica_program(step))(jnp.float32(0), jnp.ones((4, 2)))


def test_a_vmap_of_the_users_own_that_fails_is_not_taken_for_ours():
    def step(state, batch):
        return state, jax.vmap(lambda x: x, out_axes=None)(batch)

    with pytest.raises(ValueError, match=r"^at vmap out_axes, got axis spec None"):
        one_device_step(replica_program(step))(jnp.float32(0), jnp.ones((4, 2)))


@pytest.mark.parametrize("replicas", [None, 4])
def test_not_a_pair(replicas: int | None):
    program = Program("step/train", lambda state, batch: state, F32, PAIRS, ROWS, replicas=replicas)
    with pytest.raises(ProgramError) as caught:
        lower(program)
    assert str(caught.value) == (
        "The step of 'step/train' must return a pair (state, outputs), not an array. "
        "Where there is nothing to report, return (state, {})."
    )


def test_another_state_in_per_replica_code():
    program = replica_program(lambda state, batch: (state.astype("int32"), {}))
    with pytest.raises(ProgramError, match="'state' was given as float32\\[\\] and returned as int32\\[\\]"):
        lower(program)


def test_what_the_exporter_refuses(tmp_path):
    write(linear().program, tmp_path / "cpu.anytpu")
    with pytest.raises(ProgramError) as caught:
        lower(read(tmp_path / "cpu.anytpu"), "tpu")
    assert str(caught.value).startswith("The program '_linear/train' cannot be lowered for tpu: ")
    assert "'cpu'" in str(caught.value)


def test_a_trace_of_somebody_elses_is_not_used_again():
    """A backend may trace the same function under a switch that jit's cache does not see."""
    switch = {"on": True}

    def step(state, batch):
        return (state + 1 if switch["on"] else state - 1), {}

    program = Program("step/train", step, F32, PAIRS, ROWS)
    jax.jit(step)(jnp.float32(0), jnp.ones((4, 2)))
    switch["on"] = False
    assert float(lower(program).call(jnp.float32(0), jnp.ones((4, 2)))[0]) == -1
