"""Rewrite random functions of data sets: `map` becomes `random_map`, which passes a generator.

Idea: each function that draws random numbers, and each function that calls one, takes the generator as a keyword `rng`.
So the numbers depend on the seed, the element and the pass, and not on threads.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from anytpu.migrate.port.arguments import in_parentheses, with_argument
from anytpu.migrate.port.calls import row_of_call
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.filling import fill, rename_attribute
from anytpu.migrate.port.methods import takes_several
from anytpu.migrate.port.tree import parameter_names
from anytpu.migrate.replaced.table import advice


def plan_augmentations(edits: Edits) -> None:
    """Plan the draws, the parameters, the calls and the `map` of all random functions of data sets."""
    tree = edits.tree
    rng = tree.free_name("rng", "generator", "random_generator")
    random_functions = _plan_draws(edits, rng)
    _plan_calls(edits, random_functions, rng)
    for call in tree.all(cst.Call):
        passed = edits.values.functions(call.args[0].value) if call.args else []
        if any(function.node in random_functions for function in passed):
            _plan_map(edits, call, rng)
    for function in random_functions:
        if isinstance(function, cst.FunctionDef):
            edits.put(function.params, lambda updated: _with_parameter(updated, rng))


def _plan_draws(edits: Edits, rng: str) -> set[cst.CSTNode]:
    """Plan the calls that draw random numbers in functions of data sets; return the functions around them."""
    functions: set[cst.CSTNode] = set()
    for node, name in edits.tree.chains():
        call, function = edits.tree.parent_call(node), _around(edits, node)
        rule = row_of_call(edits.tree, name, call)
        if rule is None or call is None or function is None or rule[0] != name or not edits.values.is_host(node):
            continue
        row = rule[1]
        if "{rng}" in row.host and fill(edits, call, row, row.host, rng=cst.Name(rng)):
            functions.add(function)
    return functions


def _around(edits: Edits, node: cst.CSTNode) -> cst.CSTNode | None:
    """Return the innermost function around a node that a data set calls."""
    return next((function for function in edits.tree.functions(node) if function in edits.values.host), None)


def _plan_calls(edits: Edits, random_functions: set[cst.CSTNode], rng: str) -> None:
    """Pass the generator on in the calls of random functions, and add the callers to them."""
    calls = [call for call in edits.tree.all(cst.Call) if edits.values.is_host(call)]
    before = -1
    while before < len(random_functions):
        before = len(random_functions)
        for call in calls:
            caller = _around(edits, call)
            if caller is None:
                continue
            if _is(call.func, random_functions, edits) and not _is_parameter(call.func, caller):
                edits.put(call, lambda updated: with_argument(updated, rng, cst.Name(rng)))
                random_functions.add(caller)
            for argument in call.args:
                if isinstance(argument.value, cst.Name) and _is(argument.value, random_functions, edits):
                    if _is_parameter(argument.value, caller):
                        continue
                    code = f"lambda *args: {{function}}(*args, {rng}={rng})"
                    edits.put(argument.value, lambda updated, code=code: edits.expression(code, function=updated))
                    random_functions.add(caller)


def _is(value: cst.BaseExpression, functions: set[cst.CSTNode], edits: Edits) -> bool:
    """Return whether a value may be one of some functions."""
    return any(own.node in functions for own in edits.values.functions(value))


def _is_parameter(value: cst.BaseExpression, function: Any) -> bool:
    """Return whether a function was passed in: the generator is bound where it is passed."""
    return isinstance(value, cst.Name) and value.value in parameter_names(function)


def _plan_map(edits: Edits, call: cst.Call, rng: str) -> None:
    """Turn `dataset.map(function)` into `dataset.random_map(...)`; list a random function of another method."""
    if (edits.tree.old_name(call.func) or "").endswith("map_and_batch"):
        edits.compose(call, _with_random_map)
    elif not isinstance(call.func, cst.Attribute) or call.func.attr.value != "map":
        if isinstance(call.func, cst.Attribute) and edits.values.is_dataset(call.func.value):
            edits.say(call, advice("random method"))
        return
    else:
        rename_attribute(edits, call.func.attr, "random_map")
    row = "*row" if takes_several(edits, call.args[0].value) else "row"

    def with_generator(updated: cst.BaseExpression) -> cst.BaseExpression:
        if isinstance(updated, cst.Lambda):
            if row == "row":
                return updated.with_changes(params=_with_parameter(updated.params, rng, is_keyword=False))
            updated = in_parentheses(updated.with_changes(params=_with_parameter(updated.params, rng)))
        return edits.expression(f"lambda row, {rng}: {{function}}({row}, {rng}={rng})", function=updated)

    edits.put(call.args[0].value, with_generator)


def _with_random_map(steps: Any) -> Any:
    """Return a chain of method calls with its `map` renamed to `random_map`."""
    if isinstance(steps, cst.Call):
        return steps.with_changes(func=_with_random_map(steps.func))
    if isinstance(steps, cst.Attribute) and steps.attr.value == "map":
        return steps.with_changes(attr=cst.Name("random_map"))
    return steps.with_changes(value=_with_random_map(steps.value)) if isinstance(steps, cst.Attribute) else steps


def _with_parameter(params: cst.Parameters, rng: str, is_keyword: bool = True) -> cst.Parameters:
    new = cst.Param(cst.Name(rng))
    if is_keyword:
        return params.with_changes(kwonly_params=[*params.kwonly_params, new])
    last = [parameter.with_changes(comma=cst.MaybeSentinel.DEFAULT) for parameter in params.params]
    return params.with_changes(params=[*last, new])
