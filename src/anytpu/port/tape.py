"""Rewrite `tf.GradientTape` as a loss function and `tpu.value_and_grad`.

Idea: the recorded statements become the body of a function. It returns the loss and, as auxiliary output, the
variables that are read after the tape, so the lines that follow are unchanged.

Rule: where a function would behave differently, nothing is changed and the line is listed. Examples: the statements
read a variable before they set it, they return, or the tape gives two gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
from libcst.metadata import ExpressionContext

from anytpu._replaced import advice_of
from anytpu.port.edits import Edits
from anytpu.port.rules import rules
from anytpu.port.tree import Tree
from anytpu.port.variables import certain_writes, reads, reads_before_it_writes, writes

_FUNCTION_NAMES = ("compute_loss", "loss_of_batch", "loss_to_differentiate")
_GRADIENT_NAMES = ("gradients", "all_gradients", "gradients_of_loss")
LEAVES = (cst.Return, cst.Yield, cst.Await, cst.Break, cst.Continue, cst.Global, cst.Nonlocal, cst.Del)


class _NotSimple(Exception):
    """The reason for not rewriting a tape."""


@dataclasses.dataclass(frozen=True)
class _Tape:
    """A tape and its gradient call.

    Attributes:
        block: the `with` statement.
        body: the recorded statements: those of the block before `line`.
        rest: the block's statements from `line` on; empty if `line` follows the block.
        between: the statements after the block and before `line`.
        line: the statement line that contains `gradient_call`.
        gradient_call: `tape.gradient(loss, variables)`.
    """

    block: cst.With
    body: Sequence[cst.CSTNode]
    rest: Sequence[cst.CSTNode]
    between: Sequence[cst.CSTNode]
    line: cst.SimpleStatementLine
    gradient_call: cst.Call

    @property
    def loss(self) -> cst.BaseExpression:
        """The differentiated expression."""
        return self.gradient_call.args[0].value

    @property
    def variables(self) -> cst.BaseExpression:
        """The variables of the gradient."""
        return self.gradient_call.args[1].value


def plan_tapes(edits: Edits) -> None:
    """Plan each tape of a program: rewrite it, or list it."""
    for node in edits.tree.nodes():
        call = _tape_call(edits.tree, node)
        if call is None or not isinstance(node, cst.With) or edits.is_done(call):
            continue
        try:
            tape = _read(edits.tree, node, call)
            _check(edits.tree, tape)
            _put(edits, tape, call)
        except _NotSimple as reason:
            edits.say(call, f"{reason}; {advice_of(rules()['GradientTape'])}")
            edits.leave(call)
            function = _function(edits.tree, node)
            if is_model_step(edits.tree, function):
                edits.list_whole(function)


def _tape_call(tree: Tree, node: cst.CSTNode) -> cst.Call | None:
    """Return the `tf.GradientTape(...)` that a `with` statement enters, or None."""
    for item in node.items if isinstance(node, cst.With) else ():
        if isinstance(item.item, cst.Call) and tree.old_name(item.item.func) == "GradientTape":
            return item.item
    return None


def _read(tree: Tree, block: cst.With, call: cst.Call) -> _Tape:
    name = block.items[0].asname
    if len(block.items) > 1 or call.args or not isinstance(block.body, cst.IndentedBlock):
        raise _NotSimple("a tape with options, or beside other context managers, is not rewritten")
    if name is None or not isinstance(name.name, cst.Name):
        raise _NotSimple("a tape without a name is not rewritten")
    gradient_call = _only_use(tree, block, name.name)
    inside, after = list(block.body.body), following(tree, block)
    line = next((statement for statement in (*inside, *after) if gradient_call in set(tree.nodes(statement))), None)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        raise _NotSimple("the gradient is not computed in a separate statement after the recorded ones")
    end = inside.index(line) if line in inside else len(inside)
    between = after[: after.index(line)] if line in after else []
    return _Tape(block, inside[:end], inside[end:], between, line, gradient_call)


def _only_use(tree: Tree, block: cst.With, name: cst.Name) -> cst.Call:
    """Return the only use of a tape, the call `tape.gradient(loss, variables)`.

    Raises:
        _NotSimple: the tape has another use, or the call has options.
    """
    uses = [n for n in tree.names(_function(tree, block)) if n.value == name.value and n is not name]
    loads = [n for n in uses if n in set(tree.nodes(block)) or tree.line(n) >= tree.line(block)]
    attribute = tree.parent(loads[0]) if len(loads) == 1 else None
    gradient_call = tree.parent(attribute) if attribute else None
    if not isinstance(gradient_call, cst.Call) or tree.code(gradient_call.func) != f"{name.value}.gradient":
        raise _NotSimple("a tape with other uses than one gradient call is not rewritten")
    if len(gradient_call.args) != 2 or any(arg.star or arg.keyword for arg in gradient_call.args):
        raise _NotSimple("a gradient with options is not rewritten")
    return gradient_call


def following(tree: Tree, block: cst.With) -> list[cst.CSTNode]:
    """Return the statements after a block in the same suite."""
    around = tree.parent(block)
    body: list[Any] = list(around.body) if isinstance(around, cst.IndentedBlock | cst.Module) else [block]
    return body[body.index(block) + 1 :]


def _function(tree: Tree, node: cst.CSTNode) -> cst.CSTNode:
    """Return the function around a node, or the program."""
    above = tree.parent(node)
    while above is not None and not isinstance(above, cst.FunctionDef | cst.Module):
        above = tree.parent(above)
    return above or tree.module


def _check(tree: Tree, tape: _Tape) -> None:
    """Refuse a tape whose body would behave differently as a function.

    Raises:
        _NotSimple: the body would; the error says why.
    """
    if is_model_step(tree, _function(tree, tape.block)):
        raise _NotSimple("a train_step of a Keras model has another form on JAX; write a custom training loop")
    if not tape.body:
        raise _NotSimple("nothing is recorded before the gradient")
    if any(isinstance(part, LEAVES) for statement in tape.body for part in tree.nodes(statement)):
        raise _NotSimple("the body of the tape leaves the block, or deletes or declares names")
    early = sorted(reads_before_it_writes(tree, tape.body))
    if early:
        raise _NotSimple(f"the body of the tape reads {early[0]!r} before it sets it")
    always = set().union(*(certain_writes(tree, statement) for statement in tape.body))
    missing = [name for name in _read_later(tree, tape) if name not in always]
    if missing:
        raise _NotSimple(f"the body of the tape does not always set {missing[0]!r}, which is read later")
    changed = _writes(tree, tape.between)
    if reads(tree, tape.loss) & changed or reads(tree, tape.variables) & (changed | _writes(tree, tape.body)):
        raise _NotSimple("the loss or the variables change between the tape and its gradient")


def is_model_step(tree: Tree, function: cst.CSTNode | None) -> bool:
    """Return whether a function is a `train_step` or `test_step` method."""
    if not isinstance(function, cst.FunctionDef) or function.name.value not in ("train_step", "test_step"):
        return False
    return tree.class_of_method(function) is not None


def changes_gradients(tree: Tree, gradient_call: cst.Call) -> bool:
    """Return whether a step uses gradients for more than `apply_gradients`, such as clipping each replica's own."""
    statement = tree.parent(gradient_call)
    targets = [target.target for target in statement.targets] if isinstance(statement, cst.Assign) else []
    names = {n.value for target in targets for n in tree.names(target)}
    uses = [n for n in tree.names(_function(tree, gradient_call)) if n.value in names and not tree.is_stored(n)]
    return any(not _is_passed_on(tree, use) for use in uses)


