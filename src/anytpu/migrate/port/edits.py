"""`Edits`: the planned changes of a program; nothing is applied until all are planned.

Rule: a node has at most one edit: `put` replaces a planned edit, and `compose` adds to it. An edit gets its node with
all edits of its descendants already applied.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.helpers import parse_template_expression, parse_template_statement

from anytpu.migrate.port.finding import Finding
from anytpu.migrate.port.tree import Tree
from anytpu.migrate.port.values import Values

IMPORTS = ("tpu", "keras", "jax", "optax", "np", "fsspec", "functools", "os", "absl.app", "absl.flags", "absl.logging")
"""Packages that inserted code may use; each is then imported."""

_RUNS = m.Call() | m.NamedExpr() | m.Await() | m.Yield()
"""Code that may do or return something else when it runs again."""

Edit = Callable[[Any], Any]
"""Maps a node, whose descendants are already edited, to its replacement."""


class Edits:
    """The planned edits of one program, and the findings for its author.

    Attributes:
        tree: the parsed program.
        values: the classes of its values.
        tpu: the variable that anytpu is imported as.
        findings: lines for the author to check.
        roots: packages that the inserted code uses, out of `IMPORTS`.
    """

    def __init__(self, tree: Tree, tpu: str = "tpu") -> None:
        """Start with no edits."""
        self.tree = tree
        self.values = Values(tree)
        self.tpu = tpu
        self.findings: list[Finding] = []
        self.roots: set[str] = set()
        self._edits: dict[cst.CSTNode, Edit] = {}
        self._done: set[cst.CSTNode] = set()
        self._left: set[cst.CSTNode] = set()
        self._listed_whole: set[cst.CSTNode] = set()

    def put(self, node: cst.CSTNode, edit: Edit, covers: cst.CSTNode | None = None) -> None:
        """Plan the replacement of a node; it takes the place of an edit that is planned already.

        Args:
            node: the node to replace.
            edit: maps the node to its replacement.
            covers: a subtree that this edit handles; no later rule looks at it. None covers nothing.
        """
        self._edits[node] = edit
        if covers is not None:
            self.cover(covers)

    def put_body(self, block: cst.With, item: cst.WithItem) -> None:
        """Plan to replace a block by its body, with the comments above the block."""
        statements = block.body.body

        def body_alone(_: cst.With) -> Any:
            lines = [line for statement in statements for line in self.rebuilt_lines(statement)]
            if not lines:
                return cst.RemoveFromParent()
            first = lines[0].with_changes(leading_lines=[*block.leading_lines, *lines[0].leading_lines])
            return cst.FlattenSentinel([first, *lines[1:]])

        self.put(block, body_alone, covers=item)

    def compose(self, node: cst.CSTNode, edit: Edit) -> None:
        """Plan a further edit of a node, which gets the result of the edit that is planned already."""
        before = self._edits.get(node, lambda updated: updated)
        self._edits[node] = lambda updated: edit(before(updated))

    def insert_before(self, statement: cst.CSTNode, lines: list[Any]) -> None:
        """Insert lines before a statement, which keeps its own edit; comments above it move above the new lines."""
        edit = self._edits.get(statement, lambda updated: updated)
        above = statement.leading_lines  # pyright: ignore[reportAttributeAccessIssue]

        def with_lines(updated: Any) -> cst.FlattenSentinel:
            after = _lines(edit(updated))
            if after:
                after[0] = after[0].with_changes(leading_lines=after[0].leading_lines[len(above) :])
            return cst.FlattenSentinel([lines[0].with_changes(leading_lines=above), *lines[1:], *after])

        self._edits[statement] = with_lines

    def drop(self, node: cst.CSTNode) -> None:
        """Remove a node and its descendants."""
        self.put(node, lambda _: cst.RemoveFromParent(), covers=node)

    def drop_statement(self, node: cst.CSTNode) -> None:
        """Remove the statement that contains a node."""
        statement = self.tree.statement(node) if self.tree.is_alone(node) else self.tree.small_statement(node)
        assert statement is not None
        self.drop(statement)

    def cover(self, node: cst.CSTNode) -> None:
        """Mark a node and its descendants as handled: later rules skip them."""
        self._done.update(self.tree.nodes(node))

    def mark(self, node: cst.CSTNode) -> None:
        """Mark a node as handled, without its descendants."""
        self._done.add(node)

    def leave(self, node: cst.CSTNode) -> None:
        """Keep a node and its descendants unchanged; the imports that they use stay."""
        self._left.update(self.tree.nodes(node))

    def list_whole(self, node: cst.CSTNode) -> None:
        """Add no more findings in a subtree: a finding that stands already is about all of it."""
        self._listed_whole.update(self.tree.nodes(node))

    def is_left(self, node: cst.CSTNode) -> bool:
        """Return whether a node is kept unchanged by `leave`."""
        return node in self._left

    def is_done(self, node: cst.CSTNode) -> bool:
        """Return whether a node is handled: covered, or with an edit of its own."""
        return node in self._done or node in self._edits

    def has_edit(self, node: cst.CSTNode) -> bool:
        """Return whether a node has an edit of its own."""
        return node in self._edits

    def expression(self, template: str, /, **parts: cst.BaseExpression) -> cst.BaseExpression:
        """Return new code as a node, and record the packages that it uses for import.

        A part with a call that the template has several times is evaluated once: a lambda takes it.

        Args:
            template: the code; `tpu` stands for anytpu, and `{name}` for a part.
            parts: the nodes to substitute, by name.
        """
        code = self._own_names(template)
        once = [name for name, part in parts.items() if code.count(f"{{{name}}}") > 1 and m.findall(part, _RUNS)]
        variables = {name: self.tree.free_name(name, f"{name}_", f"old_{name}") for name in once}
        used = {**parts, **{name: cst.Name(variable) for name, variable in variables.items()}}
        new = parse_template_expression(code, **used)  # pyright: ignore[reportArgumentType]
        if not once:
            return new
        made = cst.Lambda(cst.Parameters([cst.Param(cst.Name(variable)) for variable in variables.values()]), new)
        return cst.Call(
            made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]), [cst.Arg(parts[name]) for name in once]
        )

    def statement(self, template: str, **parts: Any) -> Any:
        """Return a new statement as a node; see `expression`."""
        return parse_template_statement(self._own_names(template), **parts)

    def _own_names(self, template: str) -> str:
        self.roots.update(root for root in IMPORTS if re.search(rf"(?<![\w.\"]){re.escape(root)}(?=\.|$)", template))
        return re.sub(r"(?<![\w.])tpu\.", f"{self.tpu}.", template)

    def say(self, node: cst.CSTNode, advice: str, kind: Any = "by hand", old: str | None = None) -> None:
        """Add a finding about a node, unless one is about the whole subtree around it."""
        if node in self._listed_whole:
            return
        text = self.tree.code(node) if old is None else old
        finding = Finding(self.tree.line(node), text.strip().partition("\n")[0], advice, kind)
        if finding not in self.findings:
            self.findings.append(finding)

    def rebuilt(self, node: Any) -> Any:
        """Return a node with its edits and those of its descendants applied."""
        return node.visit(_Editor(self._edits))

    def rebuilt_lines(self, statement: Any) -> list[Any]:
        """Return the statements that replace a statement: none, one or several."""
        return _lines(self.rebuilt(statement))

    def apply(self) -> cst.Module:
        """Return the program with all edits applied."""
        return self.rebuilt(self.tree.module)


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: dict[cst.CSTNode, Edit]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        if isinstance(original_node, cst.Call) and len(updated_node.args) < len(original_node.args):
            updated_node = _with_old_ending(updated_node, original_node)
        if isinstance(original_node, cst.If) and _has_lost_all(updated_node):
            return cst.RemoveFromParent()
        edit = self._edits.get(original_node)
        return updated_node if edit is None else edit(updated_node)


def _lines(new: Any) -> list[Any]:
    """Return the result of an edit of a statement as a list of statements."""
    if isinstance(new, cst.FlattenSentinel):
        return list(new)
    return [] if isinstance(new, cst.RemovalSentinel) else [new]


def _has_lost_all(statement: cst.If) -> bool:
    """Return whether nothing is left of an `if` whose lines were removed: its test has no effect either."""
    is_empty = isinstance(statement.body, cst.IndentedBlock) and not statement.body.body
    is_simple = isinstance(statement.test, cst.Name | cst.UnaryOperation) and not m.findall(statement.test, _RUNS)
    return is_empty and statement.orelse is None and is_simple


def _with_old_ending(call: cst.Call, before: cst.Call) -> cst.Call:
    """Return a call that lost arguments with its old trailing comma and whitespace."""
    if not call.args:
        return call.with_changes(whitespace_before_args=cst.SimpleWhitespace(""))
    end = before.args[-1]
    last = call.args[-1].with_changes(comma=end.comma, whitespace_after_arg=end.whitespace_after_arg)
    return call.with_changes(args=[*call.args[:-1], last])
