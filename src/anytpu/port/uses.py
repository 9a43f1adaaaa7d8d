"""Check the uses of values whose class is known: only members and keywords that the class has pass.

Rule: every other use is rewritten by the table, or listed with what to write instead. The members come from the class
itself (`known.py`), so this check and the class cannot disagree.
"""

from __future__ import annotations

import libcst as cst

from anytpu._replaced import Replacement, advice_of
from anytpu.port import known
from anytpu.port.arguments import keyword_of
from anytpu.port.edits import Edits
from anytpu.port.filling import fill, rename_attribute, rename_keyword
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
_ADDED = {
    "reset_states": "keras.metrics.Metric",
    "minimize": "keras.optimizers.Optimizer",
    "compiled_loss": "keras.Model",
    "compiled_metrics": "keras.Model",
}
"""Members that anytpu adds to classes of Keras."""
_OF_BUILT_MODELS = frozenset(["inputs", "outputs", "input_names", "output_names", "input_shape", "output_shape"])
"""Members of a model that is made of its inputs and outputs; `keras.Model` makes one of a class of its own."""
_MAX_LISTED = 24


def plan_uses(edits: Edits) -> None:
    """Plan an edit or a finding for each member of a known value, and for each keyword of its calls."""
    for node in edits.tree.all(cst.Attribute):
        if not edits.is_done(node) and not edits.is_left(node) and edits.tree.old_name(node) is None:
            _plan_member(edits, node)


def _plan_member(edits: Edits, node: cst.Attribute) -> None:
    owners, name = edits.values.classes(node.value), node.attr.value
    if "dataset options" in edits.values.of(node.value):
        edits.drop_statement(node)
        return
    checked = [(owner, old) for owner in owners for new, old in OWNERS.items() if known.is_below(owner, new)]
    is_own = name in edits.values.own_members(node.value)
    call = "()" if edits.tree.parent_call(node) is not None else ""
    rows = (rules().get(f"{old}.{name}{ending}") for _, old in checked for ending in (call, ""))
    row = next((row for row in rows if row is not None), None)
    if not checked or is_own or (name.startswith("_") and row is None) or f".{name}" in rules():
        return
    has_member = any(name in known.members(owner) for owner in owners)
    is_known = has_member or any(known.is_below(owner, _ADDED.get(name, "")) for owner in owners)
    is_known |= name in _OF_BUILT_MODELS and any(known.is_below(owner, "keras.Model") for owner in owners)
    if row is not None:
        _apply(edits, node, row, owners, has_member)
    elif not is_known and not edits.tree.is_stored(node) and "model of any class" not in edits.values.of(node.value):
        edits.say(edits.tree.parent_call(node) or node, _unknown(checked[0][0], name))
        return
    if is_known:
        check_keywords(edits, edits.tree.parent_call(node), _accepted(node, owners), f"{owners[0].name}.{name}")


def _apply(edits: Edits, node: cst.Attribute, row: Replacement, owners: list[Definition], has_member: bool) -> None:
    """Apply a row for a member: its keywords always, the rest only if the new class lacks the member."""
    call, accepted = edits.tree.parent_call(node), _accepted(node, owners) or ()
    for argument in call.args if call is not None else ():
        if keyword_of(argument) not in accepted:
            rename_keyword(edits, argument, row.keywords)
    if row.how == "method":
        rename_attribute(edits, node.attr, row.target)
    elif row.how == "call" and call is not None and fill(edits, call, row):
        return
    elif row.how == "drop" and not has_member:
        edits.drop_statement(node)
    elif not has_member:
        edits.say(call or node, advice_of(row))


def _accepted(node: cst.Attribute, owners: list[Definition]) -> frozenset[str] | None:
    """Return the keywords that a method takes; None if it takes any, or is not a method."""
    methods = [method for owner in owners if (method := known.members(owner).get(node.attr.value)) is not None]
    keywords = [known.parameters(method) for method in methods]
    return frozenset().union(*(names or () for names in keywords)) if keywords and None not in keywords else None


def check_keywords(edits: Edits, call: cst.Call | None, accepted: frozenset[str] | None, name: str) -> None:
    """List the keyword arguments that a function of Keras or anytpu does not take; None accepts any.

    One that is None is left out: it asked for nothing.
    """
    if call is None or accepted is None:
        return
    for argument in call.args:
        keyword = argument.keyword
        if keyword is None or keyword.value in accepted or edits.is_done(argument) or edits.is_done(keyword):
            continue
        if isinstance(argument.value, cst.Name) and argument.value.value == "None":
            edits.drop(argument)
            continue
        taken = ", ".join(sorted(accepted - {""})[:_MAX_LISTED])
        edits.say(argument, f"{name} has no argument {keyword.value!r}: leave it out, or use one of its own: {taken}")


def _unknown(owner: Definition, name: str) -> str:
    shown = "tpu.pipeline.Dataset" if known.find("anytpu.pipeline.Dataset") == owner else owner.name
    names = sorted(n for n, member in known.members(owner).items() if member is not None and not n.startswith("_"))
    if len(names) > _MAX_LISTED:
        return f"{shown} has no {name}; `anytpu docs migrate` has what replaces what"
    return f"{shown} has no {name}: write it with its own methods, {', '.join(names)}"