def _is_passed_on(tree: Tree, use: cst.CSTNode) -> bool:
    """Return whether a use only passes a value on, to `zip` or `apply_gradients`, also in a list."""
    above = tree.parent(use)
    while isinstance(above, cst.Element | cst.List | cst.Tuple):
        above = tree.parent(above)
    call = tree.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return isinstance(above, cst.Return | cst.Assign)
    return tree.code(call.func).rpartition(".")[2] in ("zip", "list", "apply_gradients")


def _writes(tree: Tree, statements: Iterable[cst.CSTNode]) -> set[str]:
    return set().union(*(writes(tree, statement) for statement in statements))


def _read_later(tree: Tree, tape: _Tape) -> list[str]:
    """Return the variables, without the loss, that the body sets and other code reads, in the order of the body."""
    own = {part for statement in tape.body for part in tree.nodes(statement)} | set(tree.nodes(tape.gradient_call))
    outside = [n for n in tree.names(_function(tree, tape.block)) if n not in own]
    read = {n.value for n in outside if tree.context(n) is ExpressionContext.LOAD}
    order = dict.fromkeys(n.value for statement in tape.body for n in tree.names(statement))
    written = _writes(tree, tape.body) & read
    return [name for name in order if name in written and name != tree.code(tape.loss)]


