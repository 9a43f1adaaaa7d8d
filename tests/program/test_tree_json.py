"""The structure of a pytree as JSON."""

from __future__ import annotations

import collections
import json

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytpu.errors import ProgramError
from anytpu.program.tree_json import json_to_tree, tree_to_json

Pair = collections.namedtuple("Pair", ["first", "second"])

KEYS = st.one_of(st.text(), st.just("dict"), st.just("list"))
TREES = st.recursive(
    st.one_of(st.integers(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(st.integers(), inner, max_size=4),
    ),
    max_leaves=20,
)
JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 1), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["dict", "list", "tuple", "other"]), inner, max_size=2),
        st.lists(st.tuples(st.text(max_size=2), inner).map(list), max_size=2).map(lambda pairs: {"dict": pairs}),
    ),
    max_leaves=12,
)


@given(TREES)
def test_round_trip(tree):
    through = json.loads(json.dumps(tree_to_json(tree)))
    assert json_to_tree(through, jax.tree.leaves(tree)) == tree


@given(TREES)
def test_another_number_of_leaves_is_an_error(tree):
    with pytest.raises(ProgramError):
        json_to_tree(tree_to_json(tree), [*jax.tree.leaves(tree), 0])


@given(JSONS)
def test_any_json_is_a_tree_or_an_error_of_ours(structure):
    try:
        tree = json_to_tree(structure, [])
    except ProgramError:
        return
    assert not jax.tree.leaves(tree)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (1.0, 0),
        (None, None),
        ({"b": 1, "a": (2, None)}, {"dict": [["a", {"tuple": [0, None]}], ["b", 0]]}),
        ([1, {}], {"list": [0, {"dict": []}]}),
        (Pair(1, [2]), {"tuple": [0, {"list": [0]}]}),
        (collections.OrderedDict(b=1, a=2), {"tuple": [0, 0]}),
    ],
)
def test_form(tree, expected):
    assert tree_to_json(tree) == expected


def test_key_that_json_cannot_hold():
    with pytest.raises(ProgramError) as caught:
        tree_to_json({(1, 2): 0})
    assert str(caught.value) == ("A dict in a program file must have keys that are strings or integers, not (1, 2).")


def test_not_a_structure():
    with pytest.raises(ProgramError) as caught:
        json_to_tree({"list": [1]}, [5])
    assert str(caught.value) == "1 is not the structure of a tree."


def test_number_of_leaves():
    with pytest.raises(ProgramError) as caught:
        json_to_tree({"list": [0, 0]}, [5])
    assert str(caught.value) == "The structure {'list': [0, 0]} has 2 leaves, not 1."


def test_keys_that_cannot_be_sorted():
    structure = {"dict": [[1, 0], ["one", 0]]}
    with pytest.raises(ProgramError) as caught:
        json_to_tree(structure, ["leaf", "leaf"])
    assert str(caught.value) == f"{structure!r} is not the structure of a tree."
