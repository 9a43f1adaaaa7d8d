"""Plan the imports: remove TensorFlow's unused ones and insert anytpu's before the first of them.

Rule: anytpu is imported before keras, since it chooses Keras's backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node

from anytpu.port.edits import Edits
from anytpu.port.rules import new_name, rule_of
from anytpu.port.tree import TENSORFLOW, Tree, bound_name, canonical


def name_for_anytpu(tree: Tree) -> str:
    """Return the variable that anytpu is imported as: the program's own, else "tpu", else "anytpu" if tpu is taken."""
    for node in tree.nodes():
        if isinstance(node, cst.ImportAlias) and get_full_name_for_node(node.name) == "anytpu":
            return bound_name(node)
    bindings = {n.value for n in tree.bindings()}
    return "anytpu" if "tpu" in bindings else "tpu"


def plan_imports(edits: Edits) -> None:
    """Plan TensorFlow's imports; call it after the plans for all names."""
    tree = edits.tree
    needed = {_head(node) for node, _ in tree.chains() if not edits.is_done(node)}
    for node in tree.nodes():
        if isinstance(node, cst.Import) and any(_is_old(_full(alias)) for alias in node.names):
            _plan_import(edits, node, needed)
        elif isinstance(node, cst.ImportFrom) and node.module and not node.relative:
            module = get_full_name_for_node(node.module) or ""
            if _is_old(module) or (module.partition(".")[0] == "keras" and _has_moved(module, node)):
                _plan_import_from(edits, node, needed)


def _has_moved(module: str, node: cst.ImportFrom) -> bool:
    """Return whether an import from Keras 2 names something that Keras 3 has in another place."""
    names = [] if isinstance(node.names, cst.ImportStar) else [f"{module}.{_full(alias)}" for alias in node.names]
    return any(_in_keras(name) not in (None, name) for name in names)


def _head(node: cst.CSTNode) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _full(alias: cst.ImportAlias) -> str:
    return get_full_name_for_node(alias.name) or ""


def _is_old(name: str) -> bool:
    return bool(TENSORFLOW.match(name))


def _plan_import(edits: Edits, node: cst.Import, needed: set[str]) -> None:
    lines = []
    for alias in node.names:
        keras = _in_keras(canonical(_full(alias))) if alias.asname else None
        if not _is_old(_full(alias)) or (bound_name(alias) in needed and not keras):
            lines.append(f"import {edits.tree.code(alias).rstrip(', ')}")
        elif keras:
            edits.roots.add("keras")
            if keras != "keras" or bound_name(alias) != "keras":
                lines.append(f"import {keras} as {bound_name(alias)}")
    old = [f"import {edits.tree.code(alias).rstrip(', ')}" for alias in node.names]
    _replace(edits, node, lines, is_same=lines == old)


def _plan_import_from(edits: Edits, node: cst.ImportFrom, needed: set[str]) -> None:
    module = get_full_name_for_node(node.module) if node.module else ""
    if isinstance(node.names, cst.ImportStar):
        keras = _in_keras(canonical(module or ""))
        _replace(edits, node, [f"from {keras} import *"] if keras else [], is_same=not keras)
        return
    lines: dict[str, list[str]] = {}
    for alias in node.names:
        old, bound = canonical(f"{module}.{_full(alias)}"), bound_name(alias)
        keras = _in_keras(old)
        if keras == "keras":
            edits.roots.add("keras")
            if bound != "keras":
                lines.setdefault(f"import keras as {bound}", [])
        elif keras:
            home, _, name = keras.rpartition(".")
            lines.setdefault(home, []).append(name if name == bound else f"{name} as {bound}")
        elif bound in needed or not _is_old(module or ""):
            lines.setdefault(module or "", []).append(edits.tree.code(alias).rstrip(", ()\n"))
    code = [f"from {home} import {', '.join(names)}" if names else home for home, names in lines.items()]
    old_names = [edits.tree.code(alias).rstrip(", ()\n") for alias in node.names]
    _replace(edits, node, code, is_same=lines == {module: old_names})


