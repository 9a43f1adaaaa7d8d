"""The structure of a pytree as JSON, without pickle and without imports on reading.

Idea: a program file must open without the code of its model. Dicts, lists, tuples and None keep their type. Any other
container (an optax NamedTuple, an OrderedDict, a registered dataclass) is written as the plain tuple of its children;
the names of the leaves still identify them.

    a leaf            0
    None              null
    {"a": leaf}       {"dict": [["a", 0]]}
    [leaf], (leaf,)   {"list": [0]}, {"tuple": [0]}

Rule: the tree that is read back has the same leaves in the same order.
"""

from __future__ import annotations

from typing import Any

import jax

from anytpu.errors import ProgramError
from anytpu.program.program import Tree

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
