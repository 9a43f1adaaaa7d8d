"""Rewrite the control flow that TensorFlow compiled: `tf.cond`, `tf.while_loop` and loops over `tf.range`.

Rule: a loop over `tf.range` that only runs a step becomes `strategy.run_steps`, and any other one Python's own. So does
a condition on the host. One whose branches draw random numbers in a step is listed.
"""

from __future__ import annotations

from typing import Any

import libcst as cst
import libcst.matchers as m

from anytpu.migrate.port.arguments import argument_of, in_parentheses
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.seeds import is_random
from anytpu.migrate.port.tree import Tree, parameter_names
from anytpu.migrate.replaced.table import advice

_TEXT = m.Lambda(
    body=m.SimpleString() | m.Call(m.Attribute(attr=m.Name("constant")), [m.Arg(m.SimpleString()), m.ZeroOrMore()])
)
_LOOSE = cst.IfExp | cst.Lambda | cst.Tuple | cst.NamedExpr
_NEXT_ITEM = m.Element(m.Call(m.Name("next"), [m.Arg(m.SaveMatchedNode(m.DoNotCare(), "iterator"))]))
_NEXT_ITEMS = m.OneOf(m.Tuple([_NEXT_ITEM]), m.List([_NEXT_ITEM]))
_RUN = m.SaveMatchedNode(
    m.Call(
        m.Attribute(attr=m.OneOf(m.Name("run"), m.Name("experimental_run_v2"))),
        [m.Arg(keyword=None, star=""), m.Arg(_NEXT_ITEMS, star="")],
    ),
    "run",
)
"""`strategy.run(fn, args=(next(iterator),))`."""
_RUN_LINE = m.SaveMatchedNode(m.SimpleStatementLine([m.OneOf(m.Expr(_RUN), m.Assign(value=_RUN))]), "line")
_RUN_LOOP = m.For(body=m.IndentedBlock([_RUN_LINE]), orelse=None)


def plan_branches(edits: Edits) -> None:
    """Plan each `tf.cond` that Keras's `cond` does not replace, and arrays of NumPy indexed in a loop."""
    for call, name in edits.tree.calls():
        if name == "cond":
            _plan_condition(edits, call)
        elif name == "while_loop":
            _plan_while_loop(edits, call)


def _plan_condition(edits: Edits, call: cst.Call) -> None:
    """Make a condition on the host Python's own; list one that draws in a step: JAX traces both branches once."""
    test = argument_of(call, "cond", "pred")
    branches = [argument_of(call, "cond", "true_fn", "fn1"), argument_of(call, "cond", "false_fn", "fn2")]
    if test is None or None in branches:
        return
    passed = [branch.value for branch in branches]
    if not edits.values.is_host(call):
        if any(m.matches(branch, _TEXT) for branch in passed):
            edits.say(call, advice("text of a branch"))
        elif any(_draws(edits, branch) for branch in passed):
            edits.say(call, advice("random branch"))
        return

    def chosen(_: cst.Call) -> cst.BaseExpression:
        true, false = (_value_of(edits, branch) for branch in passed)
        new = cst.IfExp(_tight(edits.rebuilt(test.value)), true, false)
        is_alone = isinstance(edits.tree.parent(call), cst.Assign | cst.Return | cst.Arg)
        return new if is_alone and "\n" not in edits.tree.code(new) else in_parentheses(new)

    edits.put(call, chosen, covers=call.func)


def _value_of(edits: Edits, branch: cst.BaseExpression) -> cst.BaseExpression:
    """Return the result of a branch: the body of a lambda, or a call of a function."""
    if not isinstance(branch, cst.Lambda):
        return cst.Call(_tight(edits.rebuilt(branch)))
    return _tight(edits.rebuilt(branch.body))


def _tight(part: cst.BaseExpression) -> cst.BaseExpression:
    return in_parentheses(part) if isinstance(part, _LOOSE) else part


def _draws(edits: Edits, branch: cst.CSTNode) -> bool:
    """Return whether a branch draws random numbers, also in the functions of the program that it calls."""
    seen = [function.node for function in edits.values.functions(branch)]
    for function in seen:  # It grows meanwhile.
        for node in edits.tree.nodes(function):
            call = edits.tree.parent_call(node)
            if call is not None and is_random(edits, node):
                return True
            seen += [own.node for own in edits.values.functions(node) if own.node not in seen] if call else []
    return False


def _plan_while_loop(edits: Edits, call: cst.Call) -> None:
    """Make tensors of the arrays of NumPy that a loop indexes by its variables: JAX traces the loop."""
    passed = [argument_of(call, "while_loop", name) for name in ("cond", "body")]
    for function in (f.node for part in passed if part is not None for f in edits.values.functions(part.value)):
        variables = set(parameter_names(function))
        for item in (node for node in edits.tree.nodes(function) if isinstance(node, cst.Subscript)):
            index = {name.value for part in item.slice for name in edits.tree.names(part)}
            if index & variables and edits.tree.is_numpy(item.value) and not edits.has_edit(item.value):
                edits.put(
                    item.value,
                    lambda updated: edits.expression("keras.ops.convert_to_tensor({array})", array=updated),
                )


def plan_range_loops(edits: Edits) -> None:
    """Turn a loop that only runs a step into `strategy.run_steps`; any other `tf.range` loop gets `range`."""
    tree = edits.tree
    for loop in tree.all(cst.For):
        call = loop.iter
        if not isinstance(call, cst.Call) or tree.old_name(call.func) != "range" or edits.is_done(call):
            continue
        match: Any = m.extract(loop, _RUN_LOOP)
        is_count = len(call.args) == 1 and not call.args[0].keyword and not call.args[0].star
        if match is None or not is_count or _is_counted(tree, loop):
            edits.put(call.func, lambda _: cst.Name("range"), covers=call.func)
        else:
            _put_run_steps(edits, loop, call, **match)


def _is_counted(tree: Tree, loop: cst.For) -> bool:
    """Return whether a loop's variable is read in the loop or after it, where it still has its last value."""
    reads = [read for name in tree.names(loop.target) for read in tree.reads_of(name)]
    return any(tree.line(read) >= tree.line(loop) for read in reads)


def _put_run_steps(
    edits: Edits, loop: cst.For, count: cst.Call, run: cst.Call, line: Any, iterator: cst.BaseExpression
) -> None:
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
