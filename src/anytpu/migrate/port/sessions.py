"""Rewrite TF 1 sessions that only reach the TPU; list those that train.

Rule: `sess.run(tpu.initialize_system())` becomes the call itself, and `sess.list_devices()` `tpu.list_devices()`. In a
program without variables and placeholders, `sess.run(outputs)` becomes `outputs`, which is computed already. A `with
tf.Session(...)` whose session has no other use is replaced by its body.
"""

from __future__ import annotations

import libcst as cst

from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.rules import rule_of, rules
from anytpu.migrate.port.tree import Tree
from anytpu.migrate.replaced.table import Replacement, advice_of

_SESSIONS = ("Session", "InteractiveSession", "train.MonitoredTrainingSession")
_GRAPH = ("placeholder", "placeholder_with_default", "Variable", "get_variable")
_SYSTEM = ("initialize_system", "shutdown_system")


def plan_sessions(edits: Edits) -> None:
    """Plan an edit or findings for each `with tf.Session(...) as sess`."""
    for block in edits.tree.all(cst.With):
        items = [item for item in block.items if _old_name(edits.tree, item.item) in _SESSIONS]
        if items:
            _plan(edits, block, items[0])


def _old_name(tree: Tree, expression: cst.CSTNode | None) -> str | None:
    """Return the TensorFlow name that an expression calls; None if it is no such call."""
    return tree.old_name(expression.func) if isinstance(expression, cst.Call) else None


def _plan(edits: Edits, block: cst.With, item: cst.WithItem) -> None:
    tree, name = edits.tree, item.asname.name if item.asname else None
    uses = [n for n in tree.names(block.body) if isinstance(name, cst.Name) and n.value == name.value]
    rewritten = [use for use in uses if _plan_use(edits, use)]
    for use in uses:
        call = tree.parent_call(tree.parent(use) or use)
        fetched = call.args[0].value if call is not None and call.args else None
        if use not in rewritten and _old_name(tree, fetched) is None:
            edits.say(tree.statement(use), advice_of(_row_of_use(tree, use, fetched)))
            edits.mark(tree.parent(use) or use)
    if len(rewritten) == len(uses) and uses and len(block.items) == 1 and isinstance(block.body, cst.IndentedBlock):
        edits.put_body(block, item)


def _row_of_use(tree: Tree, use: cst.Name, fetched: cst.BaseExpression | None) -> Replacement:
    """Return the row for what a session runs, where a variable has it, or for the function that gets the session."""
    above = tree.around(use, cst.Call)
    saver = above.func if above is not None and isinstance(tree.parent(use), cst.Arg) else None
    values = tree.sources(saver.value) if isinstance(saver, cst.Attribute) else tree.sources(fetched)
    names = [name for value in values if (name := _old_name(tree, value)) is not None]
    if {"Variable", "get_variable"} & {*names}:
        return rules()["Variable.eval"]
    found = (rule_of(name) for name in names)
    return next((rule[1] for rule in found if rule is not None and rule[1].how == "hand"), rules()["Session"])


def _plan_use(edits: Edits, use: cst.Name) -> bool:
    """Rewrite a session call that only reaches the TPU; return False for any other use."""
    tree, method = edits.tree, edits.tree.parent(use)
    call = tree.parent_call(method) if isinstance(method, cst.Attribute) else None
    if call is None or not isinstance(method, cst.Attribute):
        return False
    if method.attr.value == "list_devices":
        edits.put(call, lambda _: edits.expression("tpu.list_devices()"), covers=call)
        return True
    fetched = call.args[0].value if method.attr.value == "run" and len(call.args) == 1 else None
    is_system = (_old_name(tree, fetched) or "").rpartition(".")[2] in _SYSTEM
    # With placeholders, variables or optimizers a session computes something anew.
    has_graph = any(name in _GRAPH or name.endswith("Optimizer") for _, name in tree.chains())
    is_again = tree.around(call, cst.While, cst.For) is not None  # Each run of a graph takes the next batch.
    is_computed = fetched is not None and not isinstance(fetched, cst.Call) and not has_graph and not is_again
    if is_system or is_computed:
        edits.put(call, lambda updated: updated.args[0].value)
    return is_system or is_computed
