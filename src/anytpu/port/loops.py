"""Rewrite loops that TensorFlow compiled: `for _ in tf.range(steps)` around `strategy.run`."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst.metadata import ExpressionContext

from anytpu.port.edits import Edits
from anytpu.port.tree import Tree


def plan_loops(edits: Edits) -> None:
    """Turn a loop that only runs a step into `strategy.run_steps`; any other `tf.range` loop gets `range`."""
    tree = edits.tree
    for loop in tree.nodes():
        if not isinstance(loop, cst.For) or not isinstance(loop.iter, cst.Call):
            continue
        if tree.old_name(loop.iter.func) != "range" or edits.is_done(loop.iter):
            continue
        run = _run_of(tree, loop)
        if run is None:
            edits.put(loop.iter.func, lambda _: cst.Name("range"), covers=loop.iter.func)
        else:
            _put(edits, loop, loop.iter, run)


def _run_of(tree: Tree, loop: cst.For) -> cst.Call | None:
    """Return the loop's `strategy.run(fn, args=(next(iterator),))` if its body is nothing else, or None."""
    body = loop.body.body if isinstance(loop.body, cst.IndentedBlock) else ()
    if len(body) != 1 or loop.orelse or not isinstance(body[0], cst.SimpleStatementLine) or len(body[0].body) != 1:
        return None
    statement = body[0].body[0]
    run = statement.value if isinstance(statement, cst.Expr | cst.Assign) else None
    names = {n.value for n in tree.names(loop.target)}
    is_used = any(n.value in names and _is_read_from(tree, n, loop) for n in tree.names(_function(tree, loop)))
    if not isinstance(run, cst.Call) or is_used or _iterator(tree, run) is None:
        return None
    return run


def _is_read_from(tree: Tree, name: cst.Name, loop: cst.For) -> bool:
    """Return whether a variable is read in a loop or after it, where it still has its last value."""
    return tree.context(name) is ExpressionContext.LOAD and tree.line(name) >= tree.line(loop)


def _function(tree: Tree, node: cst.CSTNode) -> cst.CSTNode | None:
    """Return the function around a node; None for the whole program."""
    above = tree.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef):
        above = tree.parent(above)
    return above


def _iterator(tree: Tree, run: cst.Call) -> cst.BaseExpression | None:
    """Return the iterator of `run(fn, args=(next(iterator),))`, or None for a call of another form."""
    is_run = isinstance(run.func, cst.Attribute) and run.func.attr.value in ("run", "experimental_run_v2")
    if not is_run or len(run.args) != 2 or run.args[0].keyword or run.args[0].star or run.args[1].star:
        return None
    keyword, value = run.args[1].keyword, run.args[1].value
    if (keyword is not None and keyword.value != "args") or not isinstance(value, cst.Tuple | cst.List):
        return None
    following = value.elements[0].value if len(value.elements) == 1 else None
    if not isinstance(following, cst.Call) or tree.code(following.func) != "next" or len(following.args) != 1:
        return None
    return following.args[0].value


def _put(edits: Edits, loop: cst.For, range_call: cst.Call, run: cst.Call) -> None:
    line: Any = loop.body.body[0]
    count = range_call.args[-1].value
    if len(range_call.args) != 1 or range_call.args[0].keyword or range_call.args[0].star:
        edits.put(range_call.func, lambda _: cst.Name("range"), covers=range_call.func)
        return
    iterator = _iterator(edits.tree, run)

    def all_steps(updated: Any) -> cst.BaseExpression:
        steps = edits.rebuilt(count)
        integer = steps if isinstance(steps, cst.Integer) else cst.Call(cst.Name("int"), [cst.Arg(steps)])
        return edits.expression(
            "{strategy}.run_steps({function}, {iterator}, {steps})",
            strategy=updated.func.value,
            function=updated.args[0].value,
            iterator=edits.rebuilt(iterator),
            steps=integer,
        )

    def only_line(_: cst.For) -> cst.BaseStatement:
        # Keep the comments of the `for` line and those above the step: both go above the new line.
        beside = loop.body.header.comment  # pyright: ignore[reportAttributeAccessIssue]
        above = [cst.EmptyLine(comment=beside)] if beside else []
        return edits.rebuilt(line).with_changes(leading_lines=[*loop.leading_lines, *above, *line.leading_lines])

    edits.put(run, all_steps, covers=run.func)
    edits.put(loop, only_line, covers=range_call.func)
