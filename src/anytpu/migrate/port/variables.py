"""Read and write sets of a code fragment, for moving it into a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
from libcst.metadata import ExpressionContext

from anytpu.migrate.port.tree import Tree, bound_name


def writes(tree: Tree, *nodes: cst.CSTNode) -> set[str]:
    """Return the variables that fragments write, without those local to their comprehensions and functions."""
    imported = {bound_name(part) for node in nodes for part in tree.nodes(node) if isinstance(part, cst.ImportAlias)}
    return imported.union(*(_free(tree, node, ExpressionContext.STORE, ExpressionContext.DEL) for node in nodes))


def reads(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the variables that a fragment reads, without those local to its comprehensions and functions."""
    changed = [part.target for part in tree.nodes(node) if isinstance(part, cst.AugAssign)]
    targets = {name for target in changed for name in _free(tree, target, ExpressionContext.STORE)}
    return targets | _free(tree, node, ExpressionContext.LOAD)


def _free(tree: Tree, node: cst.CSTNode, *contexts: ExpressionContext) -> set[str]:
    """Return the names in some contexts, but for those that a scope inside of the fragment binds."""
    inside = set(tree.nodes(node))
    names = [name for name in tree.names(node) if tree.context(name) in contexts]
    return {name.value for name in names if not (scopes := tree.scopes_of(name)) or not scopes <= inside}


def certain_writes(tree: Tree, statements: Sequence[cst.CSTNode]) -> set[str]:
    """Return the variables that statements write on every path."""
    certain: set[str] = set()
    _follow(tree, statements, certain)
    return certain


def reads_before_it_writes(tree: Tree, statements: Sequence[cst.CSTNode]) -> set[str]:
    """Return the variables that the statements write, but may read before their first write."""
    return _follow(tree, statements, set()) & writes(tree, *statements)


def read_later(tree: Tree, block: cst.CSTNode) -> set[str]:
    """Return the variables that code behind a block may read before it writes them again.

    It is behind the block, in the next round of a loop around it, or in a function that somebody calls.
    """
    function = tree.function(block)
    parts = [part for part in tree.nodes(function) if isinstance(part, cst.FunctionDef | cst.Lambda | cst.ClassDef)]
    later = set[str]().union(*(reads(tree, part) for part in parts if part is not function))
    node: cst.CSTNode | None = block
    while node is not None and node is not function:
        later |= _follow(tree, tree.following(node), set())
        later |= _follow(tree, [node], set()) if isinstance(node, cst.For | cst.While) else set()
        node = tree.parent(node)
    return later


def _follow(tree: Tree, statements: Iterable[cst.CSTNode], certain: set[str]) -> set[str]:
    """Return the variables that may be read before the statements write them; add the certain writes to `certain`."""
    early: set[str] = set()
    for statement in statements:
        if isinstance(statement, cst.SimpleStatementLine | cst.IndentedBlock | cst.Else):
            body: Any = statement.body if isinstance(statement.body, Sequence) else [statement.body]
            early |= _follow(tree, body, certain)
        elif isinstance(statement, cst.With):
            early |= _follow(tree, [*statement.items, statement.body], certain)
        elif isinstance(statement, cst.If):
            early |= reads(tree, statement.test) - certain
            # After an `if` a variable is certain only if both branches write it.
            branches = [set(certain), set(certain)]
            early |= _follow(tree, [statement.body], branches[0])
            early |= _follow(tree, [statement.orelse] if statement.orelse is not None else [], branches[1])
            certain |= branches[0] & branches[1]
        elif isinstance(statement, cst.For | cst.While):  # It may run no round.
            is_for = isinstance(statement, cst.For)
            early |= reads(tree, statement.iter if is_for else statement.test) - certain
            inside = certain | (writes(tree, statement.target) if is_for else set())
            early |= _follow(tree, [part for part in (statement.body, statement.orelse) if part is not None], inside)
        else:
            early |= reads(tree, statement) - certain
            # A `try` or a `match` may leave before a write.
            if not isinstance(statement, cst.Try | cst.TryStar | cst.Match):
                certain |= writes(tree, statement)
    return early
