"""Rewrite branches and loops on values: `tf.cond` and `tf.while_loop`."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m

from anytpu.port.arguments import argument_of, in_parentheses
from anytpu.port.edits import Edits
from anytpu.port.kinds import TENSORS
from anytpu.port.rules import new_name
from anytpu.port.seeds import is_random
from anytpu.port.values import parameter_names

_BOTH = "a branch of a step cannot draw random numbers: draw them before keras.ops.cond"
_PURE = ("keras.ops.", "keras.random.", "keras.activations.", "keras.losses.")
_RUN_OTHERS = re.compile(r"(associative_scan|cond|fori_loop|map|scan|switch|vectorized_map|while_loop)$")
"""Functions of `keras.ops` that run functions of the program."""
_RETURN_SEVERAL = re.compile(
    r"(array_split|divmod|eigh?|i?rfft|i?fft2?|frexp|histogram|lu_factor|meshgrid|modf|moments|nonzero|qr|shape|slogdet|"
    r"i?stft|split|svd|top_k|unstack)$"
)
"""Functions of `keras.ops` that may return several arrays."""
_ONE = cst.Name | cst.Call | cst.Subscript | cst.BinaryOperation | cst.UnaryOperation | cst.BaseNumber
_LOOSE = cst.IfExp | cst.Lambda | cst.Tuple | cst.NamedExpr


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
        if not all(_is_one_array(edits, branch) for branch in passed):  # `where` runs both.
            edits.say(call, _BOTH)
            return
    else:
        return

    def chosen(_: cst.Call) -> cst.BaseExpression:
        true, false = (_value_of(edits, branch) for branch in passed)
        new = edits.expression(template, test=_tight(edits.rebuilt(test.value)), true=true, false=false)
        is_alone = isinstance(edits.tree.parent(call), cst.Assign | cst.Return | cst.Arg)
        is_alone &= "\n" not in edits.tree.code(new)
        return new if is_alone or isinstance(new, cst.Call) else in_parentheses(new)

    edits.put(call, chosen, covers=call.func)


def _value_of(edits: Edits, branch: cst.BaseExpression) -> cst.BaseExpression:
    """Return the result of a branch: the body of a lambda, or a call of a function."""
    if not isinstance(branch, cst.Lambda):
        return cst.Call(_tight(edits.rebuilt(branch)))
    return _tight(edits.rebuilt(branch.body))


def _tight(part: cst.BaseExpression) -> cst.BaseExpression:
    return in_parentheses(part) if isinstance(part, _LOOSE) and not part.lpar else part


def _is_one_array(edits: Edits, branch: cst.BaseExpression) -> bool:
    """Return whether a branch is a function that only returns one array: it changes nothing, whoever runs it."""
    functions = [function.node for function in edits.values.functions(branch)]
    for function in functions:  # It grows meanwhile.
        result = _only_result(function)
        if result is None or not _is_array(edits, result):
            return False
        for node in edits.tree.nodes(result):
            if isinstance(node, cst.NamedExpr | cst.Await | cst.Yield | cst.Lambda):
                return False
            if isinstance(node, cst.Call) and not _library_function(edits, node):
                called = [own.node for own in edits.values.functions(node.func)]
                if not called:
                    return False
                functions += [own for own in called if own not in functions]
    return bool(functions)


def _only_result(function: cst.FunctionDef | cst.Lambda) -> cst.BaseExpression | None:
    """Return what a function returns that does nothing else; None for another function."""
    if isinstance(function, cst.Lambda):
        return function.body
    parts = [line.body if isinstance(line, cst.SimpleStatementLine) else [line] for line in function.body.body]
    lines = [line for part in parts for line in part]
    last = lines[-1] if lines else None
    is_text = all(m.matches(line, m.Expr(m.SimpleString())) for line in lines[:-1])
    return last.value if is_text and isinstance(last, cst.Return) else None


def _library_function(edits: Edits, call: cst.Call) -> str:
    """Return the new last name of a function that only computes; "" for another one."""
    new = new_name(edits.tree.library_name(call.func) or "") or ""
    last = new.rpartition(".")[2]
    return last if new.startswith(_PURE) and not _RUN_OTHERS.match(last) else ""


def _is_array(edits: Edits, value: cst.BaseExpression) -> bool:
    """Return whether a value is one array or a number; False if it is not known."""
    assigned = edits.tree.values_assigned_to(value.value) if isinstance(value, cst.Name) else [value]
    calls = [call for call in assigned if isinstance(call, cst.Call) and edits.tree.library_name(call.func)]
    names = [_library_function(edits, call) for call in calls]
    kinds = edits.values.of(value)
    is_known = isinstance(value, cst.BaseNumber) or (bool(kinds) and kinds <= TENSORS)
    return is_known and isinstance(value, _ONE) and all(name and not _RETURN_SEVERAL.match(name) for name in names)


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
