"""Rewrite TF 1 sessions that only reach the TPU; list those that train.

Rule: `sess.run(tpu.initialize_system())` becomes the call itself, and `sess.list_devices()` `tpu.list_devices()`. In a
program without variables and placeholders, `sess.run(outputs)` becomes `outputs`, which is computed already. A `with
tf.Session(...)` whose session has no other use is replaced by its body.
"""

from __future__ import annotations

import libcst as cst

from anytpu._replaced import advice_of
from anytpu.port.edits import Edits
from anytpu.port.rules import rules
from anytpu.port.tree import Tree

_SESSIONS = ("Session", "InteractiveSession", "train.MonitoredTrainingSession")
_GRAPH = ("placeholder", "placeholder_with_default", "Variable", "get_variable")
_SYSTEM = ("initialize_system", "shutdown_system")


def plan_sessions(edits: Edits) -> None:
    """Plan an edit or findings for each `with tf.Session(...) as sess`."""
    for node in edits.tree.nodes():
        if isinstance(node, cst.With) and (item := _session_item(edits.tree, node)):
            _plan(edits, node, item)


def _session_item(tree: Tree, block: cst.With) -> cst.WithItem | None:
    for item in block.items:
        if isinstance(item.item, cst.Call) and tree.old_name(item.item.func) in _SESSIONS:
            return item
    return None


def _plan(edits: Edits, block: cst.With, item: cst.WithItem) -> None:
    tree, name = edits.tree, item.asname.name if item.asname else None
    uses = [n for n in tree.names(block.body) if isinstance(name, cst.Name) and n.value == name.value]
    rewritten = [use for use in uses if _plan_use(edits, use)]
    for use in uses:
        if use not in rewritten and not _fetches_a_call(tree, use):
            edits.say(tree.statement(use), advice_of(rules()["Session"]))
    if len(rewritten) == len(uses) and uses and len(block.items) == 1 and isinstance(block.body, cst.IndentedBlock):
        statements = block.body.body

        def body_alone(_: cst.With) -> cst.FlattenSentinel:
            lines = [line for statement in statements for line in edits.rebuilt_lines(statement)]
            first = lines[0].with_changes(leading_lines=[*block.leading_lines, *lines[0].leading_lines])
            return cst.FlattenSentinel([first, *lines[1:]])

        edits.put(block, body_alone, covers=item)


def _plan_use(edits: Edits, use: cst.Name) -> bool:
    """Rewrite a session call that only reaches the TPU; return False for any other use."""
    tree = edits.tree
    method = tree.parent(use)
    call = tree.parent(method) if isinstance(method, cst.Attribute) else None
    if not isinstance(method, cst.Attribute) or not isinstance(call, cst.Call) or call.func is not method:
        return False
    if method.attr.value == "list_devices":
        edits.put(call, lambda _: edits.expression("tpu.list_devices()"), covers=call)
        return True
    fetched = call.args[0].value if method.attr.value == "run" and len(call.args) == 1 else None
    if fetched is not None and not isinstance(fetched, cst.Call) and not _has_graph(tree):
        edits.put(call, lambda updated: updated.args[0].value)
        return True
    if not isinstance(fetched, cst.Call) or (tree.old_name(fetched.func) or "").rpartition(".")[2] not in _SYSTEM:
        return False
    edits.put(call, lambda updated: updated.args[0].value)
    return True


def _has_graph(tree: Tree) -> bool:
    """Return whether a program has placeholders, variables or optimizers, so that a session computes something anew."""
    return any(name in _GRAPH or name.endswith("Optimizer") for _, name in tree.chains())


def _fetches_a_call(tree: Tree, use: cst.Name) -> bool:
    """Return whether a session runs a TensorFlow call, which gets a finding of its own."""
    fetched = tree.parent(tree.parent(use) or use)
    arguments = fetched.args if isinstance(fetched, cst.Call) else ()
    return bool(arguments) and isinstance(arguments[0].value, cst.Call) and bool(tree.old_name(arguments[0].value.func))
