"""What of a batch travels to the cores, and what stays on the host: its strings.

Idea: no core computes with strings, yet a row's name or id is what its prediction is for. So a batch is split by its
columns: the numbers travel, the strings are kept, each under its name.

Rule: splitting never changes the order of the rows.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from anytpu.errors import DataError
from anytpu.pipeline.nodes import name_of

Tree = Any

_GONE = object()


def split(batch: Tree) -> tuple[Tree, dict[str, np.ndarray]]:
    """Split a batch.

    Returns:
        The batch without its columns of strings, and these by name: "id" of `{"id": ...}`, "1" of `(x, ids)`.

    Raises:
        DataError: it has no other columns.

    Example:
        >>> numbers, strings = split({"image": np.zeros((2, 4)), "id": np.array(["a", "b"])})
        >>> list(numbers), strings["id"].tolist()
        (['image'], ['a', 'b'])
    """
    leaves = jax.tree_util.tree_flatten_with_path(batch)[0]
    strings = {name_of(path): np.asarray(leaf) for path, leaf in leaves if is_strings(leaf)}
    if not strings:
        return batch, strings
    if len(strings) == len(leaves):
        raise DataError(
            f"all columns hold strings ({', '.join(strings)}), and no core computes with those: decode or parse them "
            "first, with .map(...)"
        )
    return _without_gone(jax.tree.map(lambda leaf: _GONE if is_strings(leaf) else leaf, batch)), strings


def is_strings(leaf: Any) -> bool:
    """Say whether a column holds strings or bytes."""
    kind = getattr(getattr(leaf, "dtype", None), "kind", None)
    if kind == "O":
        return len(leaf) > 0 and isinstance(leaf.flat[0], str | bytes)
    return kind in ("U", "S") or isinstance(leaf, str | bytes)


def _without_gone(tree: Tree) -> Tree:
    """Return a tree of dicts, tuples and lists without what is gone, and without what has become empty by that."""
    if isinstance(tree, dict):
        kept = {key: _without_gone(part) for key, part in tree.items()}
        return {key: part for key, part in kept.items() if part is not _GONE} or _GONE
    if isinstance(tree, list | tuple):
        parts = [part for part in map(_without_gone, tree) if part is not _GONE]
        return (parts if isinstance(tree, list) else tuple(parts)) if parts else _GONE
    return tree
