"""Rewrite blocks with several tapes, or a persistent one: several losses, each with a gradient of its own.

Idea: the recorded statements become one function, which returns the first loss and, as auxiliary output, the other
losses and the variables that are read later. It is differentiated once for each gradient. GANs train so.

Rule: where a function would behave differently nothing is changed, and `tape.py` lists the block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import libcst as cst
from libcst.metadata import ExpressionContext

from anytpu.port.edits import Edits
from anytpu.port.tape import LEAVES, changes_gradients, following, is_model_step, list_unbuilt, plan_tapes, target_code
from anytpu.port.tree import Tree
from anytpu.port.variables import certain_writes, reads, reads_before_it_writes, writes

_FUNCTION_NAMES = ("compute_losses", "losses_of_batch", "losses_to_differentiate")
_NOTE = "the block runs once for each gradient, so its random numbers are drawn for each"


@dataclasses.dataclass(frozen=True)
class _Gradient:
    """A statement `gradients = tape.gradient(loss, variables)`.

    Attributes:
        line: the statement line.
        call: the call in it.
        target: code of the target.
    """

    line: cst.SimpleStatementLine
    call: cst.Call
    target: str

    @property
    def loss(self) -> cst.BaseExpression:
        """The differentiated expression."""
        return self.call.args[0].value

    @property
    def variables(self) -> cst.BaseExpression:
        """The variables of the gradient."""
        return self.call.args[1].value


def plan_all_tapes(edits: Edits) -> None:
    """Plan each block with tapes: those with several gradients first, then those with one."""
    _plan_several_tapes(edits)
    plan_tapes(edits)


def _plan_several_tapes(edits: Edits) -> None:
    for node in edits.tree.nodes():
        names = _tape_names(edits.tree, node)
        if names and isinstance(node, cst.With) and isinstance(node.body, cst.IndentedBlock):
            gradients = _gradients(edits.tree, node, names)
            if len(gradients) > 1 and _is_pure(edits.tree, node, gradients):
                _put(edits, node, gradients)


def _tape_names(tree: Tree, node: cst.CSTNode) -> set[str]:
    """Return the names of the tapes of a block; none if it has one simple tape, or other context managers."""
    items = node.items if isinstance(node, cst.With) else ()
    calls = [item.item for item in items if isinstance(item.item, cst.Call)]
    if not calls or len(calls) < len(items) or any(tree.old_name(call.func) != "GradientTape" for call in calls):
        return set()
    keywords = [argument.keyword.value if argument.keyword else "" for call in calls for argument in call.args]
    if any(keyword != "persistent" for keyword in keywords) or (len(calls) == 1 and not keywords):
        return set()
    names = [item.asname.name.value for item in items if item.asname and isinstance(item.asname.name, cst.Name)]
    return set(names) if len(names) == len(items) else set()


def _gradients(tree: Tree, block: cst.With, names: set[str]) -> list[_Gradient]:
    """Return the gradients of a block's tapes; none if a tape has another use."""
    found = []
    for line in following(tree, block):
        gradient = _gradient(tree, line, names)
        found += [gradient] if gradient is not None else []
    uses = [n for n in tree.names(tree.function(block)) if n.value in names]
    reads_of_tapes = [n for n in uses if tree.context(n) is ExpressionContext.LOAD]
    reads_of_tapes = [n for n in reads_of_tapes if tree.line(n) >= tree.line(block)]
    deletes = [n for n in uses if tree.context(n) is ExpressionContext.DEL]
    return found if len(reads_of_tapes) == len(found) and not deletes else []


def _gradient(tree: Tree, line: cst.CSTNode, names: set[str]) -> _Gradient | None:
    statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    call = statement.value if isinstance(statement, cst.Assign) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or call.func.attr.value != "gradient":
        return None
    target = target_code(tree, statement)
    is_simple = len(call.args) == 2 and not any(argument.star or argument.keyword for argument in call.args)
    if tree.code(call.func.value) not in names or not is_simple or target is None:
        return None
    assert isinstance(line, cst.SimpleStatementLine)
    return _Gradient(line, call, target)


