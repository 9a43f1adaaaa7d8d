"""Plan the imports: remove TensorFlow's unused ones and insert anytpu's before the first of them.

Rule: anytpu is imported before keras, since it chooses Keras's backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node

from anytpu.migrate.port.edits import IMPORTS, Edits
from anytpu.migrate.port.known import exists
from anytpu.migrate.port.rules import new_name, rule_of
from anytpu.migrate.port.tree import TENSORFLOW, Tree, bound_name, canonical, head

IMPORTS_KERAS = re.compile(r"^\s*(import|from) keras\b", re.MULTILINE)
"""A program with this runs on the backend that Keras's settings name, if it does not import anytpu first."""


def name_for_anytpu(tree: Tree) -> str:
    """Return the variable that anytpu is imported as: the program's own, else "tpu", else "anytpu" if tpu is taken."""
    own = [bound_name(alias) for alias in tree.all(cst.ImportAlias) if _full(alias) == "anytpu"]
    is_taken = any(n.value == "tpu" and tree.is_stored(n) for n in tree.names())
    return own[0] if own else "anytpu" if is_taken else "tpu"


def plan_imports(edits: Edits) -> None:
    """Plan TensorFlow's imports; call it after the plans for all names."""
    tree = edits.tree
    needed = {tree.code(head(node)) for node, _ in tree.chains() if not edits.is_done(node)}
    for node in tree.all(cst.Import, cst.ImportFrom):
        module = _modules(node)[0] if isinstance(node, cst.ImportFrom) and _modules(node) else ""
        if isinstance(node, cst.Import) and any(map(_is_old, _modules(node))):
            _plan_import(edits, node, needed)
        elif isinstance(node, cst.ImportFrom) and (_is_old(module) or _has_moved(module, node)):
            _plan_import_from(edits, node, module, needed)


def _has_moved(module: str, node: cst.ImportFrom) -> bool:
    """Return whether an import from Keras 2 names something that Keras 3 has under another name."""
    names = [module] if isinstance(node.names, cst.ImportStar) else [f"{module}.{_full(alias)}" for alias in node.names]
    of_keras = [name for name in names if name.startswith("keras.")]
    return any(not exists(name) or _in_keras(name) not in (None, name) for name in of_keras)


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


def _plan_import_from(edits: Edits, node: cst.ImportFrom, module: str, needed: set[str]) -> None:
    if isinstance(node.names, cst.ImportStar):
        old = canonical(module)
        keras = _in_keras(old) or _in_keras(".".join(old.split(".")[:2]))  # of `keras.layers.convolutional`
        _replace(edits, node, [f"from {keras} import *"] if keras else [], is_same=not keras)
        return
    lines: dict[str, list[str]] = {}
    for alias in node.names:
        old, bound = canonical(f"{module}.{_full(alias)}"), bound_name(alias)
        keras = _in_keras(old)
        # What Keras 3 lacks, and no line uses any more, such as `np_utils`.
        is_gone = old.startswith("keras.") and not exists(old) and not _is_used(edits, bound)
        if keras == "keras":
            edits.roots.add("keras")
            if bound != "keras":
                lines.setdefault(f"import keras as {bound}", [])
        elif keras:
            home, _, name = keras.rpartition(".")
            lines.setdefault(home, []).append(name if name == bound else f"{name} as {bound}")
        elif bound in needed or not (_is_old(module) or is_gone):
            lines.setdefault(module, []).append(edits.tree.code(alias).rstrip(", ()\n"))
    code = [f"from {home} import {', '.join(names)}" if names else home for home, names in lines.items()]
    old_names = [edits.tree.code(alias).rstrip(", ()\n") for alias in node.names]
    _replace(edits, node, code, is_same=lines == {module: old_names})


def _is_used(edits: Edits, bound: str) -> bool:
    """Return whether a name that an import binds stays in a line of the program."""
    return any(name.value == bound and not edits.is_done(name) for name in edits.tree.names())


def _in_keras(old: str) -> str | None:
    """Return the Keras name for a tf.keras name, or None for any other name."""
    rule = rule_of(old)
    is_renamed = rule is not None and rule[1].how == "rename" and rule[1].target.startswith("keras")
    return new_name(old) if is_renamed else None


def _replace(edits: Edits, node: cst.CSTNode, lines: Sequence[str], is_same: bool) -> None:
    """Replace an import by others, also where it shares its line with more statements (`import a; import b`)."""
    if is_same:
        return
    if not lines:
        edits.drop_statement(node)
        return
    new: list[Any] = [cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine).body[0] for line in lines]
    if not edits.tree.is_alone(node):
        edits.put(node, lambda _: cst.FlattenSentinel(new))
        return
    line: Any = edits.tree.statement(node)

    def one_per_line(_: cst.SimpleStatementLine) -> cst.FlattenSentinel:
        first = line.with_changes(body=[new[0]])
        return cst.FlattenSentinel([first, *(cst.SimpleStatementLine([statement]) for statement in new[1:])])

    edits.put(line, one_per_line)


def plan_new_imports(edits: Edits, new: str) -> None:
    """Import the packages that the new code uses, once, before the first import of TensorFlow or Keras.

    A program that imports Keras imports anytpu too: alone Keras runs on the backend that its settings name.
    """
    if "keras" in edits.roots or IMPORTS_KERAS.search(new):
        edits.roots.add("tpu")
    body, tpu = edits.tree.module.body, edits.tpu
    lines = {root: (f"import {root}", root.partition(".")[0]) for root in IMPORTS}
    lines["tpu"] = ("import anytpu" if tpu == "anytpu" else f"import anytpu as {tpu}", tpu)
    lines["np"] = ("import numpy as np", "np")
    imported = [alias for node in _small(body) if isinstance(node, cst.Import) for alias in node.names]
    bound_already = {bound_name(alias) for alias in imported if not _is_old(_full(alias))}
    missing = [line for root, (line, bound) in lines.items() if root in edits.roots and bound not in bound_already]
    if missing:
        edits.insert_before(_anchor(body), [cst.parse_statement(line) for line in missing])


def _anchor(body: Sequence[cst.CSTNode]) -> cst.CSTNode:
    """Return the statement before which the new imports go."""
    for statement in body:
        modules = [name for node in _imports_in(statement) for name in _modules(node)]
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
