"""Check the uses of values whose class is known: only members and keywords that the class has pass.

Rule: every other use is rewritten by the table, or listed with what to write instead. The members come from the class
itself (`known.py`), so this check and the class cannot disagree.
"""

from __future__ import annotations

import libcst as cst

from anytpu._replaced import Replacement, advice_of
from anytpu.port import known
from anytpu.port.edits import Edits
from anytpu.port.filling import drop_statement, fill, rename_attribute, rename_keyword
from anytpu.port.known import Definition
from anytpu.port.rules import rules

OWNERS = {
    "anytpu.pipeline.Dataset": "data.Dataset",
    "anytpu.TPUClusterResolver": "distribute.cluster_resolver.TPUClusterResolver",
    "anytpu.strategy.base.Strategy": "distribute.Strategy",
    "keras.Model": "keras.Model",
    "keras.layers.Layer": "keras.layers.Layer",
    "keras.optimizers.Optimizer": "keras.optimizers.Optimizer",
    "keras.metrics.Metric": "keras.metrics.Metric",
    "keras.losses.Loss": "keras.losses.Loss",
    "keras.callbacks.Callback": "keras.callbacks.Callback",
    "keras.Variable": "Variable",
    "anytpu.TPUEstimator": "estimator.tpu.TPUEstimator",
}
"""Classes whose uses are checked, and the old name that the table's rows for their members start with."""
ADDED = {"keras.metrics.Metric": ("reset_states",), "keras.optimizers.Optimizer": ("minimize",)}
"""Members that anytpu adds to classes of Keras."""
_SHOWN = {"anytpu.pipeline.Dataset": "tpu.pipeline.Dataset"}
_MAX_LISTED = 24


def plan_uses(edits: Edits) -> None:
    """Plan an edit or a finding for each member of a known value, and for each keyword of its calls."""
    for node in edits.tree.nodes():
        is_free = not edits.is_done(node) and not edits.is_left(node)
        if is_free and isinstance(node, cst.Attribute) and edits.tree.old_name(node) is None:
            _plan_member(edits, node)


def _plan_member(edits: Edits, node: cst.Attribute) -> None:
    owners, name = edits.values.classes(node.value), node.attr.value
    if "dataset options" in edits.values.of(node.value):
        drop_statement(edits, node)
        return
    checked = [(owner, old) for owner in owners for new, old in OWNERS.items() if _is_below(owner, new)]
    if not checked or name.startswith("_") or f".{name}" in rules():
        return
    is_known = any(name in known.members(owner) for owner in owners) or _is_added(owners, name)
    rows = [row for _, old in checked if (row := rules().get(f"{old}.{name}"))]
    if rows:
        _apply(edits, node, rows[0], owners)
    elif not is_known and name not in edits.values.own_members(node.value) and not _is_stored(edits, node):
        edits.say(edits.tree.parent_call(node) or node, _unknown(checked[0][0], name))
        return
    if is_known:
        _check_keywords(edits, node, owners)


def _is_added(owners: list[Definition], name: str) -> bool:
    return any(name in names and _is_below(owner, new) for owner in owners for new, names in ADDED.items())


def _is_below(owner: Definition, name: str) -> bool:
    wanted = known.find(name)
    return wanted is not None and wanted in known.ancestors(owner)


def _is_stored(edits: Edits, node: cst.Attribute) -> bool:
    return isinstance(edits.tree.parent(node), cst.AssignTarget)


def _apply(edits: Edits, node: cst.Attribute, row: Replacement, owners: list[Definition]) -> None:
    """Apply a row for a member: its keywords always, the rest only if the new class lacks the member."""
    call, accepted = edits.tree.parent_call(node), _accepted(node, owners)
    for argument in call.args if call is not None else ():
        if argument.keyword is not None and argument.keyword.value not in (accepted or ()):
            rename_keyword(edits, argument, row.keywords)
    if row.how not in ("call", "method") and any(node.attr.value in known.members(owner) for owner in owners):
        return
    if row.how == "method":
        rename_attribute(edits, node.attr, row.target)
    elif row.how == "drop":
        drop_statement(edits, node)
    elif row.how == "call" and call is not None and fill(edits, call, row):
        return
    elif not any(node.attr.value in known.members(owner) for owner in owners):
        edits.say(call or node, advice_of(row))


def _accepted(node: cst.Attribute, owners: list[Definition]) -> frozenset[str] | None:
    """Return the keywords that a method takes; None if it takes any, or is not a method."""
    methods = [method for owner in owners if (method := known.members(owner).get(node.attr.value)) is not None]
    if not methods or any(known.parameters(method) is None for method in methods):
        return None
    return frozenset().union(*(known.parameters(method) or () for method in methods))


def _check_keywords(edits: Edits, node: cst.Attribute, owners: list[Definition]) -> None:
    call, accepted = edits.tree.parent_call(node), _accepted(node, owners)
    if call is not None and accepted is not None:
        for argument in call.args:
            check_keyword(edits, argument, accepted, f"{owners[0].name}.{node.attr.value}")


def check_keyword(edits: Edits, argument: cst.Arg, accepted: frozenset[str], name: str) -> None:
    """List a keyword argument that the new function does not take."""
    keyword = argument.keyword
    if keyword is None or keyword.value in accepted or edits.is_done(argument) or edits.is_done(keyword):
        return
    taken = ", ".join(sorted(accepted)[:_MAX_LISTED])
    edits.say(argument, f"{name} has no argument {keyword.value!r}: leave it out, or use one of its own: {taken}")


def _unknown(owner: Definition, name: str) -> str:
    shown = next((text for new, text in _SHOWN.items() if known.find(new) == owner), owner.name)
    names = sorted(n for n, member in known.members(owner).items() if member is not None and not n.startswith("_"))
    if len(names) > _MAX_LISTED:
        return f"{shown} has no {name}; docs/migrate.md has what replaces what"
    return f"{shown} has no {name}: write it with its own methods, {', '.join(names)}"
