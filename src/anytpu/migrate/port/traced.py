"""List or rewrite what is different in code that JAX traces: branches on tensors, printing, arrays of unknown size."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from anytpu.migrate.port.arguments import keyword_of
from anytpu.migrate.port.edits import Edits

_BRANCH = (
    "a step cannot branch on a tensor: write keras.ops.cond(test, lambda: ..., lambda: ...), or "
    "keras.ops.where(test, a, b) to choose between two values"
)
_LOOP = "a step cannot loop on a tensor: write keras.ops.while_loop(condition, body, variables)"
_PRINT = (
    'print in a step would run once, when it is compiled: write jax.debug.print("loss {}", loss), which prints the '
    "values of each run"
)
_LOSS = (
    "Keras 3 takes add_loss only in call: write a layer whose call gets these tensors, runs self.add_loss(...) and "
    "returns its input, and put it into the model"
)
_WHERE = (
    "in a step all shapes are known, and the number of true values is not: write keras.ops.where(test, a, b), or "
    "multiply by keras.ops.cast(test, a.dtype)"
)
_BOUND = (
    "a slice of a step or a model has a fixed size: take the whole axis and mask the rest with keras.ops.where, or cut "
    "the batch with NumPy, before the step"
)
_SCHEDULE = (
    "a rate that decays is a function of the step, which optax calls: for a warm-up write "
    "optax.join_schedules([optax.linear_schedule(0.0, rate, steps), schedule], [steps])"
)
_RANDOM = (
    "a model that is made from inputs takes this function only in a layer: write a class derived from "
    "keras.layers.Layer whose call uses it, with seed=self.seed for a self.seed = keras.random.SeedGenerator()"
)
_RANDOM_OF_TENSORS = ("random.categorical", "multinomial", "random.multinomial", "random.shuffle", "nn.dropout")


def plan_traced(edits: Edits) -> None:
    """Plan or list the lines of traced functions."""
    for node in edits.tree.all(cst.Slice, cst.Call):
        _list_symbolic(edits, node)
    for node in edits.tree.all(cst.BinaryOperation):
        if "schedule" in edits.values.of(node.left) | edits.values.of(node.right):
            edits.say(node, _SCHEDULE)
    for node in edits.tree.all(cst.If, cst.While, cst.IfExp, cst.Assert, cst.Call):
        if not edits.values.is_traced(node):
            _plan_where(edits, node)
            _list_loss(edits, node)
        elif not isinstance(node, cst.Call):
            if "array" in edits.values.of(node.test):
                edits.say(node.test, _LOOP if isinstance(node, cst.While) else _BRANCH)
        elif edits.tree.old_name(node.func) == "print":
            _plan_print(edits, node)
        elif edits.tree.old_name(node.func) == "where" and len(node.args) == 1:
            edits.say(node, _WHERE)
            edits.leave(node.func)


def _list_symbolic(edits: Edits, node: cst.Slice | cst.Call) -> None:
    """List slices with bounds that are tensors, and functions of tensors that a model made from inputs lacks."""
    if isinstance(node, cst.Slice):
        bounds = [part for part in (node.lower, node.upper) if part is not None and not _is_counted(edits, part)]
        tensors = [kinds for kinds in map(edits.values.of, bounds) if "array" in kinds]
        if tensors and (edits.values.is_traced(node) or any("symbolic" in kinds for kinds in tensors)):
            edits.say(edits.tree.around(node, cst.Subscript) or node, _BOUND)
        return
    is_symbolic = any("symbolic" in edits.values.of(argument.value) for argument in node.args[:1])
    if is_symbolic and edits.tree.old_name(node.func) in _RANDOM_OF_TENSORS and not edits.values.is_traced(node):
        edits.say(node, _RANDOM)
        edits.leave(node.func)


def _is_counted(edits: Edits, bound: cst.BaseExpression) -> bool:
    """Return whether a bound is computed from the variable of a `for` loop over `tf.range`, which becomes `range`."""
    loops = [loop for loop in edits.tree.all(cst.For) if isinstance(loop.iter, cst.Call)]
    counted = {edits.tree.code(x.target) for x in loops if edits.tree.old_name(x.iter.func) == "range"}  # pyright: ignore
    return any(name.value in counted for name in edits.tree.names(bound))


def _plan_where(edits: Edits, node: cst.CSTNode) -> None:
    """Turn `tf.where(test)` into a matrix of indices: `where` of NumPy returns a tuple of vectors."""
    if isinstance(node, cst.Call) and edits.tree.old_name(node.func) == "where" and len(node.args) == 1:
        edits.put(node.func, lambda _: edits.expression("np.argwhere"), covers=node.func)
        if keyword_of(node.args[0]):
            edits.put(node.args[0], lambda updated: cst.Arg(updated.value))


def _list_loss(edits: Edits, node: cst.CSTNode) -> None:
    """List a loss that a program adds to a model from outside, of its symbolic tensors."""
    method = node.func if isinstance(node, cst.Call) else None
    if (
        not isinstance(method, cst.Attribute)
        or method.attr.value != "add_loss"
        or edits.tree.code(method.value) == "self"
    ):
        return
    if edits.values.is_a(method.value, "keras.Model"):
        edits.say(node, _LOSS)


def _plan_print(edits: Edits, call: cst.Call) -> None:
    """Turn `tf.print("loss", loss)` into `jax.debug.print("loss {}", loss)`."""
    if any(keyword_of(argument) or argument.star for argument in call.args) or _is_formatted(call.args):
        edits.say(call, _PRINT)
        edits.leave(call.func)
        return
    texts = [_text_of(argument.value) for argument in call.args]
    words = ["{}" if text is None else text.replace("{", "{{").replace("}", "}}") for text in texts]
    values = [argument.value for argument, text in zip(call.args, texts, strict=True) if text is None]
    code = ", ".join([f"jax.debug.print({' '.join(words)!r}", *(f"{{value{index}}}" for index in range(len(values)))])

    def printed(_: cst.Call) -> cst.BaseExpression:
        parts = {f"value{index}": edits.rebuilt(value) for index, value in enumerate(values)}
        return edits.expression(f"{code})", **parts)

    edits.put(call, printed, covers=call.func)


def _is_formatted(arguments: Sequence[cst.Arg]) -> bool:
    return any(isinstance(argument.value, cst.FormattedString | cst.ConcatenatedString) for argument in arguments)


def _text_of(value: cst.BaseExpression) -> str | None:
    """Return the text of a string; None for another value."""
    text = value.evaluated_value if isinstance(value, cst.SimpleString) else None
    return text if isinstance(text, str) else None
