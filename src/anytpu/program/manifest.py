"""The manifest of a program file: its description as readable JSON.

Idea: a program file must open without the code of its model, and without pickle. So the manifest holds the structure of
each tree as JSON. Dicts, lists, tuples and None keep their type. Any other container (an optax NamedTuple, an
OrderedDict, a registered dataclass) is written as the plain tuple of its children. The names of the leaves still
identify them.

    a leaf            0
    None              null
    {"a": leaf}       {"dict": [["a", 0]]}
    [leaf], (leaf,)   {"list": [0]}, {"tuple": [0]}

Rule: the tree that is read back has the same leaves in the same order. A manifest repeats the shapes and dtypes that
the StableHLO of the file declares. A file in which they differ is rejected.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax

from anytpu.errors import ProgramError
from anytpu.files.json_text import check_json, read_json
from anytpu.program.program import Layout, Placement, Tree, leaf_names

Json = Any
"""A result of `json.loads`."""

LEAF = 0
"""The JSON value of a leaf."""


def tree_to_json(tree: Tree) -> Json:
    """Return the structure of a tree as JSON.

    Raises:
        ProgramError: a dict has a key that is neither a str nor an int.

    Example:
        >>> tree_to_json({"w": 1.0, "rest": (2.0, None)})
        {'dict': [['rest', {'tuple': [0, None]}], ['w', 0]]}
    """
    return _write(jax.tree.structure(tree))


def json_to_tree(structure: Json, leaves: list[Any]) -> Tree:
    """Return the tree with this structure and these leaves.

    Raises:
        ProgramError: the JSON is not in the form of `tree_to_json`, or has another number of leaves.

    Example:
        >>> json_to_tree({"list": [0, None]}, ["leaf"])
        ['leaf', None]
    """
    skeleton = _read(structure)
    treedef = jax.tree.structure(skeleton)
    if treedef.num_leaves != len(leaves):
        raise ProgramError(f"The structure {structure!r} has {treedef.num_leaves} leaves, not {len(leaves)}.")
    return jax.tree.unflatten(treedef, leaves)


def _write(treedef: Any) -> Json:
    node = treedef.node_data()
    if node is None:
        return LEAF
    kind, keys = node
    children = [_write(child) for child in treedef.children()]
    if kind is type(None):
        return None
    if kind is dict:
        return {"dict": [[_key(key), child] for key, child in zip(keys, children, strict=True)]}
    return {"list" if kind is list else "tuple": children}


def _key(key: Any) -> str | int:
    if isinstance(key, str) or type(key) is int:
        return key
    raise ProgramError(f"A dict in a program file must have keys that are strings or integers, not {key!r}.")


def _read(structure: Json) -> Tree:
    match structure:
        case None:
            return None
        case int() if structure == LEAF and not isinstance(structure, bool):
            return LEAF
        # JAX sorts the keys of a dictionary, and cannot sort integers with strings.
        case {"dict": list(pairs), **rest} if (
            not rest and all(_is_pair(pair) for pair in pairs) and _is_sortable(pairs)
        ):
            return {key: _read(child) for key, child in pairs}
        case {"list": list(children), **rest} if not rest:
            return [_read(child) for child in children]
        case {"tuple": list(children), **rest} if not rest:
            return tuple(_read(child) for child in children)
    raise ProgramError(f"{structure!r} is not the structure of a tree.")


def _is_sortable(pairs: list[Any]) -> bool:
    return len({type(key) for key, _ in pairs}) <= 1


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and (isinstance(pair[0], str) or type(pair[0]) is int)


KIND = "anytpu program"
"""The value of "kind" in the manifest."""

FORMAT = 2
"""Newest version of the format that this release reads and writes; version 2 adds the placement."""


@dataclasses.dataclass(frozen=True)
class LeafEntry:
    """One input or output array of the step.

    Attributes:
        name: name of the array, such as "dense/kernel".
        dtype: dtype of the array, such as "float32".
        shape: shape of the array.
        axis: for a leaf of the batch, the axis that is split over the cores; otherwise None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    axis: int | None = None


@dataclasses.dataclass(frozen=True)
class TreeEntry:
    """The arrays of the state, of the batch or of the outputs, and their tree structure.

    Attributes:
        tree: the structure, in the form of `tree_to_json`.
        leaves: the arrays, in the order of `jax.tree.leaves`.
    """

    tree: Json
    leaves: tuple[LeafEntry, ...]


