"""A job as Programs of any batch, precision and number of devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from anytpu.errors import ProgramError
from anytpu.planning.job import Job, batch_rows, for_devices, weights_of
from anytpu.program import REPLICATED, ROWS, Program

spec = jax.ShapeDtypeStruct


def step(state, batch):
    return state + batch.mean(), batch.sum()


def test_a_function_is_made_for_any_batch_once():
    job = Job(step, (jnp.zeros(()), spec((8, 3), "float32")))
    assert (job.has_batches, job.is_model) == (True, False)
    assert job.program(32).rows == 32
    assert job.program(32) is job.program(32)
    assert job.program().rows == 8


def test_a_program_has_one_batch():
    program = Program("sum", step, spec((), "float32"), spec((8, 3), "float32"), ROWS)
    job = Job(program)
    assert (job.has_batches, job.program()) == (False, program)
    with pytest.raises(ProgramError):
        job.program(16)
    assert not Job("step.anytpu").has_batches


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
