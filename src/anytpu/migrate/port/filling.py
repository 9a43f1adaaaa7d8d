"""Apply a row of the table to a call: fill its template, rename or drop its keywords, or remove its statement."""

from __future__ import annotations

import functools
import re
from typing import Any

import libcst as cst

from anytpu.migrate.port import old_api
from anytpu.migrate.port.arguments import in_parentheses, keyword_of, with_keyword
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.signatures import is_default, names_by_position
from anytpu.migrate.replaced.table import Replacement, advice_of

_LOWER = ("mode", "padding", "compression_type", "options")
_WINDOWS = ("strides", "ksize")
_ONLY_NUMBERS = ("num_or_size_splits",)
"""Arguments of which a list means something else in Keras."""
OWNER = "self"
"""The template's name for the object whose method is called."""


def rename_attribute(edits: Edits, name: cst.Name, target: str) -> None:
    """Give an attribute or a keyword another name."""
    edits.put(name, lambda updated: updated.with_changes(value=target))


def _keep(edits: Edits, argument: cst.Arg, new: str | None) -> None:
    """Pass an argument by its new keyword, or drop it."""
    if new is None:
        edits.drop(argument)
    elif argument.keyword is not None:
        rename_attribute(edits, argument.keyword, new)
    else:
        edits.compose(argument, functools.partial(with_keyword, name=new))


def fill(
    edits: Edits,
    call: cst.Call,
    row: Replacement,
    target: str = "",
    *,
    old: str | None = None,
    **more: cst.BaseExpression,
) -> bool:
    """Put the arguments of a call into the row's template; return False if an argument does not fit.

    Args:
        edits: the planned edits.
        call: the call to replace.
        row: the row with the template.
        target: another template with the same parameters; "" for the row's own.
        old: the recorded name of the old function; None if only the row says what it takes.
        more: further parts of the template, by name.
    """
    template = target or row.target
    # 1. The arguments by the names in the template. If one does not fit, nothing is planned.
    sorted_arguments = _sort(edits, call, row, old)
    if sorted_arguments is None:
        return False
    arguments, kept = sorted_arguments
    if any(row.keywords[name] is not None for name in kept) and not template.endswith(")"):
        return False
    for name, argument in kept.items():
        _keep(edits, argument, row.keywords[name])

    # 2. The new code is made when the edits are applied, because its arguments have edits of their own.
    def filled(_: cst.Call) -> cst.BaseExpression:
        values: dict[str, Any] = {n: edits.rebuilt(argument.value) for n, argument in arguments.items()}
        if isinstance(call.func, cst.Attribute) and f"{{{OWNER}}}" in template:
            values[OWNER] = edits.rebuilt(call.func.value)
        missing = {n: default for n, default in row.parameters.items() if n not in arguments and default is not None}
        defaults = {n: cst.parse_expression(default) for n, default in missing.items()}
        others = {n: edits.rebuilt(part) for n, part in more.items()}
        used = {n: part for n, part in (defaults | values | others).items() if f"{{{n}}}" in template}
        used = {n: _operand(_adapted(part, n), n, template) for n, part in used.items()}
        return _with_keywords(edits.expression(template, **used), [edits.rebuilt(a) for a in kept.values()])

    # 3. Plan it. What the template leaves out is handled by it; the parts that it keeps follow their own rules.
    if template == f"{{{OWNER}}}" and drop_self_assignment(edits, call):
        return True
    edits.put(call, filled)
    if f"{{{OWNER}}}" in template:
        edits.mark(call.func)
    else:
        edits.cover(call.func)
    for name, argument in arguments.items():
        if f"{{{name}}}" not in template:
            edits.cover(argument)
    return True


def fill_as_function(edits: Edits, node: cst.Name | cst.Attribute, row: Replacement, template: str) -> bool:
    """Put a lambda in place of a function that is passed on, not called; return False if a lambda cannot replace it."""
    required = [name for name, default in row.parameters.items() if default is None]
    if (not required and "{" in template) or f"{{{OWNER}}}" in template:
        return False
    required, code = required or ["*_"], template
    for name, default in row.parameters.items():
        code = code.replace(f"{{{name}}}", name if default is None else default)
    edits.put(node, lambda _: in_parentheses(edits.expression(f"lambda {', '.join(required)}: {code}")), covers=node)
    return True


