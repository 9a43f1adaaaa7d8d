"""List or rewrite what is different in code that JAX traces: branches on tensors, printing, arrays of unknown size."""

from __future__ import annotations

import libcst as cst

from anytpu.migrate.port.arguments import keyword_of
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.replaced.table import advice, facts

_OF_SHAPES = ("shape", "ndim", "size", "result_type", "dtype")
"""Functions of NumPy that read no values."""


def plan_traced(edits: Edits) -> None:
    """Plan or list the lines of traced functions."""
    for node in edits.tree.all(cst.Slice, cst.Call):
        _list_symbolic(edits, node)
    for node in edits.tree.all(cst.BinaryOperation):
        if "schedule" in edits.values.of(node.left) | edits.values.of(node.right):
            edits.say(node, advice("arithmetic of a schedule"))
    for call, method in edits.tree.method_calls("add_loss"):
        # A model gets a loss from outside, of its symbolic tensors.
        is_model = edits.tree.code(method.value) != "self" and edits.values.is_a(method.value, "keras.Model")
        if is_model and not edits.values.is_traced(call):
            edits.say(call, advice("added loss"))
    for node in edits.tree.all(cst.If, cst.While, cst.IfExp, cst.Assert, cst.Call):
        if isinstance(node, cst.Call) and _is_of_numpy(edits, node):
            edits.say(node, advice("numpy in a step"))
            edits.cover(node)
        elif not edits.values.is_traced(node):
            continue
        elif not isinstance(node, cst.Call):
            if "array" in edits.values.of(node.test):
                kind = "loop" if isinstance(node, cst.While) else "branch"
                edits.say(node.test, advice(f"{kind} in a step"))
        elif edits.tree.old_name(node.func) == "print":
            _plan_print(edits, node)
        elif edits.tree.old_name(node.func) == "where" and len(node.args) == 1:
            edits.say(node, advice("where in a step"))
            edits.leave(node.func)
    _list_summaries(edits)


def _list_summaries(edits: Edits) -> None:
    """List the summaries of traced functions and of graphs, with one finding for each function."""
    listed: set[cst.CSTNode | None] = set()
    tree = edits.tree
    names = {name for _, name in tree.chains()}
    is_graph = tree.is_for_first and not any(
        name.endswith(("enable_eager_execution", "enable_v2_behavior")) for name in names
    )
    for node, name in tree.chains():
        function = tree.function(node)
        # A summary of contrib in a function of a model_fn is in its host call, which gets values.
        is_of_host = (
            name.startswith("contrib.summary.") and function is not None and tree.function(function) is not None
        )
        if not name.startswith(("summary.", "contrib.summary.")) or is_of_host:
            continue
        if (is_graph and name.startswith("summary.")) or edits.values.is_traced(node):
            if function not in listed:
                edits.say(edits.tree.parent_call(node) or node, advice("summary in a step"))
            listed.add(function)
            edits.leave(node)


def _is_of_numpy(edits: Edits, call: cst.Call) -> bool:
    """Return whether NumPy gets a tensor where JAX traces: in a step, or in the body of a tape."""
    tree, values = edits.tree, edits.values
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "numpy":
        is_read = "array" in values.of(call.func.value)
    else:
        is_numpy = (tree.numpy_name(call.func) or "shape").rpartition(".")[2] not in _OF_SHAPES
        is_read = is_numpy and any("array" in values.of(argument.value) for argument in call.args)
    return is_read and (values.is_traced(call) or _is_in_tape(edits, call))


def _is_in_tape(edits: Edits, node: cst.CSTNode) -> bool:
    block = edits.tree.around(node, cst.With, cst.FunctionDef, cst.Lambda)
    items = [item.item for item in block.items] if isinstance(block, cst.With) else []
    return any(isinstance(item, cst.Call) and edits.tree.old_name(item.func) == "GradientTape" for item in items)


def _list_symbolic(edits: Edits, node: cst.Slice | cst.Call) -> None:
    """List slices with bounds that are tensors, and functions of tensors that a model made from inputs lacks."""
    if isinstance(node, cst.Slice):
        bounds = [part for part in (node.lower, node.upper) if part is not None and not _is_counted(edits, part)]
        tensors = [kinds for kinds in map(edits.values.of, bounds) if "array" in kinds]
        if tensors and (edits.values.is_traced(node) or any("symbolic" in kinds for kinds in tensors)):
            edits.say(edits.tree.around(node, cst.Subscript) or node, advice("slice in a step"))
        return
    is_symbolic = any("symbolic" in edits.values.of(argument.value) for argument in node.args[:1])
    is_random = edits.tree.old_name(node.func) in facts("functions")["are random, of tensors"]
    if is_symbolic and is_random and not edits.values.is_traced(node):
        edits.say(node, advice("random function of a model"))
        edits.leave(node.func)


def _is_counted(edits: Edits, bound: cst.BaseExpression) -> bool:
    """Return whether a bound is computed from the variable of a `for` loop over `tf.range`, which becomes `range`."""
    loops = [loop for loop in edits.tree.all(cst.For) if isinstance(loop.iter, cst.Call)]
    counted = {edits.tree.code(x.target) for x in loops if edits.tree.old_name(x.iter.func) == "range"}  # pyright: ignore
    return any(name.value in counted for name in edits.tree.names(bound))


def _plan_print(edits: Edits, call: cst.Call) -> None:
    """Turn `tf.print("loss", loss)` into `jax.debug.print("loss {}", loss)`."""
    is_formatted = any(isinstance(part.value, cst.FormattedString | cst.ConcatenatedString) for part in call.args)
    if is_formatted or any(keyword_of(argument) or argument.star for argument in call.args):
        edits.say(call, advice("print in a step"))
        edits.leave(call.func)
        return
    strings = [part.value.evaluated_value if isinstance(part.value, cst.SimpleString) else None for part in call.args]
    texts = [text if isinstance(text, str) else None for text in strings]
    words = ["{}" if text is None else text.replace("{", "{{").replace("}", "}}") for text in texts]
    values = [argument.value for argument, text in zip(call.args, texts, strict=True) if text is None]
    code = ", ".join([f"jax.debug.print({' '.join(words)!r}", *(f"{{value{index}}}" for index in range(len(values)))])

    def printed(_: cst.Call) -> cst.BaseExpression:
        parts = {f"value{index}": edits.rebuilt(value) for index, value in enumerate(values)}
        return edits.expression(f"{code})", **parts)

    edits.put(call, printed, covers=call.func)
