"""Keep what Keras 2 did in loops over `train_on_batch`: the flags of `compile`, and metrics of one batch alone."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from anytpu.migrate.port.edits import Edits
from anytpu.migrate.replaced.table import advice

_ON_BATCH = ("train_on_batch", "test_on_batch")


def plan_batches(edits: Edits) -> None:
    """List each `model.trainable = ...` behind `model.compile`, and reset the metrics before each batch."""
    for assign in edits.tree.all(cst.Assign):
        for target in assign.targets:
            if m.matches(target.target, m.Attribute(attr=m.Name("trainable"))):
                _list_flag(edits, assign, target.target)
    for call, method in edits.tree.method_calls(*_ON_BATCH):
        _plan_reset(edits, call, method)


def _list_flag(edits: Edits, assign: cst.Assign, target: cst.BaseAssignTargetExpression) -> None:
    """List a flag of a model that is compiled already: Keras 2 kept the flag from `compile`."""
    assert isinstance(target, cst.Attribute)
    tree, owner = edits.tree, edits.tree.code(target.value)
    compiled = [call for call, method in tree.method_calls("compile") if tree.code(method.value) == owner]
    is_compiled = any(tree.ends_before(call, assign) for call in compiled) or _is_made_compiled(edits, target.value)
    following = set(tree.following(tree.statement(assign)))
    is_compiled_again = any(tree.statement(call) in following for call in compiled)
    if is_compiled and not is_compiled_again:
        edits.say(assign, advice("flag behind compile", model=owner))


def _is_made_compiled(edits: Edits, model: cst.BaseExpression) -> bool:
    """Return whether a model comes from a function of the program that compiles it, also through an attribute."""
    tree, owner = edits.tree, edits.tree.code(model)
    assigns = [assign for assign in tree.all(cst.Assign) if tree.target_code(assign) == owner]
    calls = [assign.value for assign in assigns if isinstance(assign.value, cst.Call)]
    names = {tree.code(call.func).rpartition(".")[2] for call in calls}
    functions = [function for function in tree.all(cst.FunctionDef) if function.name.value in names]
    return any(m.findall(function, m.Call(m.Attribute(attr=m.Name("compile")))) for function in functions)


def _plan_reset(edits: Edits, call: cst.Call, method: cst.Attribute) -> None:
    """Reset the metrics before a batch whose metrics are read: Keras 3 returns the mean of all batches."""
    tree, owner = edits.tree, edits.tree.code(method.value)
    is_read = not isinstance(tree.parent(call), cst.Expr)
    keeps = any(m.matches(argument, m.Arg(m.Name("False"), m.Name("reset_metrics"))) for argument in call.args)
    if not is_read or keeps or method.attr.value in edits.values.own_members(method.value):
        return
    line = tree.statement(call)
    others = [other for other, used in tree.method_calls(*_ON_BATCH) if tree.statement(other) is line]
    is_simple = isinstance(line, cst.SimpleStatementLine) and len(others) == len(line.body) == 1
    if not is_simple or m.findall(method.value, m.Call()) or tree.around(call, cst.Lambda, cst.ListComp) is not None:
        edits.say(call, advice("mean of batches", model=owner))
    else:
        edits.insert_before(line, [edits.statement(f"{owner}.reset_metrics()")])
