"""Readable names ("dense/kernel") and types ("float32[784,128]") of the leaves of a tree.

Rule: a name is the path of the leaf, joined by "/". A tree that is a single leaf has the name of its root.
"""

from __future__ import annotations

from typing import Any

import jax

from anytpu.program.program import Program, Tree


def leaf_names(tree: Tree, root: str) -> tuple[str, ...]:
    """Return the name of each leaf, in the order of `jax.tree.leaves`.

    Args:
        tree: any pytree.
        root: the name of the leaf if the tree is a single leaf.

    Example:
        >>> leaf_names({"dense": {"kernel": 1.0, "bias": 2.0}}, "state")
        ('dense/bias', 'dense/kernel')
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/") or root for path in paths)


def state_names(program: Program) -> tuple[str, ...]:
    """Return the program's names of its state leaves, or their paths if it has no names."""
    return program.state_names or leaf_names(program.state, "state")


def leaf_text(leaf: Any) -> str:
    """Return the dtype and shape of an array, or of a `jax.ShapeDtypeStruct`, as a short text.

    Example:
        >>> leaf_text(jax.ShapeDtypeStruct((784, 128), "float32"))
        'float32[784,128]'
    """
    return f"{leaf.dtype.name}[{','.join(map(str, leaf.shape))}]"
