"""Rewrite branches and loops on values: `tf.cond` and `tf.while_loop`."""

from __future__ import annotations

import libcst as cst

from anytpu.port.arguments import argument_of, in_parentheses
from anytpu.port.edits import Edits
from anytpu.port.seeds import is_random
from anytpu.port.values import parameter_names

_BOTH = "a branch of a step cannot draw random numbers for a tuple: draw them before keras.ops.cond"


def plan_branches(edits: Edits) -> None:
    """Plan each `tf.cond` that Keras's `cond` does not replace, and arrays of NumPy indexed in a loop."""
    for call in edits.tree.all(cst.Call):
        name = edits.tree.old_name(call.func)
        if name == "cond":
            _plan_condition(edits, call)
        elif name == "while_loop":
            _plan_loop(edits, call)


def _plan_condition(edits: Edits, call: cst.Call) -> None:
    """Make a condition on the host Python's own; draw in both branches of a step, and choose.

    A generator of seeds cannot change inside a branch that JAX traces.
    """
    test = argument_of(call, 0, "pred")
    branches = [argument_of(call, 1, "true_fn", "fn1"), argument_of(call, 2, "false_fn", "fn2")]
    if test is None or None in branches:
        return
    passed = [branch.value for branch in branches]
    if edits.values.is_host(call):
        template = "{true} if {test} else {false}"
    elif any(_draws(edits, branch) for branch in passed):
        template = "keras.ops.where({test}, {true}, {false})"
        if any(isinstance(branch, cst.Lambda) and isinstance(branch.body, cst.Tuple | cst.List) for branch in passed):
            edits.say(call, _BOTH)
            return
    else:
        return

    def chosen(_: cst.Call) -> cst.BaseExpression:
        true, false = (_value_of(edits, branch) for branch in passed)
        new = edits.expression(template, test=edits.rebuilt(test.value), true=true, false=false)
        is_alone = isinstance(edits.tree.parent(call), cst.Assign | cst.Return | cst.Arg)
        return new if is_alone or isinstance(new, cst.Call) else in_parentheses(new)

    edits.put(call, chosen, covers=call.func)


def _value_of(edits: Edits, branch: cst.BaseExpression) -> cst.BaseExpression:
    """Return the result of a branch: the body of a lambda, or a call of a function."""
    if not isinstance(branch, cst.Lambda):
        return cst.Call(edits.rebuilt(branch))
    body = edits.rebuilt(branch.body)
    is_loose = isinstance(body, cst.IfExp | cst.Lambda | cst.Tuple) and not body.lpar
    return in_parentheses(body) if is_loose else body


def _draws(edits: Edits, branch: cst.CSTNode) -> bool:
    """Return whether a branch draws random numbers, also in the functions of the program that it calls."""
    seen = [function.node for function in edits.values.functions(branch)]
    for function in seen:  # It grows meanwhile.
        for node in edits.tree.nodes(function):
            call = edits.tree.parent_call(node)
            if call is not None and is_random(edits, node):
                return True
            seen += [own.node for own in edits.values.functions(node) if own.node not in seen] if call else []
    return False


def _plan_loop(edits: Edits, call: cst.Call) -> None:
    """Make tensors of the arrays of NumPy that a loop indexes by its variables: JAX traces the loop."""
    passed = [argument_of(call, 0, "cond"), argument_of(call, 1, "body")]
    for function in (f.node for part in passed if part is not None for f in edits.values.functions(part.value)):
        variables = set(parameter_names(function))
        for item in (node for node in edits.tree.nodes(function) if isinstance(node, cst.Subscript)):
            index = {name.value for part in item.slice for name in edits.tree.names(part)}
            if index & variables and edits.tree.is_numpy(item.value) and not edits.has_edit(item.value):
                edits.put(
                    item.value,
                    lambda updated: edits.expression("keras.ops.convert_to_tensor({array})", array=updated),
                )
