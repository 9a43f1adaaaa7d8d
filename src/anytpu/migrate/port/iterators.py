"""Rewrite TensorFlow 1's iterators of data sets.

Idea: `dataset.make_one_shot_iterator().get_next()` was the next batch of each step, in one line of a graph. So an input
function that returns it returns the data set; what it returns beside or around it becomes a `map`.

Rule: where lines between `get_next()` and `return` compute something, or outside of an input function, the line is
listed. In eager code `iterator.get_next()` is `next(iterator)`.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from anytpu.migrate.port.arguments import in_parentheses
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.replaced.table import advice

_MADE = "make_one_shot_iterator"


def plan_iterators(edits: Edits) -> None:
    """Plan each `get_next()` of an iterator that TensorFlow 1 made, and of one that `iter` made."""
    for call, method in edits.tree.method_calls("get_next"):
        made = [part for part in edits.tree.sources(method.value) if _dataset(edits, part) is not None]
        if made:
            _plan_next(edits, call, made[0])
        elif "iterator" in edits.values.of(method.value):
            edits.put(call, lambda updated: edits.expression("next({iterator})", iterator=updated.func.value))


def _dataset(edits: Edits, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the data set of a call that makes an iterator in TensorFlow 1; None for other code."""
    if not isinstance(value, cst.Call):
        return None
    if (edits.tree.old_name(value.func) or "").rpartition(".")[2] == _MADE:
        return value.args[0].value if value.args else None
    is_method = isinstance(value.func, cst.Attribute) and value.func.attr.value == _MADE
    return value.func.value if is_method and isinstance(value.func, cst.Attribute) else None


def _plan_next(edits: Edits, call: cst.Call, made: cst.BaseExpression) -> None:
    tree, dataset = edits.tree, _dataset(edits, made)
    assert dataset is not None
    statement: Any = tree.small_statement(call)
    function = tree.function(call)
    if isinstance(tree.parent(call), cst.Lambda):
        edits.put(call, lambda _: edits.rebuilt(dataset))
        _mark(edits, call, made)
        return
    returned: Any = statement
    targets = ""
    if isinstance(statement, cst.Assign) and isinstance(function, cst.FunctionDef) and statement.value is call:
        following: list[Any] = tree.following(tree.statement(call))
        lines = [line for line in following if isinstance(line, cst.SimpleStatementLine)]
        returned = lines[0].body[0] if len(lines) == len(following) == 1 else None
        targets = tree.target_code(statement) or ""
        target = statement.targets[0].target
        parts = [part.value for part in target.elements] if isinstance(target, cst.Tuple) else [target]
        if not all(isinstance(part, cst.Name) for part in parts):
            returned = None
    is_whole = isinstance(returned, cst.Return) and returned.value is not None
    if not is_whole or (not targets and returned.value is not call):
        edits.say(call, advice("batch of an iterator"))
        edits.cover(call)
        edits.cover(made)
        return
    value: Any = returned.value
    names = targets.strip("()")
    is_same = value is call or tree.code(value).strip("()").rstrip(", ") == names.rstrip(", ")

    def mapped_set(_: Any) -> cst.BaseExpression:
        whole = edits.rebuilt(dataset)
        if is_same:
            return whole
        # tf.data's `map` would unpack the row, and so does `*row`.
        parameters = f"lambda {names}: {{value}}"
        function = f"lambda row: ({parameters})(*row)" if "," in names else parameters
        new = edits.rebuilt(value)
        new = in_parentheses(new) if isinstance(new, cst.Tuple) and not new.lpar else new
        return edits.expression(f"{{dataset}}.map({function})", dataset=whole, value=new)

    edits.put(returned, lambda updated: updated.with_changes(value=mapped_set(updated)))
    for line in {tree.small_statement(call), tree.small_statement(made)} - {returned}:
        if line is not None:  # Its data set stays, so it is not covered.
            edits.put(tree.statement(line) if tree.is_alone(line) else line, lambda _: cst.RemoveFromParent())
    _mark(edits, call, made)


def _mark(edits: Edits, *calls: cst.BaseExpression) -> None:
    """Mark calls and their functions as handled, without the data set in them."""
    for call in calls:
        edits.mark(call)
        if isinstance(call, cst.Call):
            edits.mark(call.func)
