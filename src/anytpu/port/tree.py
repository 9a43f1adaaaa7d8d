"""`Tree`: a parsed program with resolved names.

Idea: `tf.distribute.TPUStrategy`, `from tensorflow.distribute import TPUStrategy as S` and
`tf.compat.v2.distribute.TPUStrategy` have one canonical name, "distribute.TPUStrategy". It is the full name without
the prefix `tensorflow` and without the version prefix `compat`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst.metadata import (
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedName,
    QualifiedNameProvider,
    QualifiedNameSource,
)

TENSORFLOW = re.compile(r"tensorflow(_\w+)?(\.|$)")
"""Matches TensorFlow's packages: `tensorflow`, `tensorflow_datasets`, `tensorflow_estimator`."""
_VERSION = re.compile(r"^(python\.)?(compat\.v[12]\.|_api\.v[12]\.)*(python\.(?=keras))?")


def canonical(name: str) -> str:
    """Return the table's key for a full TensorFlow name.

    Example:
        >>> canonical("tensorflow.compat.v1.train.AdamOptimizer"), canonical("tensorflow_datasets.load")
        ('train.AdamOptimizer', 'tensorflow_datasets.load')
    """
    if name == "tensorflow" or not name.startswith("tensorflow."):
        return name
    return _VERSION.sub("", name.removeprefix("tensorflow.")) or "tensorflow"


class Tree:
    """A program with its scopes, parents and positions.

    Attributes:
        module: the parsed program; all methods take nodes of it.
    """

    def __init__(self, module: cst.Module) -> None:
        """Resolve the names of a parsed program."""
        wrapper = MetadataWrapper(module)
        self.module = wrapper.module
        self._names = wrapper.resolve(QualifiedNameProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._positions = wrapper.resolve(PositionProvider)
        self._contexts = wrapper.resolve(ExpressionContextProvider)

    def nodes(self, root: cst.CSTNode | None = None) -> Iterator[cst.CSTNode]:
        """Yield a node and its descendants in text order; None starts at the module."""
        root = self.module if root is None else root
        yield root
        for child in root.children:
            yield from self.nodes(child)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return a node's parent; None for the module."""
        return self._parents.get(node)

    def line(self, node: cst.CSTNode) -> int:
        """Return the number of a node's first line, from 1."""
        return self._positions[node].start.line

    def code(self, node: cst.CSTNode) -> str:
        """Return a node's source code."""
        return self.module.code_for_node(node)

    def context(self, name: cst.Name) -> object:
        """Return a name's expression context (load, store or delete); None if it is not a variable."""
        return self._contexts.get(name)

    def is_chain(self, node: cst.CSTNode) -> bool:
        """Return whether a node is a name or a dotted name."""
        while isinstance(node, cst.Attribute):
            node = node.value
        return isinstance(node, cst.Name)

    def old_name(self, node: cst.CSTNode) -> str | None:
        """Return the canonical name that a dotted name resolves to, or None if it is not TensorFlow's."""
        if not isinstance(node, cst.Name | cst.Attribute) or not self.is_chain(node):
            return None
        lazy: Any = self._names.get(node)
        names: Any = lazy() if callable(lazy) else lazy or ()
        # A name with two bindings, of which one is not TensorFlow's, is left to the author.
        return canonical(min(name.name for name in names)) if names and all(map(_is_old, names)) else None

    def chains(self) -> Iterator[tuple[cst.Name | cst.Attribute, str]]:
        """Yield each outermost dotted name that resolves to TensorFlow, with its canonical name."""
        for node in self.nodes():
            if isinstance(node, cst.Name | cst.Attribute) and not isinstance(self.parent(node), cst.Attribute):
                name = self.old_name(node)
                if name is not None:
                    yield node, name

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the innermost statement line or compound statement that contains a node."""
        while not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.Module):
            node = self._parents[node]
        return node

    def is_statement(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is a whole statement, such as `tf.get_logger().setLevel("ERROR")`."""
        above = self._parents[node]
        while isinstance(above, cst.Attribute | cst.Call):
            above = self._parents[above]
        return isinstance(above, cst.Expr)

    def bindings(self) -> Iterator[cst.Name]:
        """Yield each variable at each assignment; imports are not included."""
        yield from (n for n in self.names() if self._contexts.get(n) is ExpressionContext.STORE)

    def names(self, root: cst.CSTNode | None = None) -> Iterator[cst.Name]:
        """Yield the variables below a node in text order, without attributes, keywords and imported names."""
        for node in self.nodes(root):
            if isinstance(node, cst.Name) and self._contexts.get(node) is not None:
                parent = self.parent(node)
                is_label = isinstance(parent, cst.Attribute) and parent.attr is node
                is_label |= isinstance(parent, cst.Arg) and parent.keyword is node
                if not is_label and not isinstance(parent, cst.ImportAlias):
                    yield node


def bound_name(alias: cst.ImportAlias) -> str:
    """Return the variable that an import binds: `tf` for `tensorflow as tf`, `os` for `os.path`."""
    if alias.asname is not None:
        return alias.asname.name.value  # pyright: ignore[reportAttributeAccessIssue]
    head: cst.CSTNode = alias.name
    while isinstance(head, cst.Attribute):
        head = head.value
    return head.value  # pyright: ignore[reportAttributeAccessIssue]


def _is_old(name: QualifiedName) -> bool:
    return name.source is QualifiedNameSource.IMPORT and bool(TENSORFLOW.match(name.name))
