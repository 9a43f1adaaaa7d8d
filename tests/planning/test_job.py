"""A job as Programs of any batch, precision and number of devices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

from anytpu.errors import ProgramError
from anytpu.planning.jobs.job import PlanJob, batch_parts, batch_rows, for_devices, jobs_of, weights_of
from anytpu.program import REPLICATED, ROWS, Program

spec = jax.ShapeDtypeStruct


def step(state, batch):
    return state + batch.mean(), batch.sum()


def test_a_function_is_made_for_any_batch_once():
    job = PlanJob(step, (jnp.zeros(()), spec((8, 3), "float32")))
    assert (job.has_batches, job.is_model) == (True, False)
    assert job.program(32).rows == 32
    assert job.program(32) is job.program(32)
    assert job.program().rows == 8


def test_a_program_has_one_batch():
    program = Program("sum", step, spec((), "float32"), spec((8, 3), "float32"), ROWS)
    job = PlanJob(program)
    assert (job.has_batches, job.program()) == (False, program)
    with pytest.raises(ProgramError):
        job.program(16)
    assert not PlanJob("step.anytpu").has_batches


def test_a_layout_beside_shardings_of_the_specs_is_refused():
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    specs = (spec((8,), "float32"), spec((8, 3), "float32", sharding=rows))
    job = jobs_of(PlanJob(step, specs), "fsdp")(8)
    with pytest.raises(ProgramError) as error:
        job.program()
    assert str(error.value) == (
        "'step/train' has shardings of its own, and the layout 'fsdp' would replace them. Leave the shardings out of "
        "its specs and its step, or leave the layout out."
    )


def test_per_replica_code_keeps_its_global_batch():
    batch = (spec((8, 16, 3), "float32"), spec((8,), "float32"), spec((5,), "float32"))
    program = Program("sum", step, (), batch, (ROWS, ROWS, REPLICATED), replicas=8)
    fewer = for_devices(program, 4)
    assert [leaf.shape for leaf in fewer.batch] == [(4, 32, 3), (4,), (5,)]
    assert (fewer.replicas, batch_rows(program), batch_rows(fewer)) == (4, 128, 128)
    assert batch_rows(for_devices(program, 3)) == 129
    assert for_devices(program, 8) is program


def test_whole_batch_code_is_the_same_everywhere():
    program = Program("sum", step, (), spec((8, 3), "float32"), ROWS)
    assert for_devices(program, 4) is program
    assert batch_rows(program) == 8


def test_the_names_of_weights():
    program = Program(
        "sum", step, [spec((3, 4), "float32")], spec((8,), "float32"), ROWS, state_names=("dense/kernel",)
    )
    assert weights_of(program) == {"dense/kernel": (3, 4)}


def test_examples_along_the_axis_that_the_user_names():
    job = PlanJob(lambda state, batch: (state, batch), ((), spec((3, 8), "float32")), batch_axis=1)
    assert (batch_rows(job.program()), job.program(16).batch.shape) == (8, (3, 16))


def over(devices):
    """A step over a mesh of so many devices, and its specs."""
    mesh = jax.sharding.AbstractMesh((devices,), ("data",))
    lies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return step, (jnp.zeros(()), jax.ShapeDtypeStruct((4 * devices,), "float32", sharding=lies))


@pytest.mark.parametrize("source", [over, functools.partial(over), lambda devices, unused=None: over(devices)])
def test_a_function_of_the_devices_makes_a_job_for_each_number(source):
    jobs = jobs_of(PlanJob(source))
    programs = [jobs(devices).program() for devices in (8, 16)]
    assert [program.placement.devices for program in programs] == [8, 16]
    assert [program.rows for program in programs] == [32, 64]
    assert jobs(8) is jobs(8)
    assert jobs(8).program(128).rows == 128


def test_a_function_of_the_devices_may_leave_the_specs_to_the_caller():
    jobs = jobs_of(PlanJob(lambda devices: step, over(8)[1]))
    assert jobs(4).program().rows == 32


def test_other_jobs_are_the_same_for_any_number():
    for source, specs in ((step, over(8)[1]), (lambda state, batch=None: (state, ()), over(8)[1]), ("net.mlir", None)):
        jobs = jobs_of(PlanJob(source, specs))
        assert jobs(8) is jobs(16)
        assert jobs(8).source is source


def test_a_function_that_makes_no_job():
    def predict(x):
        return 2 * x

    with pytest.raises(ProgramError) as raised:
        jobs_of(PlanJob(predict))(8)
    assert str(raised.value) == (
        "predict(8) returned 16, of which no Program can be made. A function of one argument is called with the number "
        "of devices, and returns a job or a pair (job, input_specs). A step takes two, step(state, batch), and comes "
        "with input_specs."
    )


def test_an_error_of_such_a_function_says_who_called_it():
    def predict(x):
        return x.shape

    with pytest.raises(AttributeError) as raised:
        jobs_of(PlanJob(predict))(8)
    assert raised.value.__notes__ == ["predict(8) was called to make the job for 8 devices."]


def test_a_step_without_a_state_is_taken_for_such_a_function_and_told_so():
    def predict(batch):
        return batch.mean()

    with pytest.raises(ProgramError) as failed:
        jobs_of(PlanJob(predict, ((), jax.ShapeDtypeStruct((8, 3), "float32"))))(4)
    assert str(failed.value) == (
        "predict(4) raised AttributeError: 'int' object has no attribute 'mean'. A function of one argument is called "
        "with the number of devices, to make the job for them. A step takes two arguments, step(state, batch), also "
        "where it has no state, and comes with input_specs of both."
    )


@pytest.mark.parametrize(
    ("parts", "batch_axis", "count"),
    [(("data",), None, 4), ((("data", "model"),), None, 8), ((None, "model"), None, 1), ((None, "data"), None, 4),
     ((), None, 1), (("data",), 1, 1)],
)  # fmt: skip
def test_the_parts_in_which_examples_lie(parts, batch_axis, count):
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    lies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts))
    batch = jax.ShapeDtypeStruct((8, 16), "float32", sharding=lies)
    program = PlanJob(lambda state, batch: (state, ()), ((), batch), batch_axis=batch_axis).program()
    assert batch_parts(program, 8) == count
    assert batch_parts(Program("sum", step, (), spec((8, 3), "float32"), ROWS), 8) == 8
