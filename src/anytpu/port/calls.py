"""Replace TensorFlow's names by the table's rules, one name at a time."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import libcst as cst

from anytpu._replaced import Replacement, advice_of
from anytpu.port.edits import Edits
from anytpu.port.rules import rule_of, rules
from anytpu.port.tree import Tree

_PAGE = "docs/migrate.md has what replaces what"
_ARGUMENTS_TO_DROP = {
    "minimize": ("global_step",),
    "map": ("num_parallel_calls", "deterministic"),
    "shuffle": ("reshuffle_each_iteration",),
    "batch": ("num_parallel_calls", "deterministic"),
}
_UNKNOWN = f"no counterpart is known; {_PAGE}"


def plan_calls(edits: Edits) -> None:
    """Plan an edit or a finding for each TensorFlow name that no pattern has handled."""
    for node, name in edits.tree.chains():
        if edits.is_done(node) or edits.is_left(node):
            continue
        rule = rule_of(name)
        if rule is None:
            edits.say(node, _UNKNOWN)
        else:
            _plan(edits, node, name, *rule)


def plan_methods(edits: Edits) -> None:
    """Rename the methods that only TensorFlow has, on any object: their owner's type is not known here."""
    for node in edits.tree.nodes():
        if not isinstance(node, cst.Attribute) or not isinstance(edits.tree.parent(node), cst.Call):
            continue
        row = rules().get(f".{node.attr.value}")
        if row is not None and row.how == "method":
            _rename_attribute(edits, node.attr, row.target)
        elif row is not None and node.attr.value == "numpy":
            _plan_numpy(edits, node)
        elif node.attr.value == "minimize" and _is_old_optimizer(edits.tree, node.value):
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
        if node.func.attr.value == "map" and node.args and _takes_several(tree, node.args[0].value):
            edits.put(node.args[0].value, functools.partial(_spread, edits))


def _takes_several(tree: Tree, function: cst.BaseExpression) -> bool:
    """Return whether a mapped function has several parameters; tf.data unpacks a tuple element into them."""
    if isinstance(function, cst.Lambda):
        return len(function.params.params) > 1
    definitions = [n for n in tree.nodes() if isinstance(n, cst.FunctionDef) and n.name.value == tree.code(function)]
    return bool(definitions) and sum(param.default is None for param in definitions[-1].params.params) > 1