def _in_keras(old: str) -> str | None:
    """Return the Keras name for a tf.keras name, or None for any other name."""
    rule = rule_of(old)
    if rule is None or rule[1].how != "rename" or not rule[1].target.startswith("keras"):
        return None
    return new_name(old)


def _replace(edits: Edits, node: cst.CSTNode, lines: Sequence[str], is_same: bool) -> None:
    """Replace an import by others, also where it shares its line with more statements (`import a; import b`)."""
    if is_same:
        return
    if not lines:
        edits.drop(edits.tree.statement(node) if _is_alone(edits.tree, node) else node)
        return
    new: list[Any] = [cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine).body[0] for line in lines]
    if not _is_alone(edits.tree, node):
        edits.put(node, lambda _: cst.FlattenSentinel(new))
        return
    line: Any = edits.tree.statement(node)

    def one_per_line(_: cst.SimpleStatementLine) -> cst.FlattenSentinel:
        first = line.with_changes(body=[new[0]])
        return cst.FlattenSentinel([first, *(cst.SimpleStatementLine([statement]) for statement in new[1:])])

    edits.put(line, one_per_line)


def _is_alone(tree: Tree, node: cst.CSTNode) -> bool:
    line = tree.statement(node)
    return isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1


def plan_new_imports(edits: Edits) -> None:
    """Import the packages that the inserted code uses, once, before the first import of TensorFlow or Keras."""
    body, tpu = edits.tree.module.body, edits.tpu
    lines = {
        "tpu": ("import anytpu" if tpu == "anytpu" else f"import anytpu as {tpu}", tpu),
        "keras": ("import keras", "keras"),
        "logging": ("import logging", "logging"),
        "optax": ("import optax", "optax"),
        "np": ("import numpy as np", "np"),
        "fsspec": ("import fsspec", "fsspec"),
        "os": ("import os", "os"),
        "absl.app": ("import absl.app", "absl"),
        "absl.flags": ("import absl.flags", "absl"),
    }
    imports = [statement for statement in _small(body) if isinstance(statement, cst.Import)]
    bound_already = {bound_name(a) for statement in imports for a in statement.names if not _is_old(_full(a))}
    missing = [line for root, (line, bound) in lines.items() if root in edits.roots and bound not in bound_already]
    if missing:
        edits.put_before(_anchor(body), [cst.parse_statement(line) for line in missing])


def _anchor(body: Sequence[cst.CSTNode]) -> cst.CSTNode:
    """Return the statement before which the new imports go."""
    for statement in body:
        is_line = isinstance(statement, cst.SimpleStatementLine)
        imports = _small([statement]) if is_line else list(_imports_in(statement))
        modules = [name for node in imports for name in _modules(node)]
        if any(_is_old(name) or name.split(".")[0] == "keras" for name in modules):
            return statement
    return next(statement for index, statement in enumerate(body) if not _must_stay_first(statement, index))


def _imports_in(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    """Yield the imports in a top-level compound statement; those in functions and classes run later and are skipped."""
    if not isinstance(node, cst.FunctionDef | cst.ClassDef):
        for child in node.children:
            yield from [child] if isinstance(child, cst.Import | cst.ImportFrom) else _imports_in(child)


def _modules(node: cst.CSTNode) -> list[str]:
    if isinstance(node, cst.Import):
        return [_full(alias) for alias in node.names]
    if isinstance(node, cst.ImportFrom) and node.module and not node.relative:
        return [get_full_name_for_node(node.module) or ""]
    return []


def _must_stay_first(statement: cst.CSTNode, index: int) -> bool:
    """Return whether a statement has to precede all others: the docstring and the `__future__` imports."""
    small_statements = _small([statement])
    is_docstring = index == 0 and bool(small_statements) and isinstance(small_statements[0], cst.Expr)
    return is_docstring or any(_modules(small) == ["__future__"] for small in small_statements)


def _small(body: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
    return [small for line in body if isinstance(line, cst.SimpleStatementLine) for small in line.body]
