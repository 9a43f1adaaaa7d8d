"""`Program` and `spec_of`, and the names of leaves."""

from __future__ import annotations

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.program import REPLICATED, ROWS, Layout, Program, spec_of
from anytpu.program.program import leaf_names, leaf_text, state_names
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


Pair = collections.namedtuple("Pair", ["first", "second"])


def test_names_are_paths():
    tree = {"dense": {"kernel": 1, "bias": 2}, "list": [3, (4, None)], "pair": Pair(5, 6)}
    assert leaf_names(tree, "state") == (
        "dense/bias",
        "dense/kernel",
        "list/0",
        "list/1/0",
        "pair/first",
        "pair/second",
    )


def test_a_bare_leaf_has_the_name_of_its_root():
    assert leaf_names(1.0, "batch") == ("batch",)
    assert leaf_names({}, "batch") == ()


def test_leaf_text():
    assert leaf_text(np.zeros((784, 128), "float32")) == "float32[784,128]"
    assert leaf_text(jax.ShapeDtypeStruct((), "bfloat16")) == "bfloat16[]"
    assert leaf_text(jax.random.key(0)) == "key<fry>[]"


def test_a_program_may_name_its_states():
    spec = jax.ShapeDtypeStruct((), "float32")
    program = Program("p", lambda state, batch: (state, {}), {"a": spec}, (), ())
    assert state_names(program) == ("a",)
    named = Program("p", lambda state, batch: (state, {}), {"a": spec}, (), (), state_names=("dense/kernel",))
    assert state_names(named) == ("dense/kernel",)