def _is_pure(tree: Tree, block: cst.With, gradients: Sequence[_Gradient]) -> bool:
    """Return whether the body behaves the same as a function, and nothing changes before the gradients."""
    body = list(block.body.body)
    function = tree.function(block)
    if is_model_step(tree, function) or any(isinstance(n, LEAVES) for s in body for n in tree.nodes(s)):
        return False
    always = set().union(*(certain_writes(tree, statement) for statement in body))
    if reads_before_it_writes(tree, body) or any(name not in always for name in _kept(tree, block, gradients)):
        return False
    lines = [gradient.line for gradient in gradients]
    after = following(tree, block)
    between = [line for line in after[: after.index(lines[-1])] if line not in lines]
    changed = set().union(*(writes(tree, statement) for statement in between))
    own = set().union(*(writes(tree, statement) for statement in body))
    return not any(
        reads(tree, gradient.loss) & changed or reads(tree, gradient.variables) & (changed | own)
        for gradient in gradients
    )


def _kept(tree: Tree, block: cst.With, gradients: Sequence[_Gradient]) -> list[str]:
    """Return the variables that the body sets and other code reads, in the order of the body."""
    own = set(tree.nodes(block)).union(*(tree.nodes(gradient.call) for gradient in gradients))
    names = [n for n in tree.names(tree.function(block)) if n not in own]
    read = {n.value for n in names if tree.context(n) is ExpressionContext.LOAD}
    written = set().union(*(writes(tree, statement) for statement in block.body.body))
    order = dict.fromkeys(n.value for statement in block.body.body for n in tree.names(statement))
    return [name for name in order if name in written & read]


def _put(edits: Edits, block: cst.With, gradients: Sequence[_Gradient]) -> None:
    tree = edits.tree
    taken = {n.value for n in tree.nodes() if isinstance(n, cst.Name)}
    function = next(name for name in _FUNCTION_NAMES if name not in taken)
    losses = [tree.code(g.loss) if isinstance(g.loss, cst.Name) else "_" for g in gradients]
    kept = [name for name in _kept(tree, block, gradients) if name not in losses]
    first, *others = gradients

    def rewritten(_: cst.With) -> cst.FlattenSentinel:
        body = [new for statement in block.body.body for new in edits.rebuilt_lines(statement)]
        parts = {f"loss{n}": edits.rebuilt(gradient.loss) for n, gradient in enumerate(gradients)}
        results = ", ".join([*(f"{{loss{n}}}" for n in range(1, len(gradients))), *kept])
        returned = edits.statement(f"return {{loss0}}, ({results},)".replace(",,", ","), **parts)
        definition = edits.statement(f"def {function}():\n    pass")
        definition = definition.with_changes(
            body=block.body.with_changes(body=[*body, returned]), leading_lines=block.leading_lines
        )
        target = f"({losses[0]}, ({', '.join([*losses[1:], *kept])},)), {first.target}"
        lines = [
            edits.statement(
                f"{target} = tpu.value_and_grad({function}, {{variables}}, has_aux=True{_local(tree, first)})()",
                variables=edits.rebuilt(first.variables),
            ).with_changes(leading_lines=first.line.leading_lines)
        ]
        for index, gradient in enumerate(others):
            loss = f"lambda: {function}()[1][{index}]"
            code = f"{gradient.target} = tpu.value_and_grad({loss}, {{variables}}{_local(tree, gradient)})()[1]"
            line = edits.statement(code, variables=edits.rebuilt(gradient.variables))
            lines.append(line.with_changes(leading_lines=gradient.line.leading_lines))
        return cst.FlattenSentinel([definition, *lines])

    for gradient in gradients:
        edits.drop(gradient.line)
        list_unbuilt(edits, gradient.variables)
    edits.roots.add("tpu")
    edits.put(block, rewritten)
    for item in block.items:
        edits.cover(item)
    edits.say(block.items[0].item, _NOTE, "note")


def _local(tree: Tree, gradient: _Gradient) -> str:
    return ", local=True" if changes_gradients(tree, gradient.call) else ""
