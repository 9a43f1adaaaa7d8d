"""`Program` and `spec_of`: the record itself."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.program import REPLICATED, ROWS, Layout, Program, spec_of
from program_samples import linear, per_replica


def test_rows():
    assert linear().program.rows == 8
    assert per_replica(4).program.rows is None
    nothing_split = Program("p", lambda s, b: (s, b), (), jax.ShapeDtypeStruct((8,), "float32"), REPLICATED)
    assert nothing_split.rows is None


def test_leaves_with_their_layouts():
    program = per_replica(4).program
    rows, scale = program.batch
    assert program.leaves() == [(rows, ROWS), (scale, REPLICATED)]
    assert (Layout(0), Layout(None)) == (ROWS, REPLICATED)


def test_specs_are_those_that_jax_computes_with():
    tree = {"x": np.zeros((2, 3)), "n": 3, "half": jnp.ones(2, "bfloat16"), "key": jax.random.key(0), "none": None}
    assert spec_of(tree) == {
        "x": jax.ShapeDtypeStruct((2, 3), "float32"),
        "n": jax.ShapeDtypeStruct((), "int32"),
        "half": jax.ShapeDtypeStruct((2,), "bfloat16"),
        "key": jax.ShapeDtypeStruct((), jax.random.key(0).dtype),
        "none": None,
    }


def test_specs_of_specs_are_bare():
    given = jax.ShapeDtypeStruct((2,), "float32", weak_type=True, sharding=jnp.ones(2).sharding)
    assert spec_of(given) == jax.ShapeDtypeStruct((2,), "float32")


def test_tensors_do_not_count_when_programs_are_compared():
    program = linear().program
    assert dataclasses.replace(program, tensors={"w": np.ones(3), "steps": 0}) == program
