"""What a program file says about its program, as JSON that people can read too.

Rule: a manifest repeats what the StableHLO of the file declares (shapes and dtypes), so that both can be held against
each other; a file in which they differ is not read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax

from anytpu.errors import ProgramError
from anytpu.program.leaves import leaf_names
from anytpu.program.program import Layout, Placement, Tree
from anytpu.program.tree_json import Json, json_to_tree, tree_to_json

KIND = "anytpu program"
"""What the manifest calls itself."""

FORMAT = 2
"""The newest version of the format that this release writes and reads; 2 is 1 with a placement."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array that goes into the step or comes out of it.

    Attributes:
        name: "dense/kernel".
        dtype: "float32".
        shape: its shape.
        axis: for a leaf of the batch, the axis that is split over the cores; else None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    axis: int | None = None


@dataclasses.dataclass(frozen=True)
class Group:
    """The arrays of the state, of the batch or of the outputs, and how they nest.

    Attributes:
        tree: the structure, as `tree_to_json` writes it.
        leaves: the arrays, in the order of `jax.tree.leaves`.
    """

    tree: Json
    leaves: tuple[Leaf, ...]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a program file says about its program.

    Attributes:
        name: the program's name.
        mode: "train" or "infer".
        replicas: the number of replicas that the leading axes stand for, or None for whole-batch code.
        platforms: what it was lowered for: "cpu", "cuda", "tpu".
        jax: the version of JAX that wrote it.
        state: the state.
        batch: the batch.
        outputs: the outputs.
        tensors: for each leaf of the state whose value the file holds, the random generator of a typed key, or None for
            an ordinary array; None when the file holds no values.
        placement: how the state and the batch lie on a mesh, for code that brings shardings of its own; else None.
    """

    name: str
    mode: str
    replicas: int | None
    platforms: tuple[str, ...]
    jax: str
    state: Group
    batch: Group
    outputs: Group
    tensors: tuple[str | None, ...] | None = None
    placement: Placement | None = None


def group_of(tree: Tree, root: str, names: Sequence[str] = (), layouts: Sequence[Layout] | None = None) -> Group:
    """Return the group that describes a tree of `jax.ShapeDtypeStruct`.

    Args:
        tree: the tree.
        root: the name of a leaf that is the whole tree.
        names: the names of its leaves; none of them: their paths.
        layouts: how each leaf lies on the cores; None: all of them whole on every core.
    """
    leaves = jax.tree.leaves(tree)
    names = names or leaf_names(tree, root)
    axes = [layout.axis for layout in layouts] if layouts is not None else [None] * len(leaves)
    described = [Leaf(n, x.dtype.name, tuple(x.shape), axis) for n, x, axis in zip(names, leaves, axes, strict=True)]
    return Group(tree_to_json(tree), tuple(described))


def tree_of(group: Group, avals: Sequence[Any]) -> Tree:
    """Return the tree of `jax.ShapeDtypeStruct` that a group describes, if that is what the StableHLO declares.

    Raises:
        ProgramError: they differ.
    """
    declared = [(aval.dtype.name, tuple(aval.shape)) for aval in avals]
    if declared != [(leaf.dtype, leaf.shape) for leaf in group.leaves]:
        described = [(leaf.dtype, leaf.shape) for leaf in group.leaves]
        raise ProgramError(f"Its manifest describes arrays of {described!r}, and its code has {declared!r}.")
    return json_to_tree(group.tree, [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals])


def to_json(manifest: Manifest) -> bytes:
    """Return the manifest as JSON."""
    said = dataclasses.asdict(manifest)
    if manifest.placement is None:
        del said["placement"]  # Most have none, and are files that older releases read.
    return json.dumps({"kind": KIND, "format": 1 + ("placement" in said), **said}, indent=1).encode()


def format_of(content: bytes) -> int | None:
    """Return the version of the format that some JSON claims, or None when it claims none."""
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(said, dict) and said.get("kind") == KIND and type(said.get("format")) is int
    return said["format"] if is_ours else None


def from_json(content: bytes) -> Manifest:
    """Return the manifest that some JSON holds.

    Raises:
        ProgramError: it holds none.
    """
    try:
        said: dict[str, Any] = json.loads(content)
        groups: dict[str, Any] = {part: _group(said.pop(part)) for part in ("state", "batch", "outputs")}
        if said.pop("kind") != KIND or said.pop("format") not in range(1, FORMAT + 1):
            raise ValueError("it is of another kind")
        tensors = said.pop("tensors")
        lists: dict[str, Any] = {
            "platforms": tuple(said.pop("platforms")),
            "tensors": None if tensors is None else tuple(tensors),
            "placement": _placement(said.pop("placement", None)),
        }
        return Manifest(**said, **groups, **lists)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ProgramError(f"Its manifest cannot be understood: {type(error).__name__}: {error}") from error


def _placement(said: Any) -> Placement | None:
    if said is None:
        return None
    return Placement(
        axes=tuple((str(name), int(size)) for name, size in said["axes"]),
        specs=tuple(tuple(tuple(map(str, names)) for names in spec) for spec in said["specs"]),
        explicit=tuple(map(str, said["explicit"])),
    )


def _group(said: Any) -> Group:
    return Group(said["tree"], tuple(Leaf(**leaf | {"shape": tuple(leaf["shape"])}) for leaf in said["leaves"]))
