"""Print what TensorFlow 2's summaries wrote for TensorBoard, where the value is known when the line runs.

Rule: in a function that JAX traces, and in a graph, the value is not known yet. One finding stands for all summaries
there.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from anytpu.migrate.port.arguments import argument_of
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.replaced.table import advice

_MAKERS = ("summary.create_file_writer", "contrib.summary.create_file_writer")


def plan_summaries(edits: Edits) -> None:
    """Plan the writers, the blocks `with writer.as_default()` and the scalars in them."""
    # 1. Print the scalars. Other summaries stay, and so do all in traced code, with one finding for each function.
    tree = edits.tree
    makers = [node for node, name in tree.chains() if name in _MAKERS]
    targets = {node: tree.target_code(tree.small_statement(node)) for node in makers}
    writers = {code for code in targets.values() if code is not None}
    traced: set[cst.CSTNode | None] = set()
    needs_writer, is_graph = False, any(name.endswith("Session") for _, name in tree.chains())
    for node, name in tree.chains():
        if not name.startswith(("summary.", "contrib.summary.")) or name in _MAKERS:
            continue
        function = tree.function(node)
        if edits.values.is_traced(node) or is_graph:
            if function not in traced:
                edits.say(tree.parent_call(node) or node, advice("print in a step"))
            traced.add(function)
            edits.leave(node)
        elif name == "summary.scalar" and (call := tree.parent_call(node)) is not None:
            _print(edits, call)
        needs_writer = needs_writer or not edits.is_done(node)
    # 2. Remove the writers, their blocks and their last calls, unless a summary stays.
    if needs_writer or not writers:
        return
    for block in tree.all(cst.With):
        is_writer = len(block.items) == 1 and any(
            m.matches(block.items[0].item, m.Call(m.Attribute(attr=m.Name("as_default"))))
            and tree.code(block.items[0].item).startswith(f"{writer}.")
            for writer in writers
        )
        if is_writer and isinstance(block.body, cst.IndentedBlock) and not edits.is_done(block.items[0]):
            edits.put_body(block, block.items[0])
    for call, method in tree.method_calls("flush", "close", "init"):
        if tree.is_statement(call) and tree.code(method.value) in writers:
            edits.drop_statement(call)
    for node in (node for node, code in targets.items() if code is not None):
        edits.drop_statement(node)
        edits.say(node, advice("printed summary"), "note")


def _print(edits: Edits, call: cst.Call) -> None:
    """Turn `tf.summary.scalar(name, value, step=step)` into a `print` of the three."""
    name, value = (argument_of(call, "summary.scalar", *names) for names in (("name",), ("data", "tensor")))
    step = argument_of(call, "summary.scalar", "step")
    if name is None or value is None:
        return
    parts = {"name": name, "value": value} | ({"step": step} if step is not None else {})
    at_step = ", 'at step', int({step})" if step is not None else ""
    code = f"print({{name}}, float({{value}}){at_step})"
    edits.put(call, lambda _: edits.expression(code, **{key: edits.rebuilt(part.value) for key, part in parts.items()}))
    edits.cover(call.func)
