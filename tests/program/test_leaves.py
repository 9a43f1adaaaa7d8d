"""The leaves of a tree, as people read them."""

from __future__ import annotations

import collections

import jax
import numpy as np

from anytpu.program import Program
from anytpu.program.leaves import leaf_names, leaf_text, state_names

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
