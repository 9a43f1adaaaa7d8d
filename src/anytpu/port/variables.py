"""Which variables a piece of a program reads and sets, as a function made of it would see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst
from libcst.metadata import ExpressionContext

from anytpu.port.tree import Tree, bound_name

_OWN_SCOPE = (cst.BaseComp, cst.Lambda, cst.FunctionDef, cst.ClassDef)


def writes(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the variables that a piece sets, those of its own comprehensions and functions apart."""
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
    """Return the variables that a piece reads, those of its own comprehensions and functions apart."""
    found = {n.value for n in tree.names(node) if tree.context(n) is ExpressionContext.LOAD}
    for part in tree.nodes(node):
        if isinstance(part, cst.AugAssign) and isinstance(part.target, cst.Name):
            found.add(part.target.value)
    return found - _inner(tree, node)


def certain_writes(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the variables that a statement sets whichever way it goes."""
    if isinstance(node, cst.If):
        other = certain_writes(tree, node.orelse) if node.orelse else set()
        return certain_writes(tree, node.body) & other
    if isinstance(node, cst.Else):
        return certain_writes(tree, node.body)
    if isinstance(node, cst.IndentedBlock):
        return set().union(*(certain_writes(tree, one) for one in node.body))
    if isinstance(node, cst.With):
        return certain_writes(tree, node.body).union(*(writes(tree, item) for item in node.items))
    if isinstance(node, cst.For | cst.While | cst.Try | cst.TryStar | cst.Match):
        return set()
    return writes(tree, node)


def reads_before_it_writes(tree: Tree, statements: Sequence[cst.CSTNode]) -> set[str]:
    """Return the variables that the statements set, and may read while they still have their value from before."""
    written = set().union(*(writes(tree, one) for one in statements))
    certain: set[str] = set()
    found: set[str] = set()
    for one in _simple(statements):
        found |= (reads(tree, one) & written) - certain
        certain |= certain_writes(tree, one)
    return found


def _simple(statements: Iterable[cst.CSTNode]) -> Iterable[cst.CSTNode]:
    """Yield the statements; of `a = 1; b = a` each by itself, of a `with` its items and then its body."""
    for one in statements:
        if isinstance(one, cst.SimpleStatementLine):
            yield from one.body
        elif isinstance(one, cst.With) and isinstance(one.body, cst.IndentedBlock):
            yield from one.items
            yield from _simple(one.body.body)
        else:
            yield one


def _inner(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the variables that belong to the comprehensions and functions in a piece."""
    found: set[str] = set()
    for part in tree.nodes(node):
        if isinstance(part, _OWN_SCOPE):
            own = {n.value for n in tree.names(part) if tree.context(n) is ExpressionContext.STORE}
            found |= own - {part.name.value} if isinstance(part, cst.FunctionDef | cst.ClassDef) else own
    return found
