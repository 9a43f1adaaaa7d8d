"""The manifest of a program file, and the structure of a pytree as JSON."""

from __future__ import annotations

import collections
import dataclasses
import json

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytpu.errors import ProgramError
from anytpu.program import REPLICATED, ROWS, Placement
from anytpu.program.manifest import (
    LeafEntry,
    ProgramManifest,
    TreeEntry,
    format_of,
    from_json,
    json_to_tree,
    to_json,
    tree_entry,
    tree_of,
    tree_to_json,
)

TREE = {"x": jax.ShapeDtypeStruct((8, 3), "bfloat16"), "y": [jax.ShapeDtypeStruct((), "bool")]}
BATCH = TreeEntry(
    {"dict": [["x", 0], ["y", {"list": [0]}]]},
    (LeafEntry("x", "bfloat16", (8, 3), axis=0), LeafEntry("y/0", "bool", ())),
)
MANIFEST = ProgramManifest(
    name="mlp/train",
    mode="train",
    replicas=8,
    platforms=("cpu", "tpu"),
    jax="0.10.2",
    state=TreeEntry(0, (LeafEntry("w", "key<fry>", ()),)),
    batch=BATCH,
    outputs=TreeEntry({"tuple": []}, ()),
    tensors=("threefry2x32",),
)


def test_group_of_a_tree():
    assert tree_entry(TREE, "batch", layouts=[ROWS, REPLICATED]) == BATCH
    assert tree_entry(np.zeros(3), "state", names=["w"]) == TreeEntry(0, (LeafEntry("w", "float64", (3,)),))


def test_tree_of_a_group():
    assert tree_of(BATCH, jax.tree.leaves(TREE)) == TREE


def test_tree_of_another_code():
    with pytest.raises(ProgramError) as caught:
        tree_of(BATCH, [TREE["x"]])
    assert str(caught.value) == (
        "Its manifest describes arrays of [('bfloat16', (8, 3)), ('bool', ())], and its code has "
        "[('bfloat16', (8, 3))]."
    )


@pytest.mark.parametrize("tensors", [None, (), ("threefry2x32", None)])
def test_round_trip(tensors):
    manifest = dataclasses.replace(MANIFEST, tensors=tensors)
    assert from_json(to_json(manifest)) == manifest


def test_a_placement_comes_back():
    placement = Placement((("data", 4), ("model", 2)), (((),), (("data", "model"), ())), explicit=("model",))
    manifest = dataclasses.replace(MANIFEST, placement=placement)
    assert from_json(to_json(manifest)) == manifest
    assert (format_of(to_json(manifest)), format_of(to_json(MANIFEST))) == (2, 1)
    assert b"placement" not in to_json(MANIFEST)


def test_format():
    assert format_of(to_json(MANIFEST)) == 1
    assert format_of(b'{"kind": "anytpu program", "format": 12}') == 12


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b'{"format": 2}', b'{"kind": "anytpu program", "format": "2"}', b"[" * 100_000]
)
def test_no_manifest(content: bytes):
    assert format_of(content) is None
    with pytest.raises(ProgramError, match=r"^Its manifest cannot be understood: "):
        from_json(content)


@pytest.mark.parametrize("name", [*json.loads(to_json(MANIFEST))])
def test_each_entry_is_needed(name: str):
    said = json.loads(to_json(MANIFEST))
    del said[name]
    with pytest.raises(ProgramError, match=name):
        from_json(json.dumps(said).encode())


def test_an_entry_too_many():
    with pytest.raises(ProgramError, match="surprise"):
        from_json(json.dumps(json.loads(to_json(MANIFEST)) | {"surprise": 1}).encode())


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
def test_trees_round_trip(tree):
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
