"""Check the uses of values whose class is known: only members and keywords that the class has pass.

Rule: every other use is rewritten by the table, or listed with what to write instead. The members come from the class
itself (`known.py`), so this check and the class cannot disagree.
"""

from __future__ import annotations

import functools
import re

import libcst as cst

from anytpu.migrate.port import known, old_api
from anytpu.migrate.port.arguments import with_keyword
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.filling import apply_to_member
from anytpu.migrate.port.fitting import fit_arguments, old_class
from anytpu.migrate.port.kinds import GIVES_SHAPE, IN_MODEL, IN_SEQUENTIAL, OF_ANY_CLASS
from anytpu.migrate.port.known import Definition
from anytpu.migrate.port.rules import rules
from anytpu.migrate.port.tree import parameter_names
from anytpu.migrate.replaced.table import Replacement, advice, facts

_MAX_LISTED = 24


def plan_uses(edits: Edits) -> None:
    """Plan an edit or a finding for each member of a known value, and for each keyword of its calls."""
    for node in edits.tree.all(cst.Attribute):
        if not edits.is_done(node) and not edits.is_left(node) and edits.tree.old_name(node) is None:
            _plan_member(edits, node)
    for call in edits.tree.all(cst.Call):
        _plan_layer_call(edits, call)


def _plan_layer_call(edits: Edits, call: cst.Call) -> None:
    """Fit the arguments of a layer's call, with `training` by keyword: by position Keras 3 takes tensors alone."""
    owners = [owner for owner in edits.values.classes(call.func) if known.is_below(owner, "keras.layers.Layer")]
    own = [function.node for function in edits.values.called(call)]
    if owners and own:
        names = parameter_names(own[0])[1:]
        passed = list(zip(names, call.args, strict=False))
        for name, argument in passed[names.index("training") if "training" in names else len(names) :]:
            if argument.keyword is None and not argument.star:
                edits.compose(argument, functools.partial(with_keyword, name=name))
    elif owners and (old := old_class(owners[0])) is not None:
        method = known.members(owners[0]).get("call")
        accepted = known.parameters(method) if method is not None else None
        fit_arguments(
            edits,
            call,
            old_api.member(old, "call"),
            method,
            keywords={},
            shown=owners[0].name,
            accepted=accepted and accepted | {"training", "mask"},
            by_keyword="training",
        )


def _plan_member(edits: Edits, node: cst.Attribute) -> None:
    owners, name = edits.values.classes(node.value), node.attr.value
    made = edits.tree.parent_call(node)
    is_own = name in edits.values.own_members(node.value)
    if name == "__init__" and made is not None and owners and not is_own and (old := old_class(owners[0])) is not None:
        fit_arguments(edits, made, old, owners[0], keywords={}, shown=owners[0].name)
    if not edits.values.of(node.value):
        owners = _owners_by_member(edits, node, made)
    if "dataset options" in edits.values.of(node.value):
        edits.drop_statement(node)
        return
    checked = [(owner, old) for owner in owners for new, old in facts("owners").items() if known.is_below(owner, new)]
    call = "()" if made is not None else ""
    rows = (rules().get(f"{old}.{name}{ending}") for _, old in checked for ending in (call, ""))
    row = next((row for row in rows if row is not None), None)
    has_member = any(name in known.members(owner) for owner in owners)
    if not checked or is_own or (name.startswith("_") and row is None) or f".{name}" in rules():
        return
    unseen = facts("members that no class shows").get(name, "")
    is_known = has_member or any(known.is_below(owner, unseen) for owner in owners)
    if row is not None:
        _apply(edits, node, row, has_member)
    elif not is_known and not edits.tree.is_stored(node) and _is_gone(edits, node, owners):
        edits.say(made or node, _unknown(checked[0][0], name))
        return
    _fit(edits, node, owners, row)


def _owners_by_member(edits: Edits, node: cst.Attribute, call: cst.Call | None) -> list[Definition]:
    """Return the class of a value that is not known, if its member says it; list a name of a variable."""
    name = node.attr.value
    comparison = edits.tree.around(node, cst.Comparison) if name == "name" else None
    texts = [text for text in edits.tree.nodes(comparison) if isinstance(text, cst.SimpleString)] if comparison else ()
    if any(re.search(r"\w/\w|:0", text.value) for text in texts):
        edits.say(node, advice("name of a variable"))  # Only a variable's is "dense_1/kernel:0".
    said = "keras.Model" if name == "compile" and len(call.args if call else ()) > 2 else facts("members").get(name, "")
    owner = known.find(said)
    return [owner] if owner is not None else []


def _is_gone(edits: Edits, node: cst.Attribute, owners: list[Definition]) -> bool:
    """Return whether a member that the new class lacks is missed: a class below may have it, if Keras 2's had not."""
    old = old_class(owners[0])
    is_old = old is not None and old_api.member(old, node.attr.value) is not None
    return is_old or OF_ANY_CLASS not in edits.values.of(node.value)


def _fit(edits: Edits, node: cst.Attribute, owners: list[Definition], row: Replacement | None) -> None:
    """Fit the arguments of a method's call, if the method stays one under its old name or another."""
    call = edits.tree.parent_call(node)
    if call is None or edits.is_done(call) or (row is not None and row.how not in ("method", "same", "pattern")):
        return
    name = row.target if row is not None and row.how == "method" else node.attr.value
    found = [(owner, method) for owner in owners if (method := known.members(owner).get(name)) is not None]
    # A method that only forwards, such as `fit` of a converted model, says less than that of the other class.
    found.sort(key=lambda pair: getattr(known.declared(pair[1]), "vararg", None) is not None)
    if not found:
        return
    accepted = [known.parameters(method) for _, method in found]
    owner, method = found[0]
    old = old_class(owner)
    fit_arguments(
        edits,
        call,
        old_api.member(old, node.attr.value) if old is not None else None,
        method,
        keywords=row.keywords if row is not None else {},
        shown=f"{owner.name}.{name}",
        accepted=None if None in accepted else frozenset().union(*(names or () for names in accepted)),
    )


def _apply(edits: Edits, node: cst.Attribute, row: Replacement, has_member: bool) -> None:
    """Apply a row for a member; a member that the new class has stays."""
    template, kinds = row.target, edits.values.of(node.value)
    if ".path" in template and IN_SEQUENTIAL in kinds and GIVES_SHAPE.search(edits.tree.module.code):
        template = template.replace(".path", '.path.partition("/")[2]')
        if IN_MODEL in kinds:
            edits.say(node, advice("two paths"))
    if not has_member or row.how in ("call", "method"):
        apply_to_member(edits, node, row, template)


def _unknown(owner: Definition, name: str) -> str:
    shown = "tpu.pipeline.Dataset" if known.find("anytpu.pipeline.Dataset") == owner else owner.name
    names = sorted(n for n, member in known.members(owner).items() if member is not None and not n.startswith("_"))
    if len(names) > _MAX_LISTED:
        return advice("no such member of many", shown=shown, name=name)
    return advice("no such member", shown=shown, name=name, names=", ".join(names))