@dataclasses.dataclass(frozen=True)
class ProgramManifest:
    """The description of the program in a program file.

    Attributes:
        name: name of the program.
        mode: "train" or "infer".
        replicas: size of the leading replica axes, or None for whole-batch code.
        platforms: target platforms of the lowering: "cpu", "cuda", "tpu".
        jax: version of JAX that wrote the file.
        state: arrays of the state.
        batch: arrays of the batch.
        outputs: arrays of the outputs.
        tensors: for each stored leaf of the state, the random generator of a typed key, or None for an ordinary array;
            None if the file stores no values.
        placement: shardings of the state and the batch over a mesh, for code with its own shardings; otherwise None.
    """

    name: str
    mode: str
    replicas: int | None
    platforms: tuple[str, ...]
    jax: str
    state: TreeEntry
    batch: TreeEntry
    outputs: TreeEntry
    tensors: tuple[str | None, ...] | None = None
    placement: Placement | None = None


def tree_entry(tree: Tree, root: str, names: Sequence[str] = (), layouts: Sequence[Layout] | None = None) -> TreeEntry:
    """Return the description of a tree of `jax.ShapeDtypeStruct`.

    Args:
        tree: the tree.
        root: the name of the leaf if the tree is a single leaf.
        names: names of the leaves; empty: their paths.
        layouts: layout of each leaf on the cores; None: all leaves are replicated.
    """
    leaves = jax.tree.leaves(tree)
    names = names or leaf_names(tree, root)
    axes = [layout.axis for layout in layouts] if layouts is not None else [None] * len(leaves)
    entries = [
        LeafEntry(name, leaf.dtype.name, tuple(leaf.shape), axis)
        for name, leaf, axis in zip(names, leaves, axes, strict=True)
    ]
    return TreeEntry(tree_to_json(tree), tuple(entries))


def tree_of(entry: TreeEntry, avals: Sequence[Any]) -> Tree:
    """Return the described tree of `jax.ShapeDtypeStruct`, after a comparison with the arrays of the StableHLO.

    Args:
        entry: the description in the manifest.
        avals: the arrays that the StableHLO declares, with shape and dtype.

    Raises:
        ProgramError: they differ.
    """
    declared = [(aval.dtype.name, tuple(aval.shape)) for aval in avals]
    if declared != [(leaf.dtype, leaf.shape) for leaf in entry.leaves]:
        described = [(leaf.dtype, leaf.shape) for leaf in entry.leaves]
        raise ProgramError(f"Its manifest describes arrays of {described!r}, and its code has {declared!r}.")
    return json_to_tree(entry.tree, [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals])


def to_json(manifest: ProgramManifest) -> bytes:
    """Return the manifest as JSON.

    Raises:
        ProgramError: `from_json` would refuse it: it has too many arrays, or nests too deeply.
    """
    fields = dataclasses.asdict(manifest)
    if manifest.placement is None:
        del fields["placement"]  # Without a placement the file has format 1, which older releases can read.
    content = json.dumps({"kind": KIND, "format": 1 + ("placement" in fields), **fields}, indent=1).encode()
    try:
        check_json(content)
    except ValueError as error:
        raise ProgramError(f"The program {manifest.name!r} cannot be written: {error}, in its manifest.") from error
    return content


def format_of(content: bytes) -> int | None:
    """Return the format version in the JSON of a manifest, or None if there is none."""
    try:
        fields = read_json(content)
    except ValueError:
        return None
    is_ours = isinstance(fields, dict) and fields.get("kind") == KIND and type(fields.get("format")) is int
    return fields["format"] if is_ours else None


def from_json(content: bytes) -> ProgramManifest:
    """Parse the JSON of a manifest.

    Raises:
        ProgramError: it is not a manifest.
    """
    try:
        fields: dict[str, Any] = read_json(content)
        groups: dict[str, Any] = {part: _parse_tree(fields.pop(part)) for part in ("state", "batch", "outputs")}
        if fields.pop("kind") != KIND or fields.pop("format") not in range(1, FORMAT + 1):
            raise ValueError("it is of another kind")
        tensors = fields.pop("tensors")
        lists: dict[str, Any] = {
            "platforms": tuple(fields.pop("platforms")),
            "tensors": None if tensors is None else tuple(tensors),
            "placement": _parse_placement(fields.pop("placement", None)),
        }
        return ProgramManifest(**fields, **groups, **lists)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProgramError(f"Its manifest cannot be understood: {type(error).__name__}: {error}") from error


def _parse_placement(fields: Any) -> Placement | None:
    if fields is None:
        return None
    return Placement(
        axes=tuple((str(name), int(size)) for name, size in fields["axes"]),
        specs=tuple(tuple(tuple(map(str, names)) for names in spec) for spec in fields["specs"]),
        explicit=tuple(map(str, fields["explicit"])),
    )


def _parse_tree(fields: Any) -> TreeEntry:
    leaves = (LeafEntry(**leaf | {"shape": tuple(leaf["shape"])}) for leaf in fields["leaves"])
    return TreeEntry(fields["tree"], tuple(leaves))
