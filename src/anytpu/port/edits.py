"""`Edits`: everything that is to be changed in a program, decided before anything is changed.

Rule: a node has at most one edit, and an edit sees its node with all edits below it already made.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import libcst as cst
from libcst.helpers import parse_template_expression, parse_template_statement

from anytpu.port.finding import Finding
from anytpu.port.tree import Tree

IMPORTS = ("tpu", "keras", "optax", "logging")
"""The packages that new lines may name."""

Edit = Callable[[Any], Any]
"""Takes a node, edited below, and returns what stands in its place."""


class Edits:
    """The edits of one program, and what there is to say about it.

    Attributes:
        tree: the program.
        tpu: the name that anytpu gets in it.
        findings: what its author has to look at.
        roots: the packages that the new lines name: "tpu", "keras", "optax", ...
    """

    def __init__(self, tree: Tree, tpu: str = "tpu") -> None:
        """Start with no edits."""
        self.tree = tree
        self.tpu = tpu
        self.findings: list[Finding] = []
        self.roots: set[str] = set()
        self._edits: dict[cst.CSTNode, Edit] = {}
        self._done: set[cst.CSTNode] = set()
        self._left: set[cst.CSTNode] = set()

    def put(self, node: cst.CSTNode, edit: Edit, covers: cst.CSTNode | None = None) -> None:
        """Change a node.

        Args:
            node: what to change.
            edit: returns what stands in its place.
            covers: this node, and what it consists of, is gone or looked after with this edit; no rule looks at it.
        """
        self._edits[node] = edit
        if covers is not None:
            self.cover(covers)

    def put_before(self, statement: cst.CSTNode, lines: list[Any]) -> None:
        """Put statements before one that may have an edit of its own; the comments above it are then above them."""
        edit = self._edits.get(statement, lambda updated: updated)
        above = statement.leading_lines  # pyright: ignore[reportAttributeAccessIssue]

        def with_lines(updated: Any) -> cst.FlattenSentinel:
            outcome = edit(updated)
            after = [] if isinstance(outcome, cst.RemovalSentinel) else outcome
            after = list(after) if isinstance(after, list | cst.FlattenSentinel) else [after]
            after = [one.with_changes(leading_lines=one.leading_lines[len(above) :]) for one in after[:1]] + after[1:]
            return cst.FlattenSentinel([lines[0].with_changes(leading_lines=above), *lines[1:], *after])

        self._edits[statement] = with_lines

    def drop(self, node: cst.CSTNode) -> None:
        """Remove a node and everything in it."""
        self.put(node, lambda _: cst.RemoveFromParent(), covers=node)

    def cover(self, node: cst.CSTNode) -> None:
        """Take a node, and what it consists of, out of the rules' sight."""
        self._done.update(self.tree.nodes(node))

    def leave(self, node: cst.CSTNode) -> None:
        """Leave a node, and what it consists of, as it is; what it names is still needed."""
        self._left.update(self.tree.nodes(node))

    def is_left(self, node: cst.CSTNode) -> bool:
        """Tell whether a node was left as it is."""
        return node in self._left

    def is_done(self, node: cst.CSTNode) -> bool:
        """Tell whether a node is looked after already."""
        return node in self._done or node in self._edits

    def expression(self, template: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
        """Return new code as a node, and see to it that what it names is imported.

        Args:
            template: the code; in it `tpu` is anytpu, and `{name}` stands for a part.
            parts: the nodes to put in.
        """
        code = self._own_names(template)
        return parse_template_expression(code, **parts)  # pyright: ignore[reportArgumentType]

    def statement(self, template: str, **parts: Any) -> Any:
        """Return a new statement as a node; see `expression`."""
        return parse_template_statement(self._own_names(template), **parts)

    def _own_names(self, template: str) -> str:
        self.roots.update(root for root in IMPORTS if re.search(rf"(?<![\w.\"]){root}(?=\.|$)", template))
        return re.sub(r"(?<![\w.])tpu\.", f"{self.tpu}.", template)

    def say(self, node: cst.CSTNode, advice: str, kind: Any = "by hand", old: str | None = None) -> None:
        """Add a finding about a node."""
        text = self.tree.code(node) if old is None else old
        finding = Finding(self.tree.line(node), text.strip().partition("\n")[0], advice, kind)
        if finding not in self.findings:
            self.findings.append(finding)

    def rebuilt(self, node: Any) -> Any:
        """Return a node with the edits in it made."""
        return node.visit(_Editor(self._edits))

    def rebuilt_lines(self, statement: Any) -> list[Any]:
        """Return a statement with the edits in it made: one statement, none, or several."""
        new = self.rebuilt(statement)
        if isinstance(new, cst.FlattenSentinel):
            return list(new)
        return [] if isinstance(new, cst.RemovalSentinel) else [new]

    def apply(self) -> cst.Module:
        """Return the program with all edits made."""
        return self.rebuilt(self.tree.module)


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: dict[cst.CSTNode, Edit]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        if isinstance(original_node, cst.Call) and len(updated_node.args) < len(original_node.args):
            updated_node = _closed(updated_node, original_node)
        edit = self._edits.get(original_node)
        return updated_node if edit is None else edit(updated_node)


def _closed(call: cst.Call, before: cst.Call) -> cst.Call:
    """Return a call that lost arguments, with its end as it was: no comma where there was none."""
    if not call.args:
        return call.with_changes(whitespace_before_args=cst.SimpleWhitespace(""))
    end = before.args[-1]
    last = call.args[-1].with_changes(comma=end.comma, whitespace_after_arg=end.whitespace_after_arg)
    return call.with_changes(args=[*call.args[:-1], last])