def apply_to_member(edits: Edits, node: cst.Attribute, row: Replacement, template: str = "") -> None:
    """Apply a row to a method or another member of an object; list what it does not fit."""
    call, template = edits.tree.parent_call(node), template or row.target
    if row.how == "method":
        rename_attribute(edits, node.attr, row.target)
    elif row.how == "call" and call is None and not edits.tree.is_stored(node):
        text = edits.tree.around(node, cst.FormattedString)
        if text is not None and text.start[-1] == '"':
            template = template.replace('"', "'")
        edits.put(node, lambda updated: edits.expression(template, **{OWNER: updated.value}))
        edits.mark(node)
    elif row.how == "drop":
        edits.drop_statement(node)
    elif row.how != "same" and not (row.how == "call" and call is not None and fill(edits, call, row)):
        edits.say(call or node, advice_of(row))


def leave_out_method(edits: Edits, call: cst.Call) -> None:
    """Turn `dataset.cache()` into `dataset`, and remove a statement that only did that."""
    if not drop_self_assignment(edits, call):
        edits.put(call, lambda updated: updated.func.value)
        edits.mark(call.func)


def drop_self_assignment(edits: Edits, call: cst.Call) -> bool:
    """Remove a statement that would become `dataset = dataset`; return False for any other."""
    owner = edits.tree.code(call.func.value) if isinstance(call.func, cst.Attribute) else ""
    is_same = edits.tree.target_code(edits.tree.parent(call)) == owner
    if is_same:
        edits.drop_statement(call)
    return is_same


def _sort(
    edits: Edits, call: cst.Call, row: Replacement, old: str | None
) -> tuple[dict[str, cst.Arg], dict[str, cst.Arg]] | None:
    """Return the arguments of the template's parameters and those of the row's keywords; None if one does not fit."""
    arguments: dict[str, cst.Arg] = {}
    kept: dict[str, cst.Arg] = {}
    before = old_api.parameters(old) if old is not None else None
    own = _own_names(row, names_by_position(before))
    names = [*(own.values() or row.parameters), *([""] * len(call.args))]
    for positional_name, argument in zip(names, call.args, strict=False):
        keyword = keyword_of(argument)
        name = own.get(keyword, keyword) if keyword else positional_name
        is_list = isinstance(argument.value, cst.List | cst.Tuple)
        if name in _ONLY_NUMBERS and is_list and f"cumsum({{{name}}})" not in row.target:
            return None
        is_usual = is_default(before, name, edits.tree.code(argument.value))
        if argument.star:
            return None
        if row.parameters.get(name) is not None and is_usual:
            edits.cover(argument)  # The row has a text for a missing argument, and so for its old default.
        elif name in row.parameters:
            arguments[name] = argument
        elif name in row.keywords and not (is_usual and not keyword):
            kept[name] = argument
        elif is_usual or name == "name":
            edits.cover(argument)
        else:
            return None
    if any(default is None and name not in arguments for name, default in row.parameters.items()):
        return None
    return arguments, kept


def _own_names(row: Replacement, positions: list[str]) -> dict[str, str]:
    """Map each old parameter by position to the row's name for it: the same one, or the only one at its position."""
    parameters, names = list(row.parameters), {}
    for index, old in enumerate(positions):
        other = parameters[index] if index < len(parameters) else ""
        is_required = row.parameters.get(other, "") is None
        is_other = old not in {*row.parameters, *row.keywords} and is_required
        names[old] = other if is_other else old
    return names


_TIGHT = cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.SimpleString | cst.List | cst.Dict | cst.BaseNumber


def _operand(part: Any, name: str, template: str) -> Any:
    """Return an argument, in parentheses if an operator next to it in the template could take it apart."""
    is_alone = re.search(rf"[(\[,=]\s?\{{{name}\}}[,)\]]", template)
    return part if is_alone or isinstance(part, _TIGHT) else in_parentheses(part)


def _adapted(part: Any, name: str) -> Any:
    """Return an argument as Keras and NumPy write it: "same" in lower case, windows without batch and channels."""
    if name in _LOWER and isinstance(part, cst.SimpleString):
        return part.with_changes(value=part.value.lower())
    if name in _WINDOWS and isinstance(part, cst.List | cst.Tuple):
        inner = part.elements[1:3] if len(part.elements) == 4 else part.elements
        return cst.Tuple([cst.Element(element.value) for element in inner])
    return part


def _with_keywords(new_call: Any, keywords: list[Any]) -> Any:
    """Return a call with more keyword arguments: on the class that is made, if the template calls what it makes."""
    kept = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in keywords if isinstance(a, cst.Arg)]
    if kept and isinstance(new_call.func, cst.Lambda):
        return new_call.with_changes(func=new_call.func.with_changes(body=_with_keywords(new_call.func.body, kept)))
    if kept and isinstance(new_call.func, cst.Call):
        return new_call.with_changes(func=_with_keywords(new_call.func, kept))
    return new_call.with_changes(args=[*new_call.args, *kept]) if kept else new_call
