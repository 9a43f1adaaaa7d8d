"""Give random functions of steps and layers a seed generator: an unseeded draw in a traced step would be a constant.

Rule: a function draws from a generator of the program, and a method of a layer from the layer's own. A model function
makes a generator.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from anytpu.port import known
from anytpu.port.edits import Edits
from anytpu.port.rules import new_name, rule_of

_GENERATOR = "keras.random.SeedGenerator()"
_NAMES = ("seed_generator", "step_seeds", "seeds_of_steps")
_LAMBDA = (
    "a Lambda has no state, so its random numbers would never change: write a layer with "
    "self.seed_generator = keras.random.SeedGenerator(), and pass seed=self.seed_generator"
)


def plan_seeds(edits: Edits) -> None:
    """Plan a seed for each random function in a step, and the generators that the seeds come from."""
    tree = edits.tree
    taken = {n.value for n in tree.names()}
    shared = next(name for name in _NAMES if name not in taken)
    owners: set[cst.ClassDef] = set()
    users: list[cst.CSTNode] = []
    in_lambdas = functions_of_lambdas(edits)
    for node in tree.nodes():
        call = tree.parent_call(node)
        if call is None or not _is_random(edits, node) or _has_seed(edits, call):
            continue
        function = tree.function(node)
        if function is None or edits.values.is_host(node) or _is_constructor(function):
            continue
        if function in in_lambdas:
            edits.say(call, _LAMBDA)
            continue
        owner = _layer_around(edits, node)
        if owner is not None:
            owners.add(owner)
            _seed(edits, call, "self.seed_generator")
        elif _is_in_model_function(edits, node):
            _seed(edits, call, _GENERATOR)
        else:
            users.append(_top_statement(edits, node))
            _seed(edits, call, shared)
    for owner in owners:
        _give_generator(edits, owner)
    if users:
        edits.put_before(users[0], [edits.statement(f"{shared} = {_GENERATOR}")])


def _is_constructor(function: cst.CSTNode) -> bool:
    """Return whether a function makes variables: it is never traced, so it needs no seed."""
    return isinstance(function, cst.FunctionDef) and function.name.value in ("__init__", "build")


def _is_random(edits: Edits, node: cst.CSTNode) -> bool:
    old = edits.tree.library_name(node)
    rule = rule_of(old) if old is not None else None
    if old is None or rule is None:
        return False
    return rule[1].target.startswith("keras.random.") or (new_name(old) or "").startswith("keras.random.")


def _has_seed(edits: Edits, call: cst.Call) -> bool:
    """Return whether a call has a seed that works in a step: a generator, not an integer of TensorFlow's."""
    seeds = [argument.value for argument in call.args if argument.keyword and argument.keyword.value == "seed"]
    return any(edits.values.is_a(seed, "keras.random.SeedGenerator") for seed in seeds)


def functions_of_lambdas(edits: Edits) -> set[cst.CSTNode]:
    """Return the functions that `Lambda` layers call."""
    found: set[cst.CSTNode] = set()
    for node in edits.tree.nodes():
        if isinstance(node, cst.Call) and node.args and edits.tree.library_name(node.func) == "keras.layers.Lambda":
            found |= {function.node for function in edits.values.functions(node.args[0].value)}
    return found


def _layer_around(edits: Edits, node: cst.CSTNode) -> cst.ClassDef | None:
    owner = edits.tree.class_around(node)
    if owner is None:
        return None
    layer = known.find("keras.layers.Layer")
    return owner if any(layer in known.ancestors(base) for base in edits.values.bases_of(owner)) else None


def _is_in_model_function(edits: Edits, node: cst.CSTNode) -> bool:
    function = edits.tree.function(node)
    while function is not None:
        names = {parameter.name.value for parameter in function.params.params}
        if {"features", "labels", "mode"} <= names:
            return True
        function = edits.tree.function(function)
    return False


def _top_statement(edits: Edits, node: cst.CSTNode) -> cst.CSTNode:
    while edits.tree.parent(node) is not edits.tree.module:
        node = edits.tree.parent(node) or edits.tree.module
    return node


def _seed(edits: Edits, call: cst.Call, seed: str) -> None:
    """Add `seed=` to a call after its other edits."""

    def seeded(updated: Any) -> Any:
        value = edits.expression(seed)
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        kept = [argument for argument in updated.args if not (argument.keyword and argument.keyword.value == "seed")]
        last = [kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if kept else []
        return updated.with_changes(args=[*kept[:-1], *last, cst.Arg(value, cst.Name("seed"), equal=equal)])

    edits.put_after(call, seeded)


def _give_generator(edits: Edits, owner: cst.ClassDef) -> None:
    """Let a layer make its seed generator: at the end of `__init__`, or in a new one."""
    line = f"self.seed_generator = {_GENERATOR}"
    for statement in owner.body.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == "__init__":
            edits.put_after(statement, lambda updated: _with_line(updated, edits.statement(line)))
            return
    constructor = edits.statement(f"def __init__(self, **kwargs):\n    super().__init__(**kwargs)\n    {line}")
    first = owner.body.body[0]
    is_text = isinstance(first, cst.SimpleStatementLine) and isinstance(first.body[0], cst.Expr)

    def with_constructor(updated: Any) -> Any:
        body = list(updated.body.body)
        empty = constructor.with_changes(leading_lines=[cst.EmptyLine(indent=False)] if is_text else [])
        rest = body[is_text:]
        rest[0] = rest[0].with_changes(
            leading_lines=[cst.EmptyLine(indent=False), *[x for x in rest[0].leading_lines if x.comment]]
        )
        return updated.with_changes(body=updated.body.with_changes(body=[*body[:is_text], empty, *rest]))

    edits.put_after(owner, with_constructor)


def _with_line(function: Any, line: Any) -> Any:
    return function.with_changes(body=function.body.with_changes(body=[*function.body.body, line]))
