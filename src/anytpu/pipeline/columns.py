"""Separation of a batch's string columns, which remain on the host, from its numeric columns.

Idea: cores cannot compute with strings, but a prediction is useless without its row's name or id. So a batch is split
by columns: numeric columns are sent to the cores, string columns are kept under their names.

Rule: splitting never changes the order of the rows.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from anytpu.errors import DataError
from anytpu.pipeline.nodes import name_of

Tree = Any

_REMOVED = object()


def split(batch: Tree) -> tuple[Tree, dict[str, np.ndarray]]:
    """Split a batch into its numeric and its string columns.

    Returns:
        The batch without its string columns, and these by name: "id" of `{"id": ...}`, "1" of `(x, ids)`.

    Raises:
        DataError: all columns hold strings.

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
            f"all columns hold strings ({', '.join(strings)}), and cores cannot compute with strings: decode or parse "
            "them first, with .map(...)"
        )
    return _without_removed(jax.tree.map(lambda leaf: _REMOVED if is_strings(leaf) else leaf, batch)), strings


def is_strings(leaf: Any) -> bool:
    """Return whether a column holds strings or bytes."""
    kind = getattr(getattr(leaf, "dtype", None), "kind", None)
    if kind == "O":
        return len(leaf) > 0 and isinstance(leaf.flat[0], str | bytes)
    return kind in ("U", "S") or isinstance(leaf, str | bytes)


def _without_removed(tree: Tree) -> Tree:
    """Return a tree of dicts, tuples and lists without the removed leaves and the containers left empty."""
    if isinstance(tree, dict):
        kept = {key: _without_removed(part) for key, part in tree.items()}
        return {key: part for key, part in kept.items() if part is not _REMOVED} or _REMOVED
    if isinstance(tree, list | tuple):
        parts = [part for part in map(_without_removed, tree) if part is not _REMOVED]
        return (parts if isinstance(tree, list) else tuple(parts)) if parts else _REMOVED
    return tree
