"""Replace TensorFlow's names by the table's rules, one name at a time.

Rule: a name of Keras or anytpu passes only if the installed package has it, and a keyword only if its function takes
it.
"""

from __future__ import annotations

import difflib

import libcst as cst

from anytpu._replaced import Replacement, advice_of
from anytpu.port import known
from anytpu.port.edits import Edits
from anytpu.port.filling import drop_statement, fill, rename_keyword
from anytpu.port.rules import new_name, rule_of
from anytpu.port.uses import check_keyword
from anytpu.port.variants import variant

_UNKNOWN = "no counterpart is known; docs/migrate.md has what replaces what"


def plan_calls(edits: Edits) -> None:
    """Plan an edit or a finding for each TensorFlow name that no pattern has handled."""
    for node, name in edits.tree.chains():
        if edits.is_done(node) or edits.is_left(node):
            continue
        special = variant(edits.tree, name, edits.tree.parent_call(node))
        rule = (name, special) if special is not None else rule_of(name)
        if rule is None:
            edits.say(edits.tree.parent_call(node) or node, _UNKNOWN, old=edits.tree.code(node))
        else:
            _plan(edits, node, name, *rule)


def plan_keras(edits: Edits) -> None:
    """Check the names that the program imports from the package keras itself, as programs for Keras 2 did."""
    for node in edits.tree.nodes():
        if isinstance(node, cst.Name | cst.Attribute) and not isinstance(edits.tree.parent(node), cst.Attribute):
            name = edits.tree.keras_name(node)
            if name is not None and name != "keras" and not edits.is_done(node):
                rule = rule_of(name)
                _plan(edits, node, name, *rule) if rule is not None else None


def _plan(edits: Edits, node: cst.Name | cst.Attribute, name: str, key: str, row: Replacement) -> None:
    called = edits.tree.parent_call(node)
    is_whole = key == name
    if row.how == "drop" and _drop(edits, node, called):
        return
    if row.how == "call" and called is not None and is_whole:
        host = _template(edits, node, row)
        if (host and fill(edits, called, row, host)) or fill(edits, called, row):
            return
    if row.how == "rename":
        _rename(edits, node, name, row, called)
    elif not edits.is_done(node):
        edits.say(node, advice_of(row))


def _template(edits: Edits, node: cst.CSTNode, row: Replacement) -> str:
    return row.host if edits.is_host(node) and "{rng}" not in row.host else ""


def _rename(edits: Edits, node: cst.CSTNode, name: str, row: Replacement, called: cst.Call | None) -> None:
    """Replace a dotted name by its new full name."""
    host = _template(edits, node, row)
    target = new_name(name)
    if target is None:
        edits.say(node, _gone(name))
        return
    if host:
        target = host.replace("*", name.rpartition(".")[2])
    _put_name(edits, node, name, target)
    if called is not None:
        for argument in called.args:
            rename_keyword(edits, argument, row.keywords)
        _check_keywords(edits, called, target)


def _put_name(edits: Edits, node: cst.CSTNode, old: str, target: str) -> None:
    """Replace a dotted name; one that starts at an import of Keras stays if the new import makes it right."""
    head = node
    while isinstance(head, cst.Attribute):
        head = head.value
    head_old = edits.tree.library_name(head) or ""
    head_new = new_name(head_old) if rule_of(head_old) else None
    if head_new is not None and head_new.startswith("keras") and target == head_new + old.removeprefix(head_old):
        edits.cover(node)
    else:
        edits.put(node, lambda _: edits.expression(target), covers=node)


def _check_keywords(edits: Edits, called: cst.Call, name: str) -> None:
    full = f"anytpu.{name.removeprefix('tpu.')}" if name.startswith("tpu.") else name
    definition = known.find(full)
    accepted = known.parameters(definition) if definition is not None else None
    if accepted is not None:
        for argument in called.args:
            check_keyword(edits, argument, accepted, name)


def _gone(name: str) -> str:
    """Return the advice for a name of Keras or of a data set that the installed packages lack."""
    rule = rule_of(name)
    home, _, last = name.rpartition(".")
    new_home = new_name(home) if home else None
    if rule is None or new_home is None:
        return _UNKNOWN
    full = f"anytpu.{new_home.removeprefix('tpu.')}" if new_home.startswith("tpu.") else new_home
    owner = known.find(full)
    names = known.public_names(full) if owner is None else [n for n in known.members(owner) if not n.startswith("_")]
    near = difflib.get_close_matches(last, names, n=3, cutoff=0.6)
    hint = f"its nearest names are {', '.join(near)}" if near else "docs/migrate.md has what replaces what"
    return f"{new_home} has no {last}; {hint}"


def _drop(edits: Edits, node: cst.CSTNode, called: cst.Call | None) -> bool:
    """Remove a decorator or a statement, or turn `tf.function(f)` into `f`; return False where none applies."""
    tree, whole = edits.tree, called or node
    above = tree.parent(whole)
    if isinstance(above, cst.Decorator):
        edits.drop(above)
        return True
    if isinstance(above, cst.Expr) or (isinstance(above, cst.Attribute) and tree.is_statement(above)):
        drop_statement(edits, whole)
        return True
    if called is not None and called.args and not called.args[0].keyword and not called.args[0].star:
        edits.put(called, lambda updated: updated.args[0].value, covers=node)
        return True
    if isinstance(above, cst.Assign) and not _is_read(edits, above):
        drop_statement(edits, whole)
        return True
    return False


def _is_read(edits: Edits, assign: cst.Assign) -> bool:
    """Return whether a variable that a statement sets is read anywhere in the program."""
    names = {target.target.value for target in assign.targets if isinstance(target.target, cst.Name)}
    return len(names) < len(assign.targets) or any(edits.tree.is_read(name) for name in names)
