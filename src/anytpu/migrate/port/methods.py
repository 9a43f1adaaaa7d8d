"""Rename the methods that only TensorFlow has, on any object, and drop the arguments that only its methods have."""

from __future__ import annotations

import functools
import re

import libcst as cst
import libcst.matchers as m

from anytpu.migrate.port.arguments import keyword_of, lambda_in_parentheses
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.filling import apply_to_member
from anytpu.migrate.port.rules import rules
from anytpu.migrate.replaced.table import Replacement, advice, advice_of, facts

_UNPACKED = ("map", "filter", "flat_map", "interleave")
"""Methods of tf.data that unpack a tuple element into the parameters of their function."""


def plan_methods(edits: Edits) -> None:
    """Rename the methods that only TensorFlow has, on any object: their owner's type is not known here."""
    for node in edits.tree.all(cst.Attribute):
        if edits.is_done(node) or edits.tree.old_name(node) is not None:
            continue
        row, call = _row_of(edits, node), edits.tree.parent_call(node)
        if node.attr.value == "numpy" and (row is None or row.target != "{self}"):
            _plan_numpy(edits, node)
        elif node.attr.value == "SerializeToString" and "example" not in edits.values.of(node.value):
            if any(name == "train.Example" for _, name in edits.tree.chains()):
                edits.say(call or node, advice("serialized example"))
        elif row is not None and (row.how != "drop" or isinstance(edits.tree.parent(call or node), cst.Expr)):
            apply_to_member(edits, node, row)
        elif node.attr.value == "minimize" and edits.values.of(node.value) == {"optax"}:
            # optax optimizers have no `minimize`; `tpu.CrossShardOptimizer` adds it.
            inner = node.value
            edits.compose(inner, lambda updated: edits.expression("tpu.CrossShardOptimizer({inner})", inner=updated))
        elif edits.values.of(node.value) == {"optax"} and node.attr.value not in ("init", "update"):
            edits.say(call or node, advice_of(rules()[".compute_gradients"]))
        elif m.matches(node, m.Attribute(m.Subscript(), m.Name("value"))) and _is_size(edits, node.value):
            edits.put(node, lambda updated: updated.value)


def _row_of(edits: Edits, node: cst.Attribute) -> Replacement | None:
    """Return the row for a member of any object.

    A row ".eval(feed_dict)" is for calls with this keyword. In programs for TensorFlow 1 a row ".eval(first)" is for
    calls with nothing or a dictionary. A row ".shape.rank" is for this member of a shape.
    """
    name, call = node.attr.value, edits.tree.parent_call(node)
    made = [part.func if isinstance(part, cst.Call) else part for part in edits.tree.sources(node.value)]
    keys = [f".{part.attr.value}.{name}" for part in made if isinstance(part, cst.Attribute)]
    arguments = call.args if call is not None else ()
    keys += [f".{name}({keyword_of(argument)})" for argument in arguments]
    is_fed = call is not None and all(isinstance(argument.value, cst.Dict) for argument in arguments)
    keys += [f".{name}(first)"] if is_fed and edits.tree.is_for_first else []
    return next((rules()[key] for key in (*keys, f".{name}") if key in rules()), None)


def _is_size(edits: Edits, item: cst.BaseExpression) -> bool:
    """Return whether an item is one of a shape, which TensorFlow 1 gave as a `Dimension` with a value."""
    code = edits.tree.code(item.value) if isinstance(item, cst.Subscript) else ""
    return bool(re.search(r"(shape(\(\))?|\.dims)$", code))


def plan_arguments(edits: Edits) -> None:
    """Drop arguments that only TensorFlow's methods have, and unpack the tuples that functions of data sets get."""
    dropped = facts("arguments that are dropped")
    for call in edits.tree.all(cst.Call):
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        for argument in call.args:
            if keyword_of(argument) in dropped.get(method, ()):
                edits.drop(argument)
        passed = call.args[0].value if call.args and method in _UNPACKED else None
        if passed is not None and not edits.has_edit(passed) and takes_several(edits, passed):
            edits.put(passed, functools.partial(_spread, edits))


def takes_several(edits: Edits, passed: cst.BaseExpression) -> bool:
    """Return whether a mapped function has several parameters; tf.data unpacks a tuple element into them."""
    functions = edits.values.functions(passed)
    if not functions:
        return False
    node = functions[-1].node
    names = [parameter.name.value for parameter in node.params.params if parameter.default is None]
    names = names[edits.tree.class_of_method(node) is not None :]
    if isinstance(passed, cst.Call):  # functools.partial
        bound = [keyword_of(argument) for argument in passed.args[1:]]
        names = [name for name in names[bound.count("") :] if name not in bound]
    return len(names) > 1


def _spread(edits: Edits, function: cst.BaseExpression) -> cst.BaseExpression:
    return edits.expression("lambda row: {function}(*row)", function=lambda_in_parentheses(function))


def _plan_numpy(edits: Edits, method: cst.Attribute) -> None:
    call = edits.tree.parent_call(method)
    is_variable = isinstance(method.value, cst.Attribute) and method.value.attr.value == "iterations"
    if call is not None and not call.args and not is_variable:
        is_host = bool(edits.values.of(method.value) & {"element"})
        convert = "np.asarray({value})" if is_host else "keras.ops.convert_to_numpy({value})"
        parent = edits.tree.parent(call)
        if is_host and parent is not None and m.matches(parent, m.Attribute(attr=m.Name("decode"))):
            convert = "bytes({value})"
        # TensorFlow returns a NumPy scalar for a tensor without axes, which a dictionary takes as a key.
        convert += "[()]" if _is_key(edits, call) else ""
        edits.put(call, lambda updated: edits.expression(convert, value=updated.func.value))


def _is_key(edits: Edits, call: cst.Call) -> bool:
    """Return whether a value is used as an index, itself or through a variable that it is assigned to."""
    statement = edits.tree.parent(call)
    targets = [target.target for target in statement.targets] if isinstance(statement, cst.Assign) else []
    reads = [read for target in targets if isinstance(target, cst.Name) for read in edits.tree.reads_of(target)]
    return any(isinstance(edits.tree.parent(use), cst.Index) for use in (call, *reads))
