"""What a program file says about its program."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

from anytpu.errors import ProgramError
from anytpu.program import REPLICATED, ROWS, Placement
from anytpu.program.manifest import (
    LeafEntry,
    ProgramManifest,
    TreeEntry,
    format_of,
    from_json,
    to_json,
    tree_entry,
    tree_of,
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
