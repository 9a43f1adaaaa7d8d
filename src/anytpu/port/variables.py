"""Read and write sets of a code fragment, for moving it into a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst
from libcst.metadata import ExpressionContext

from anytpu.port.tree import Tree, bound_name

_OWN_SCOPE = (cst.BaseComp, cst.Lambda, cst.FunctionDef, cst.ClassDef)


def writes(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the variables that a fragment writes, without those local to its comprehensions and functions."""
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        return {node.name.value}
    if isinstance(node, cst.BaseComp | cst.Lambda):
        return set()
    if isinstance(node, cst.ImportAlias):
        return {bound_name(node)}
    if isinstance(node, cst.Name):
        return {node.value} if tree.context(node) in (ExpressionContext.STORE, ExpressionContext.DEL) else set()
    if isinstance(node, cst.Attribute):
        return writes(tree, node.value)
    return set().union(*(writes(tree, child) for child in node.children))


def reads(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the variables that a fragment reads, without those local to its comprehensions and functions."""
    names = {n.value for n in tree.names(node) if tree.context(n) is ExpressionContext.LOAD}
    for part in tree.nodes(node):
        if isinstance(part, cst.AugAssign) and isinstance(part.target, cst.Name):
            names.add(part.target.value)
    return names - _inner(tree, node)


def certain_writes(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the variables that a statement writes on every path."""
    if isinstance(node, cst.If):
        other = certain_writes(tree, node.orelse) if node.orelse else set()
        return certain_writes(tree, node.body) & other
    if isinstance(node, cst.Else):
        return certain_writes(tree, node.body)
    if isinstance(node, cst.IndentedBlock):
        return set().union(*(certain_writes(tree, statement) for statement in node.body))
    if isinstance(node, cst.With):
        return certain_writes(tree, node.body).union(*(writes(tree, item) for item in node.items))
    if isinstance(node, cst.For | cst.While | cst.Try | cst.TryStar | cst.Match):
        return set()
    return writes(tree, node)


def reads_before_it_writes(tree: Tree, statements: Sequence[cst.CSTNode]) -> set[str]:
    """Return the variables that the statements write, but may read before their first write."""
    written = set().union(*(writes(tree, statement) for statement in statements))
    certain: set[str] = set()
    early_reads: set[str] = set()
    for statement in _simple(statements):
        early_reads |= (reads(tree, statement) & written) - certain
        certain |= certain_writes(tree, statement)
    return early_reads


def _simple(statements: Iterable[cst.CSTNode]) -> Iterable[cst.CSTNode]:
    """Yield the statements, with `a = 1; b = a` split in two and a `with` split into its items and its body."""
    for statement in statements:
        if isinstance(statement, cst.SimpleStatementLine):
            yield from statement.body
        elif isinstance(statement, cst.With) and isinstance(statement.body, cst.IndentedBlock):
            yield from statement.items
            yield from _simple(statement.body.body)
        else:
            yield statement


def _inner(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the variables local to the comprehensions and functions in a fragment."""
    inner: set[str] = set()
    for part in tree.nodes(node):
        if isinstance(part, _OWN_SCOPE):
            stored = {n.value for n in tree.names(part) if tree.context(n) is ExpressionContext.STORE}
            inner |= stored - {part.name.value} if isinstance(part, cst.FunctionDef | cst.ClassDef) else stored
    return inner
