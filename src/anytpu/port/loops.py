"""Rewrite loops that TensorFlow compiled: `for _ in tf.range(steps)` around `strategy.run`."""

from __future__ import annotations

from typing import Any

import libcst as cst
import libcst.matchers as m

from anytpu.port.edits import Edits
from anytpu.port.tree import Tree

_NEXT = m.Element(m.Call(m.Name("next"), [m.Arg(m.SaveMatchedNode(m.DoNotCare(), "iterator"))]))
_ITEMS = m.OneOf(m.Tuple([_NEXT]), m.List([_NEXT]))
_RUN = m.SaveMatchedNode(
    m.Call(
        m.Attribute(attr=m.OneOf(m.Name("run"), m.Name("experimental_run_v2"))),
        [m.Arg(keyword=None, star=""), m.Arg(_ITEMS, star="")],
    ),
    "run",
)
"""`strategy.run(fn, args=(next(iterator),))`."""
_LINE = m.SaveMatchedNode(m.SimpleStatementLine([m.OneOf(m.Expr(_RUN), m.Assign(value=_RUN))]), "line")
_LOOP = m.For(body=m.IndentedBlock([_LINE]), orelse=None)


def plan_loops(edits: Edits) -> None:
    """Turn a loop that only runs a step into `strategy.run_steps`; any other `tf.range` loop gets `range`."""
    tree = edits.tree
    for loop in tree.all(cst.For):
        call = loop.iter
        if not isinstance(call, cst.Call) or tree.old_name(call.func) != "range" or edits.is_done(call):
            continue
        match: Any = m.extract(loop, _LOOP)
        is_count = len(call.args) == 1 and not call.args[0].keyword and not call.args[0].star
        if match is None or not is_count or _is_counted(tree, loop):
            edits.put(call.func, lambda _: cst.Name("range"), covers=call.func)
        else:
            _put(edits, loop, call, **match)


def _is_counted(tree: Tree, loop: cst.For) -> bool:
    """Return whether a loop's variable is read in the loop or after it, where it still has its last value."""
    reads = [read for name in tree.names(loop.target) for read in tree.reads_of(name)]
    return any(tree.line(read) >= tree.line(loop) for read in reads)


def _put(edits: Edits, loop: cst.For, count: cst.Call, run: cst.Call, line: Any, iterator: cst.BaseExpression) -> None:
    def all_steps(updated: Any) -> cst.BaseExpression:
        steps = edits.rebuilt(count.args[0].value)
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
    edits.put(loop, only_line, covers=count.func)
