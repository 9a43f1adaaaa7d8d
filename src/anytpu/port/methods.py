"""Rename the methods that only TensorFlow has, on any object, and drop the arguments that only its methods have."""

from __future__ import annotations

import functools

import libcst as cst

from anytpu.port.edits import Edits
from anytpu.port.filling import drop_statement, fill, rename_attribute
from anytpu.port.rules import rule_of, rules

_ARGUMENTS_TO_DROP = {
    "minimize": ("global_step",),
    "map": ("num_parallel_calls", "deterministic"),
    "interleave": ("num_parallel_calls", "deterministic"),
    "shuffle": ("reshuffle_each_iteration",),
    "batch": ("num_parallel_calls", "deterministic"),
    "padded_batch": ("num_parallel_calls", "deterministic"),
}
_UNPACKED = ("map", "filter", "flat_map", "interleave")
"""Methods of tf.data that unpack a tuple element into the parameters of their function."""


def plan_methods(edits: Edits) -> None:
    """Rename the methods that only TensorFlow has, on any object: their owner's type is not known here."""
    for node in edits.tree.nodes():
        if not isinstance(node, cst.Attribute) or edits.is_done(node) or edits.tree.old_name(node) is not None:
            continue
        row = rules().get(f".{node.attr.value}")
        call = edits.tree.parent_call(node)
        if row is not None and row.how == "method" and call is not None:
            rename_attribute(edits, node.attr, row.target)
        elif row is not None and node.attr.value == "numpy":
            _plan_numpy(edits, node)
        elif row is not None and row.how == "call" and call is not None:
            fill(edits, call, row)
        elif row is not None and row.how == "drop" and isinstance(edits.tree.parent(call or node), cst.Expr):
            drop_statement(edits, node)
        elif node.attr.value == "minimize" and _is_old_optimizer(edits, node.value):
            # optax optimizers have no `minimize`; `tpu.CrossShardOptimizer` adds it.
            edits.put(node, functools.partial(_with_minimize, edits))


def plan_arguments(edits: Edits) -> None:
    """Drop arguments that only TensorFlow's methods have, such as `global_step` and `num_parallel_calls`."""
    tree = edits.tree
    for node in tree.nodes():
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            continue
        dropped = _ARGUMENTS_TO_DROP.get(node.func.attr.value, ())
        for argument in node.args:
            if argument.keyword is not None and argument.keyword.value in dropped:
                edits.drop(argument)
        is_free = bool(node.args) and not edits.has_edit(node.args[0].value)
        if is_free and node.func.attr.value in _UNPACKED and takes_several(edits, node.args[0].value):
            edits.put(node.args[0].value, functools.partial(_spread, edits))


def takes_several(edits: Edits, passed: cst.BaseExpression) -> bool:
    """Return whether a mapped function has several parameters; tf.data unpacks a tuple element into them."""
    functions = edits.values.functions(passed)
    if not functions:
        return False
    node = functions[-1].node
    names = [parameter.name.value for parameter in node.params.params if parameter.default is None]
    if isinstance(node, cst.FunctionDef) and edits.tree.class_of_method(node) is not None:
        names = names[1:]
    if isinstance(passed, cst.Call):  # functools.partial
        bound = [argument.keyword.value if argument.keyword else "" for argument in passed.args[1:]]
        names = [name for name in names[bound.count("") :] if name not in bound]
    return len(names) > 1


def _spread(edits: Edits, function: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(function, cst.Lambda):
        function = function.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return edits.expression("lambda row: {function}(*row)", function=function)


def _is_old_optimizer(edits: Edits, value: cst.BaseExpression) -> bool:
    name = edits.tree.old_name(value.func) if isinstance(value, cst.Call) else None
    return bool(name) and name.startswith("train.") and name.endswith("Optimizer") and rule_of(name) is not None


def _with_minimize(edits: Edits, method: cst.Attribute) -> cst.BaseExpression:
    return method.with_changes(value=edits.expression("tpu.CrossShardOptimizer({inner})", inner=method.value))


def _plan_numpy(edits: Edits, method: cst.Attribute) -> None:
    call = edits.tree.parent_call(method)
    is_variable = isinstance(method.value, cst.Attribute) and method.value.attr.value == "iterations"
    if call is not None and not call.args and not is_variable:
        is_host = bool(edits.values.of(method.value) & {"element"})
        convert = "np.asarray({value})" if is_host else "keras.ops.convert_to_numpy({value})"
        edits.put(call, lambda updated: edits.expression(convert, value=updated.func.value))