def _put(edits: Edits, tape: _Tape, call: cst.Call) -> None:
    """Replace a tape by a function, the call that differentiates it, and the rest of the block."""
    tree, kept = edits.tree, _read_later(edits.tree, tape)
    taken = {n.value for n in tree.nodes() if isinstance(n, cst.Name)}
    function = next(name for name in _FUNCTION_NAMES if name not in taken)
    gradients = _target(tree, tape)
    gradients_are_named = gradients is not None
    if gradients is None:
        gradients = next(name for name in _GRADIENT_NAMES if name not in taken)
        edits.put(tape.gradient_call, lambda _: cst.Name(gradients), covers=tape.gradient_call.func)
    else:
        edits.put(tape.line, lambda _: cst.RemoveFromParent(), covers=tape.gradient_call.func)
    loss = tree.code(tape.loss) if isinstance(tape.loss, cst.Name) else "_"
    results = kept[0] if len(kept) == 1 else f"({', '.join(kept)})"
    target = f"({loss}, {results}), {gradients}" if kept else f"{loss}, {gradients}"
    aux = ", has_aux=True" if kept else ""
    local = ", local=True" if gradients_are_named and changes_gradients(tree, tape.gradient_call) else ""

    def rewritten(_: cst.With) -> cst.FlattenSentinel:
        loss_now, variables_now = edits.rebuilt(tape.loss), edits.rebuilt(tape.variables)
        body = [new for statement in tape.body for new in edits.rebuilt_lines(statement)]
        returned = edits.statement(f"return {{loss}}, {results}" if kept else "return {loss}", loss=loss_now)
        definition = edits.statement(f"def {function}():\n    pass")
        definition = definition.with_changes(
            body=tape.block.body.with_changes(body=[*body, returned]), leading_lines=tape.block.leading_lines
        )
        line = edits.statement(
            f"{target} = tpu.value_and_grad({function}, {{variables}}{aux}{local})()", variables=variables_now
        )
        if gradients_are_named:
            # The line of the gradient call is removed; its comments move to the new line.
            comment = tape.line.trailing_whitespace
            line = line.with_changes(leading_lines=tape.line.leading_lines, trailing_whitespace=comment)
        rest = [new for statement in tape.rest for new in edits.rebuilt_lines(statement)]
        return cst.FlattenSentinel([definition, line, *rest])

    edits.roots.add("tpu")
    edits.put(tape.block, rewritten, covers=call)
    list_unbuilt(edits, tape.variables)


def list_unbuilt(edits: Edits, variables: cst.BaseExpression) -> None:
    """List the variables of a model that has none before its first call: they are named before it here."""
    if not isinstance(variables, cst.Attribute) or not edits.values.is_built_later(variables.value):
        return
    model = edits.tree.code(variables.value)
    calls = [node for node in edits.tree.nodes() if isinstance(node, cst.Call)]
    is_built = any(edits.tree.code(call.func) == f"{model}.build" for call in calls)
    is_built |= any(edits.tree.code(call.func) == model and edits.tree.function(call) is None for call in calls)
    if not is_built:
        edits.say(variables, f"{model} has no variables before its first call: call it on a batch before the loop")


def _target(tree: Tree, tape: _Tape) -> str | None:
    """Return the target that the gradients are assigned to; None if the call is part of an expression."""
    statement = tape.line.body[0]
    is_alone = isinstance(statement, cst.Assign) and statement.value is tape.gradient_call
    return target_code(tree, statement) if is_alone else None


def target_code(tree: Tree, statement: cst.CSTNode | None) -> str | None:
    """Return the code of a statement's only target, a tuple in parentheses; None if it has none or several."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0].target
    code = tree.code(target)
    return f"({code})" if isinstance(target, cst.Tuple) and not target.lpar else code
