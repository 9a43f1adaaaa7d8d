"""Give random functions of steps and layers a seed generator: an unseeded draw in a traced step would be a constant.

Rule: a function draws from a generator of the program, and a method of a layer from the layer's own. A model function
makes a generator.
"""

from __future__ import annotations

from typing import Any

import libcst as cst

from anytpu.migrate.port.arguments import argument_of, with_argument
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.rules import new_name, rule_of
from anytpu.migrate.port.tree import parameter_names
from anytpu.migrate.port.values import MODEL_FUNCTION
from anytpu.migrate.replaced.table import advice

_GENERATOR = "keras.random.SeedGenerator()"


def plan_seeds(edits: Edits) -> None:
    """Plan a seed for each random function in a step, and the generators that the seeds come from."""
    tree = edits.tree
    shared = tree.free_name("seed_generator", "step_seeds", "seeds_of_steps")
    owners: set[cst.ClassDef] = set()
    # 1. Give each call a seed: of its layer, of a model function, or of one generator for the whole program.
    in_lambdas, first = functions_of_lambdas(edits), None
    for node in tree.all(cst.Name, cst.Attribute):
        call, function = tree.parent_call(node), tree.function(node)
        if call is None or function is None or not is_random(edits, node) or edits.values.is_host(node):
            continue
        given = argument_of(call, "", "seed")
        if given is not None and edits.values.is_a(given.value, "keras.random.SeedGenerator"):
            continue
        if isinstance(function, cst.FunctionDef) and function.name.value in ("__init__", "build"):
            continue  # It makes variables, so it is never traced.
        if function in in_lambdas:
            edits.say(call, advice("random lambda"))
            continue
        owner = tree.around(node, cst.ClassDef)
        if owner is not None and edits.values.is_layer(owner):
            owners.add(owner)
            seed = "self.seed_generator"
        else:
            is_in_model = any(set(parameter_names(around)) >= MODEL_FUNCTION for around in tree.functions(node))
            seed = _GENERATOR if is_in_model else shared
        first = node if seed == shared and first is None else first
        edits.compose(call, lambda updated, seed=seed: with_argument(updated, "seed", edits.expression(seed)))
    # 2. Make the generators. The common one stands before the first statement that uses it.
    for owner in owners:
        _give_generator(edits, owner)
    if first is not None:
        top = next(statement for statement in tree.module.body if first in set(tree.nodes(statement)))
        edits.insert_before(top, [edits.statement(f"{shared} = {_GENERATOR}")])


def is_random(edits: Edits, node: cst.CSTNode) -> bool:
    """Return whether a name is a random function, which draws from a seed generator in a step."""
    old = edits.tree.library_name(node)
    rule = rule_of(old) if old is not None else None
    if old is None or rule is None:
        return False
    return rule[1].target.startswith("keras.random.") or (new_name(old) or "").startswith("keras.random.")


def functions_of_lambdas(edits: Edits) -> set[cst.CSTNode]:
    """Return the functions that `Lambda` layers call."""
    calls = [call for call, name in edits.tree.calls() if name == "keras.layers.Lambda"]
    passed = [call.args[0].value for call in calls if call.args]
    return {function.node for value in passed for function in edits.values.functions(value)}


def _give_generator(edits: Edits, owner: cst.ClassDef) -> None:
    """Let a layer make its seed generator: at the end of `__init__`, or in a new one."""
    line = f"self.seed_generator = {_GENERATOR}"
    for statement in owner.body.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == "__init__":
            block = statement.body
            edits.compose(block, lambda updated: _with_last_line(updated, edits.statement(line)))
            return
    constructor = edits.statement(
        f"def __init__(self, *args, **kwargs):\n    super().__init__(*args, **kwargs)\n    {line}"
    )
    first = owner.body.body[0]
    is_text = isinstance(first, cst.SimpleStatementLine) and isinstance(first.body[0], cst.Expr)

    def with_constructor(updated: Any) -> Any:
        body = list(updated.body.body)
        first_lines = [cst.EmptyLine(indent=False)] if is_text else []
        separated = constructor.with_changes(leading_lines=first_lines)
        rest = body[is_text:]
        rest[0] = rest[0].with_changes(
            leading_lines=[cst.EmptyLine(indent=False), *[x for x in rest[0].leading_lines if x.comment]]
        )
        return updated.with_changes(body=updated.body.with_changes(body=[*body[:is_text], separated, *rest]))

    edits.compose(owner, with_constructor)


def _with_last_line(
    block: cst.IndentedBlock | cst.SimpleStatementSuite, line: cst.SimpleStatementLine
) -> cst.IndentedBlock:
    """Return a block with one more line. Statements on the line of their `def` get lines of their own."""
    if isinstance(block, cst.IndentedBlock):
        return block.with_changes(body=[*block.body, line])
    parts = [part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for part in block.body]
    return cst.IndentedBlock([*(cst.SimpleStatementLine([part]) for part in parts), line])
