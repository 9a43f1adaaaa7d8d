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
    ScopeProvider,
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
        self._scopes = wrapper.resolve(ScopeProvider)

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

    def ends_before(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Return whether a node's code ends before that of another one does."""
        ends = [self._positions[node].end for node in (first, second)]
        return (ends[0].line, ends[0].column) < (ends[1].line, ends[1].column)

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

    def keras_name(self, node: cst.CSTNode) -> str | None:
        """Return the full name of a dotted name imported from the package keras itself, or None."""
        names = self._imported(node)
        return min(names) if names and all(name.partition(".")[0] == "keras" for name in names) else None

    def library_name(self, node: cst.CSTNode) -> str | None:
        """Return the canonical name of TensorFlow's, or the full name of Keras's, that a dotted name resolves to."""
        return self.old_name(node) or self.keras_name(node)

    def _imported(self, node: cst.CSTNode) -> list[str]:
        if not isinstance(node, cst.Name | cst.Attribute) or not self.is_chain(node):
            return []
        lazy: Any = self._names.get(node)
        names: Any = lazy() if callable(lazy) else lazy or ()
        return [n.name if n.source is QualifiedNameSource.IMPORT else "" for n in names]

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

    def small_statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the simple statement that contains a node, such as an assignment; the module if there is none."""
        while not isinstance(node, cst.BaseSmallStatement | cst.Module):
            node = self._parents[node]
        return node

    def is_statement(self, node: cst.CSTNode) -> bool:
        """Return whether an expression is a whole statement, such as `tf.get_logger().setLevel("ERROR")`."""
        above = self._parents[node]
        while isinstance(above, cst.Attribute | cst.Call):
            above = self._parents[above]
        return isinstance(above, cst.Expr)

    def scopes_of(self, name: cst.Name) -> set[cst.CSTNode | None]:
        """Return the functions and classes in which a variable is bound; None stands for the module."""
        scope = self._scopes.get(name)
        if scope is None:
            return set()
        return {getattr(assignment.scope, "node", None) for assignment in scope[name.value]}

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Lambda | None:
        """Return the innermost function around a node; None for the module."""
        above = self.parent(node)
        while above is not None and not isinstance(above, cst.FunctionDef | cst.Lambda):
            above = self.parent(above)
        return above

    def parent_call(self, node: cst.CSTNode) -> cst.Call | None:
        """Return the call whose function a node is, or None."""
        above = self.parent(node)
        return above if isinstance(above, cst.Call) and above.func is node else None

    def class_around(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the innermost class around a node; None outside of classes."""
        above = self.parent(node)
        while above is not None and not isinstance(above, cst.ClassDef):
            above = self.parent(above)
        return above

    def class_of_method(self, function: cst.FunctionDef) -> cst.ClassDef | None:
        """Return the class whose method a function is; None for another function."""
        block = self.parent(function)
        owner = self.parent(block) if block is not None else None
        return owner if isinstance(owner, cst.ClassDef) else None

    def bindings(self) -> Iterator[cst.Name]:
        """Yield each variable at each assignment; imports are not included."""
        yield from (n for n in self.names() if self._contexts.get(n) is ExpressionContext.STORE)

    def is_read(self, name: str) -> bool:
        """Return whether a variable of this name is read anywhere in the program."""
        return bool(self.reads_of(name))

    def reads_of(self, name: str) -> list[cst.Name]:
        """Return the places where a variable of this name is read, anywhere in the program."""
        return [n for n in self.names() if n.value == name and self._contexts.get(n) is ExpressionContext.LOAD]

    def values_assigned_to(self, name: str) -> list[cst.BaseExpression]:
        """Return all values assigned to a variable of this name, anywhere in the program."""
        values = []
        for node in self.nodes():
            targets = [target.target for target in node.targets] if isinstance(node, cst.Assign) else []
            stored = {n.value for target in targets for n in self.names(target) if self.is_stored(n)}
            if isinstance(node, cst.Assign) and name in stored:
                values.append(node.value)
        return values

    def is_stored(self, name: cst.Name) -> bool:
        """Return whether a variable is assigned where this name stands."""
        return self._contexts.get(name) is ExpressionContext.STORE

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