def _spread(edits: Edits, function: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(function, cst.Lambda):
        function = function.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return edits.expression("lambda row: {function}(*row)", function=function)


def _is_old_optimizer(tree: Tree, value: cst.BaseExpression) -> bool:
    name = tree.old_name(value.func) if isinstance(value, cst.Call) else None
    return bool(name) and name.startswith("train.") and name.endswith("Optimizer") and rule_of(name) is not None


def _with_minimize(edits: Edits, method: cst.Attribute) -> cst.BaseExpression:
    return method.with_changes(value=edits.expression("tpu.CrossShardOptimizer({inner})", inner=method.value))


def _rename_attribute(edits: Edits, name: cst.Name, target: str) -> None:
    edits.put(name, lambda updated: updated.with_changes(value=target))


def _plan_numpy(edits: Edits, method: cst.Attribute) -> None:
    call = edits.tree.parent(method)
    is_variable = isinstance(method.value, cst.Attribute) and method.value.attr.value == "iterations"
    if isinstance(call, cst.Call) and call.func is method and not call.args and not is_variable:
        convert = "keras.ops.convert_to_numpy({value})"
        edits.put(call, lambda updated: edits.expression(convert, value=updated.func.value))


def _plan(edits: Edits, node: cst.Name | cst.Attribute, name: str, key: str, row: Replacement) -> None:
    call = edits.tree.parent(node)
    called = call if isinstance(call, cst.Call) and call.func is node else None
    rest = name.removeprefix(key).count(".")
    if row.how == "drop" and _drop(edits, node, called):
        return
    if row.how == "call" and called is not None and not rest and _fill(edits, called, row):
        return
    if row.how == "rename":
        _rename(edits, node, rest, row, called)
    elif not edits.is_done(node):
        edits.say(node, advice_of(row))


def _rename(edits: Edits, node: cst.CSTNode, rest: int, row: Replacement, called: cst.Call | None) -> None:
    """Replace the part of a dotted name that the rule covers, such as `tf.keras` in `tf.keras.layers.Dense`."""
    part = node
    for _ in range(rest):
        part = part.value if isinstance(part, cst.Attribute) else part
    # After `from tensorflow.keras.layers import Dense`, only the import changes; the name `Dense` is kept.
    is_imported_name = isinstance(part, cst.Name) and row.target.startswith("keras")
    if not is_imported_name:
        target = row.target.replace("*", (edits.tree.old_name(part) or "").rpartition(".")[2])
        edits.put(part, lambda _: edits.expression(target), covers=node)
    else:
        edits.cover(node)
    if called is not None and row.keywords:
        for argument in called.args:
            _keyword(edits, argument, row.keywords)


def _keyword(edits: Edits, argument: cst.Arg, keywords: Mapping[str, str | None]) -> None:
    if argument.keyword is None or argument.keyword.value not in keywords:
        return
    new = keywords[argument.keyword.value]
    if new is None:
        edits.drop(argument)
    else:
        _rename_attribute(edits, argument.keyword, new)


def _drop(edits: Edits, node: cst.CSTNode, called: cst.Call | None) -> bool:
    """Remove a decorator or a statement, or turn `tf.function(f)` into `f`; return False where none applies."""
    tree, whole = edits.tree, called or node
    above = tree.parent(whole)
    if isinstance(above, cst.Decorator):
        edits.drop(above)
        return True
    if isinstance(above, cst.Expr) or (isinstance(above, cst.Attribute) and tree.is_statement(above)):
        edits.drop(tree.statement(whole) if len(_siblings(tree, whole)) == 1 else _small(tree, whole))
        return True
    if called is not None and called.args and not called.args[0].keyword and not called.args[0].star:
        edits.put(called, lambda updated: updated.args[0].value, covers=node)
        return True
    return False


def _small(tree: Tree, node: cst.CSTNode) -> cst.CSTNode:
    while not isinstance(node, cst.BaseSmallStatement):
        node = tree.parent(node) or tree.module
    return node


def _siblings(tree: Tree, node: cst.CSTNode) -> list[cst.CSTNode]:
    line = tree.statement(node)
    return list(line.body) if isinstance(line, cst.SimpleStatementLine) else []


def _fill(edits: Edits, call: cst.Call, row: Replacement) -> bool:
    """Put the arguments of a call into the rule's template; return False if an argument does not fit."""
    arguments: dict[str, cst.Arg] = {}
    kept_keywords: list[cst.Arg] = []
    names = [*row.parameters, *([""] * len(call.args))]
    for positional_name, argument in zip(names, call.args, strict=False):
        name = argument.keyword.value if argument.keyword else positional_name
        if argument.star or name not in {*row.parameters, *row.keywords}:
            return False
        if name in row.parameters:
            arguments[name] = argument
        else:
            kept_keywords.append(argument)
            _keyword(edits, argument, row.keywords)
    if any(default is None and name not in arguments for name, default in row.parameters.items()):
        return False

    def filled(_: cst.Call) -> cst.BaseExpression:
        values: dict[str, Any] = {n: edits.rebuilt(argument.value) for n, argument in arguments.items()}
        missing = {n: default for n, default in row.parameters.items() if n not in arguments and default is not None}
        defaults = {n: cst.parse_expression(default) for n, default in missing.items()}
        used = {n: part for n, part in (defaults | values).items() if f"{{{n}}}" in row.target}
        new_call: Any = edits.expression(row.target, **used)
        keywords = [a for a in map(edits.rebuilt, kept_keywords) if isinstance(a, cst.Arg)]
        last = [keyword.with_changes(comma=cst.MaybeSentinel.DEFAULT) for keyword in keywords]
        return new_call.with_changes(args=[*new_call.args, *last]) if last else new_call

    edits.put(call, filled, covers=call.func)
    for name, argument in arguments.items():
        if f"{{{name}}}" not in row.target:
            edits.cover(argument)
    return True
