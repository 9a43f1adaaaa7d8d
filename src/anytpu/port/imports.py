"""The imports of a program: TensorFlow's go when nothing needs them any more, ours come where the first of them stood.

Rule: anytpu is imported before keras, since it chooses Keras's backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node

from anytpu.port.edits import Edits
from anytpu.port.rules import rule_of
from anytpu.port.tree import TENSORFLOW, Tree, bound_name, canonical


def name_for_anytpu(tree: Tree) -> str:
    """Return the name that anytpu has in a program, or gets: "tpu", or "anytpu" where something else is called tpu."""
    for node in tree.nodes():
        if isinstance(node, cst.ImportAlias) and get_full_name_for_node(node.name) == "anytpu":
            return bound_name(node)
    bindings = {n.value for n in tree.bindings()}
    return "anytpu" if "tpu" in bindings else "tpu"


def plan_imports(edits: Edits) -> None:
    """Decide on TensorFlow's imports, once everything else is decided."""
    tree = edits.tree
    needed = {_head(node) for node, _ in tree.chains() if not edits.is_done(node)}
    for node in tree.nodes():
        if isinstance(node, cst.Import) and any(_is_old(_full(alias)) for alias in node.names):
            _plan_import(edits, node, needed)
        elif isinstance(node, cst.ImportFrom) and node.module and _is_old(get_full_name_for_node(node.module) or ""):
            _plan_import_from(edits, node, needed)


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
        elif bound in needed:
            lines.setdefault(module or "", []).append(edits.tree.code(alias).rstrip(", ()\n"))
    code = [f"from {home} import {', '.join(names)}" if names else home for home, names in lines.items()]
    _replace(edits, node, code, is_same=set(lines) == {module} and len(lines[module or ""]) == len(node.names))


def _in_keras(old: str) -> str | None:
    """Return where a name of tf.keras is in Keras, or None for a name of anything else."""
    found = rule_of(old)
    if found is None or found[1].how != "rename" or not found[1].target.startswith("keras"):
        return None
    return found[1].target + old.removeprefix(found[0])


def _replace(edits: Edits, node: cst.CSTNode, lines: Sequence[str], is_same: bool) -> None:
    """Put other imports in place of one; it is a statement of its own, or one of several on a line."""
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

    def apart(_: cst.SimpleStatementLine) -> cst.FlattenSentinel:
        first = line.with_changes(body=[new[0]])
        return cst.FlattenSentinel([first, *(cst.SimpleStatementLine([one]) for one in new[1:])])

    edits.put(line, apart)


def _is_alone(tree: Tree, node: cst.CSTNode) -> bool:
    line = tree.statement(node)
    return isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1


def plan_new_imports(edits: Edits) -> None:
    """Import what the new lines name, once, before the first import of TensorFlow or Keras."""
    body, tpu = edits.tree.module.body, edits.tpu
    lines = {
        "tpu": ("import anytpu" if tpu == "anytpu" else f"import anytpu as {tpu}", tpu),
        "keras": ("import keras", "keras"),
        "logging": ("import logging", "logging"),
        "optax": ("import optax", "optax"),
    }
    have = {
        bound_name(a) for one in _small(body) if isinstance(one, cst.Import) for a in one.names if not _is_old(_full(a))
    }
    wanted = [line for root, (line, bound) in lines.items() if root in edits.roots and bound not in have]
    if wanted:
        edits.put_before(_anchor(body), [cst.parse_statement(line) for line in wanted])


def _anchor(body: Sequence[cst.CSTNode]) -> cst.CSTNode:
    """Return the statement before which the new imports go."""
    for one in body:
        inner = _small([one]) if isinstance(one, cst.SimpleStatementLine) else list(_imports_in(one))
        modules = [name for node in inner for name in _modules(node)]
        if any(_is_old(name) or name.split(".")[0] == "keras" for name in modules):
            return one
    return next(one for number, one in enumerate(body) if not _is_opening(one, number))


def _imports_in(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    """Yield the imports in a compound statement of the program's top level; those of functions come later."""
    if not isinstance(node, cst.FunctionDef | cst.ClassDef):
        for child in node.children:
            yield from [child] if isinstance(child, cst.Import | cst.ImportFrom) else _imports_in(child)


def _modules(node: cst.CSTNode) -> list[str]:
    if isinstance(node, cst.Import):
        return [_full(alias) for alias in node.names]
    if isinstance(node, cst.ImportFrom) and node.module and not node.relative:
        return [get_full_name_for_node(node.module) or ""]
    return []


def _is_opening(statement: cst.CSTNode, number: int) -> bool:
    """Tell whether a statement has to stay first: the docstring, and what comes from `__future__`."""
    small = _small([statement])
    is_docstring = number == 0 and bool(small) and isinstance(small[0], cst.Expr)
    return is_docstring or any(_modules(one) == ["__future__"] for one in small)


def _small(body: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
    return [small for line in body if isinstance(line, cst.SimpleStatementLine) for small in line.body]
