"""Rewrite `tf.GradientTape` as a loss function and `tpu.value_and_grad`.

Idea: the recorded statements become the body of a function. It returns the loss and, as auxiliary output, the
variables that are read after the tape, so the lines that follow are unchanged. With several tapes, or a persistent one,
the function returns all losses, and one call computes all gradients. GANs train so. A tensor that the tape watches
becomes the function's argument.

Rule: where a function would behave differently, nothing is changed and the line is listed. Examples: the statements
return, or the tape has other uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst.metadata import ExpressionContext

from anytpu.migrate.port.arguments import argument_of
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.keras_classes import is_model_step
from anytpu.migrate.port.kinds import GIVES_SHAPE
from anytpu.migrate.port.rules import rules
from anytpu.migrate.port.tree import Tree, parameter_names
from anytpu.migrate.port.variables import certain_writes, read_later, reads, reads_before_it_writes, writes
from anytpu.migrate.replaced.table import advice, advice_of

_LOSS_NAMES = ("compute_loss", "loss_of_batch", "loss_to_differentiate")
_LOSSES_NAMES = ("compute_losses", "losses_of_batch", "losses_to_differentiate")
_GRADIENT_NAMES = ("gradients", "all_gradients", "gradients_of_loss")
_VARIABLES = ("trainable_variables", "trainable_weights", "variables", "weights")
_LEAVES = (cst.Return, cst.Yield, cst.Await, cst.Break, cst.Continue, cst.Global, cst.Nonlocal, cst.Del)
_JACOBIAN = "write `jax.jacobian(function)(x)`, whose function returns what the tape recorded of x"
_OTHER_USES = "a tape with other uses than one gradient call is not rewritten"


class _NotSimple(Exception):
    """The reason for not rewriting a tape."""


@dataclasses.dataclass(frozen=True)
class _Gradient:
    """A call `tape.gradient(loss, variables)`.

    Attributes:
        line: the statement line that contains it.
        call: the call.
        target: code of the target that it is assigned to; None if it is part of an expression.
    """

    line: cst.SimpleStatementLine
    call: cst.Call
    target: str | None

    @property
    def loss(self) -> cst.BaseExpression:
        """The differentiated expression."""
        return self.call.args[0].value

    @property
    def variables(self) -> cst.BaseExpression:
        """The variables of the gradient."""
        return self.call.args[1].value


@dataclasses.dataclass(frozen=True)
class _Tape:
    """A block with one tape or several, and their gradients.

    Attributes:
        block: the `with` statement.
        before: the block's statements before `tape.watch(x)`, which is left out.
        watched: code of the watched tensors, the function's argument; "" if the tape watches variables alone.
        body: the recorded statements: those of the block before the first gradient.
        rest: the block's statements from the first gradient on; empty if it follows the block.
        moved: lines after the block that set the variables of a gradient; they move before the gradients.
        between: the other statements after the block and before the last gradient.
        gradients: the gradients, in order.
        deletes: statements `del tape`.
        carried: variables that the body reads before it sets them.
    """

    block: cst.With
    before: Sequence[cst.CSTNode]
    watched: str
    body: Sequence[cst.CSTNode]
    rest: Sequence[cst.CSTNode]
    moved: Sequence[cst.SimpleStatementLine]
    between: Sequence[cst.CSTNode]
    gradients: Sequence[_Gradient]
    deletes: Sequence[cst.CSTNode]
    carried: Sequence[str]


def plan_tapes(edits: Edits) -> None:
    """Plan each block with tapes: rewrite it, or list it."""
    tree = edits.tree
    for block in tree.all(cst.With):
        calls = [item.item for item in block.items if isinstance(item.item, cst.Call)]
        calls = [call for call in calls if tree.old_name(call.func) == "GradientTape"]
        if not calls or edits.is_done(calls[0]):
            continue
        try:
            tape = _read(tree, block, calls)
            _check(tree, tape)
            _put(edits, tape)
        except _NotSimple as reason:
            is_jacobian = reason.args[0] == _JACOBIAN
            edits.say(calls[0], _JACOBIAN if is_jacobian else f"{reason}; {advice_of(rules()['GradientTape'])}")
            edits.leave(calls[0])


def _read(tree: Tree, block: cst.With, calls: Sequence[cst.Call]) -> _Tape:
    # 1. The tapes of the block: each needs a name, and no option but `persistent`.
    keywords = [argument.keyword.value if argument.keyword else "" for call in calls for argument in call.args]
    is_other = len(calls) < len(block.items) or any(keyword != "persistent" for keyword in keywords)
    if is_other or not isinstance(block.body, cst.IndentedBlock):
        raise _NotSimple("a tape with options, or beside other context managers, is not rewritten")
    names = [item.asname.name for item in block.items if item.asname and isinstance(item.asname.name, cst.Name)]
    if len(names) < len(calls):
        raise _NotSimple("a tape without a name is not rewritten")
    # 2. Their uses, up to the next block that binds one of the names again.
    uses = [n for n in tree.names(tree.function(block)) if n.value in {name.value for name in names} and n not in names]
    last = _line_of_next_tape(tree, block, names)
    uses = [n for n in uses if tree.line(block) <= tree.line(n) < last]
    deletes = [tree.small_statement(n) or n for n in uses if tree.context(n) is ExpressionContext.DEL]
    if any(not isinstance(getattr(statement, "target", None), cst.Name) for statement in deletes):
        raise _NotSimple(_OTHER_USES)
    # 3. Leave out `tape.watch`, with what comes before the last one.
    inside, after = list(block.body.body), tree.following(block)
    loads = [n for n in uses if tree.context(n) is not ExpressionContext.DEL]
    watches = [watch for use in loads if (watch := _watch(tree, use, inside)) is not None]
    loads = [use for use in loads if tree.statement(use) not in watches]
    start = inside.index(watches[-1]) + 1 if watches else 0
    before, inside = [line for line in inside[:start] if line not in watches], inside[start:]
    # 4. The gradient calls.
    gradients = [_gradient(tree, use, [*inside, *after]) for use in loads]
    is_several = len(calls) > 1 or bool(keywords)
    if not gradients or (len(gradients) > 1 and not is_several):
        raise _NotSimple(_OTHER_USES)
    lines = [gradient.line for gradient in gradients]
    if len(lines) > 1 and any(g.target is None or g.line in inside for g in gradients):
        raise _NotSimple("several gradients are not each computed in a statement after the block")
    # 5. Divide the statements: recorded ones, the rest of the block, those that set variables, and others.
    end = inside.index(lines[0]) if lines[0] in inside else len(inside)
    between = [line for line in after[: after.index(lines[-1])] if line not in lines] if lines[-1] in after else []
    needed = set().union(*(reads(tree, gradient.variables) for gradient in gradients))
    moved = [line for line in between if isinstance(line, cst.SimpleStatementLine) and writes(tree, line) & needed]
    between = [line for line in between if line not in moved]
    carried = sorted(reads_before_it_writes(tree, inside[:end]))
    watched = _watched(tree, watches, gradients)
    return _Tape(block, before, watched, inside[:end], inside[end:], moved, between, gradients, deletes, carried)


def _watch(tree: Tree, use: cst.Name, statements: Sequence[cst.CSTNode]) -> cst.SimpleStatementLine | None:
    """Return the line of a block that is `tape.watch(x)`; None for another use of a tape."""
    attribute = tree.parent(use)
    call = tree.parent_call(attribute) if attribute is not None else None
    line = tree.statement(use)
    is_watch = call is not None and tree.code(call.func) == f"{use.value}.watch" and len(call.args) == 1
    return line if is_watch and line in statements and tree.is_alone(line) and tree.is_statement(use) else None


def _watched(tree: Tree, watches: Sequence[cst.SimpleStatementLine], gradients: Sequence[_Gradient]) -> str:
    """Return the code of the watched tensors that the gradient is for; "" for a tape that watches variables alone.

    Raises:
        _NotSimple: the gradient is for other values than the watched ones.
    """
    names: set[str] = set()
    for watch in watches:
        value: Any = watch.body[0]
        value = value.value.args[0].value
        if isinstance(value, cst.Attribute) and value.attr.value in _VARIABLES:
            continue  # A tape watches variables anyway.
        parts: list[Any] = [value]
        if isinstance(value, cst.List | cst.Tuple):
            parts = [part.value for part in value.elements]
        if not all(isinstance(part, cst.Name) for part in parts):
            raise _NotSimple("a tape that watches an expression is not rewritten")
        names |= {part.value for part in parts}
    if not names:
        return ""
    (variables,) = [gradient.variables for gradient in gradients][:1]
    asked = [e.value for e in variables.elements] if isinstance(variables, cst.List | cst.Tuple) else [variables]
    if len(gradients) > 1 or {tree.code(part) for part in asked} != names:
        raise _NotSimple("the gradient is not for the watched tensors alone")
    return tree.code(variables)


def _line_of_next_tape(tree: Tree, block: cst.With, names: Sequence[cst.Name]) -> float:
    """Return the line of the next statement behind a block that binds one of the block's names again."""
    taken, inside = {name.value for name in names}, set(tree.nodes(block))
    later = [other for other in tree.nodes(tree.function(block)) if isinstance(other, cst.With) and other not in inside]
    bound = [
        tree.line(other)
        for other in later
        if any(n.value in taken and tree.is_stored(n) for item in other.items for n in tree.names(item))
    ]
    return min((line for line in bound if line > tree.line(block)), default=float("inf"))


def _gradient(tree: Tree, use: cst.Name, statements: Sequence[cst.CSTNode]) -> _Gradient:
    """Return the gradient call that a use of a tape is in.

    Raises:
        _NotSimple: it is another use, or the call has options.
    """
    attribute = tree.parent(use)
    call = tree.parent_call(attribute) if attribute is not None else None
    if call is None or tree.code(call.func) != f"{use.value}.gradient":
        raise _NotSimple(_JACOBIAN if call is not None and "jacobian" in tree.code(call.func) else _OTHER_USES)
    if len(call.args) != 2 or any(argument.star or argument.keyword for argument in call.args):
        raise _NotSimple("a gradient with options is not rewritten")
    line, above = tree.statement(call), tree.parent(call)
    if line not in statements or not tree.is_alone(line):
        raise _NotSimple("the gradient is not computed in a separate statement after the recorded ones")
    return _Gradient(line, call, tree.target_code(above))


def _check(tree: Tree, tape: _Tape) -> None:
    """Refuse a tape whose body would behave differently as a function.

    Raises:
        _NotSimple: the body would; the error says why.
    """
    if not tape.body:
        raise _NotSimple("nothing is recorded before the gradient")
    if any(isinstance(part, _LEAVES) for statement in tape.body for part in tree.nodes(statement)):
        raise _NotSimple("the body of the tape leaves the block, or deletes or declares names")
    bound = _bound_before(tree, tape.block) | certain_writes(tree, tape.before)
    early = [name for name in tape.carried if name not in bound]
    if early:
        raise _NotSimple(f"the body of the tape reads {early[0]!r} before it sets it")
    always = certain_writes(tree, tape.body) | set(tape.carried)
    missing = [name for name in _kept(tree, tape) if name not in always]
    if missing:
        raise _NotSimple(f"the body of the tape does not always set {missing[0]!r}, which is read later")
    changed, own, moved = (writes(tree, *part) for part in (tape.between, tape.body, tape.moved))
    used = own.union(*(reads(tree, statement) for statement in tape.body))
    is_changed = moved & used or any(reads(tree, line) & (changed | own) for line in tape.moved)
    for gradient in tape.gradients:
        if is_changed or reads(tree, gradient.loss) & changed or reads(tree, gradient.variables) & (changed | own):
            raise _NotSimple("the loss or the variables change between the tape and its gradient")


def _bound_before(tree: Tree, block: cst.CSTNode) -> set[str]:
    """Return the variables that certainly have a value before a block: parameters, and what lines before it set."""
    function, node, bound = tree.function(block), block, set()
    while node is not function and node is not tree.module:
        suite = tree.parent(node) or tree.module
        if isinstance(suite, cst.IndentedBlock | cst.Module):
            body: Sequence[cst.CSTNode] = suite.body
            bound |= certain_writes(tree, body[: body.index(node)])
        node = suite
    return bound.union(parameter_names(function) if function is not None else ())


def changes_gradients(tree: Tree, gradient: _Gradient) -> bool:
    """Return whether a step uses gradients for more than `apply_gradients`, such as clipping each replica's own."""
    statement = gradient.line.body[0]
    targets = [target.target for target in statement.targets] if isinstance(statement, cst.Assign) else []
    names = {n.value for target in targets for n in tree.names(target)}
    uses = [n for n in tree.names(tree.function(gradient.call)) if n.value in names and not tree.is_stored(n)]
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


def _is_per_row(tree: Tree, tape: _Tape) -> bool:
    """Return whether the only loss has several values, as its last assignment in the body shows."""
    code = tree.code(tape.gradients[0].loss)
    assigned: list[Any] = []
    if len(tape.gradients) == 1:
        assigned = [part for line in tape.body for part in tree.nodes(line) if tree.target_code(part) == code]
    value: Any = assigned[-1].value if assigned else None
    if isinstance(value, cst.Call):
        name = tree.old_name(value.func) or ""
        axis = argument_of(value, name, "axis")
        return name.rpartition(".")[2].startswith("reduce_") and axis is not None and tree.code(axis.value) != "None"
    return isinstance(value, cst.Subscript) and isinstance(value.slice[0].slice, cst.Slice)


def _kept(tree: Tree, tape: _Tape) -> list[str]:
    """Return the variables, without the losses, that the body sets and other code reads, in the order of the body."""
    own = {part for statement in tape.body for part in tree.nodes(statement)}
    own = own.union(*(tree.nodes(gradient.call) for gradient in tape.gradients))
    outside = [n for n in tree.names(tree.function(tape.block)) if n not in own]
    later = read_later(tree, tape.block).union(*(reads(tree, statement) for statement in tape.rest))
    read = {n.value for n in outside if tree.context(n) is ExpressionContext.LOAD} & later
    order = dict.fromkeys(n.value for statement in tape.body for n in tree.names(statement))
    losses = (
        set() if tape.watched or _is_per_row(tree, tape) else {tree.code(gradient.loss) for gradient in tape.gradients}
    )
    written = writes(tree, *tape.body) & read - losses
    return [name for name in order if name in written]


def _put(edits: Edits, tape: _Tape) -> None:
    """Replace a block by a function, the call that differentiates it, and the rest of the block."""
    kept = _kept(edits.tree, tape)
    first, *others = tape.gradients
    function = edits.tree.free_name(*(_LOSSES_NAMES if others else _LOSS_NAMES))
    gradients = first.target or edits.tree.free_name(*_GRADIENT_NAMES)
    # The function takes the watched tensors, several as one argument, and the variables that the body changes.
    watched = tape.watched if tape.watched.isidentifier() or not tape.watched else "watched"
    parameters = ", ".join([*filter(None, [watched]), *(f"{name}={name}" for name in tape.carried)])
    unpacked = [] if watched == tape.watched else [edits.statement(f"{tape.watched} = {watched}")]

    def rewritten(_: cst.With) -> cst.FlattenSentinel:
        body = [new for statement in tape.body for new in edits.rebuilt_lines(statement)]
        moved = [line.with_changes(body=[edits.rebuilt(small) for small in line.body]) for line in tape.moved]
        before = [new for statement in tape.before for new in edits.rebuilt_lines(statement)]
        definition = edits.statement(f"def {function}({parameters}):\n    pass").with_changes(
            body=tape.block.body.with_changes(body=[*unpacked, *body, _returned(edits, tape, kept)]),
            leading_lines=tape.block.leading_lines,
        )
        rest = [new for statement in tape.rest for new in edits.rebuilt_lines(statement)]
        return cst.FlattenSentinel([*before, definition, *moved, _call(edits, tape, kept, function, gradients), *rest])

    # The calls and lines of the tape inside the block are edits of their own: `rewritten` applies them when it
    # rebuilds the body.
    for gradient in tape.gradients:
        if gradient.target is None:
            edits.put(gradient.call, lambda _: cst.Name(gradients), covers=gradient.call.func)
        else:
            edits.put(gradient.line, lambda _: cst.RemoveFromParent(), covers=gradient.call.func)
        if not tape.watched:
            _list_unbuilt(edits, gradient.variables)
    for statement in tape.deletes:
        edits.drop_statement(statement)
    for line in tape.moved:
        edits.put(line, lambda _: cst.RemoveFromParent())
    edits.roots.add("tpu")
    edits.put(tape.block, rewritten)
    for item in tape.block.items:
        edits.cover(item)


def _returned(edits: Edits, tape: _Tape, kept: Sequence[str]) -> cst.SimpleStatementLine:
    """Return the last line of the function: the loss or losses, and beside them what is read later."""
    tree = edits.tree
    losses = {f"loss{index}": edits.rebuilt(gradient.loss) for index, gradient in enumerate(tape.gradients)}
    code = _tuple([f"{{{name}}}" for name in losses], is_tuple=len(losses) > 1)
    if tape.watched or _is_per_row(tree, tape):  # The gradient of several values is that of their sum.
        edits.roots.add("keras")
        code = "keras.ops.sum({loss0})"
    return edits.statement(f"return {code}, {_tuple(kept)}" if kept else f"return {code}", **losses)


def _call(edits: Edits, tape: _Tape, kept: Sequence[str], function: str, target: str) -> cst.SimpleStatementLine:
    """Return the line that computes the loss and the gradients."""
    tree, is_several = edits.tree, len(tape.gradients) > 1
    is_summed = bool(tape.watched) or _is_per_row(tree, tape)
    names = [tree.code(g.loss) if isinstance(g.loss, cst.Name) and not is_summed else "_" for g in tape.gradients]
    losses = _tuple(names, is_tuple=is_several)
    targets = [gradient.target or target for gradient in tape.gradients]
    is_local = bool(tape.watched) or any(g.target and changes_gradients(tree, g) for g in tape.gradients)
    options = [", has_aux=True"] * bool(kept) + [", local=True"] * is_local
    variables = {f"variables{index}": edits.rebuilt(g.variables) for index, g in enumerate(tape.gradients)}
    listed = ", ".join(f"{{{name}}}" for name in variables)
    result = f"({losses}, {_tuple(kept)})" if kept else losses
    code = f"tpu.value_and_grad({function}, {f'[{listed}]' if is_several else listed}{''.join(options)})()"
    line = edits.statement(f"{result}, {_tuple(targets, is_tuple=is_several)} = {code}", **variables)
    first = tape.gradients[0]
    if first.target is None:
        return line
    above = [line for gradient in tape.gradients for line in gradient.line.leading_lines]
    return line.with_changes(leading_lines=above, trailing_whitespace=first.line.trailing_whitespace)


def _tuple(names: Sequence[str], is_tuple: bool = False) -> str:
    """Return code for several names; one name stands alone unless it must be a tuple."""
    if len(names) == 1:
        return f"({names[0]},)" if is_tuple else names[0]
    return f"({', '.join(names)})" if names else ""


def _list_unbuilt(edits: Edits, variables: cst.BaseExpression) -> None:
    """List the variables of models that have none before their first call: they are named before it here."""
    owner = edits.tree.class_of_method(edits.tree.function(variables) or variables)
    has_step = owner is not None and any(is_model_step(edits, method) for method in owner.body.body)
    for part in (part for value in edits.tree.sources(variables) for part in edits.tree.nodes(value)):
        if has_step and edits.tree.code(part).startswith("self."):
            continue  # `tpu.model_step` builds the model and its parts before its step.
        if isinstance(part, cst.Attribute) and _is_built_later(edits, part.value):
            _list_unbuilt_model(edits, part)


def _list_unbuilt_model(edits: Edits, variables: cst.Attribute) -> None:
    model = edits.tree.code(variables.value)
    is_built = any(edits.tree.code(call.func) == f"{model}.build" for call in edits.tree.all(cst.Call))
    *_, outer = [None, *edits.tree.functions(variables)]
    runs: list[Any] = [outer.name] if isinstance(outer, cst.FunctionDef) else []
    for run in runs:  # It grows meanwhile: a function runs where one that names it does.
        uses = [[n, *edits.tree.functions(n)][-1] for n in edits.tree.names() if n.value == getattr(run, "value", "")]
        runs += [name for use in uses if (name := getattr(use, "name", use)) not in runs]
    lines = [edits.tree.line(run) for run in runs if not isinstance(edits.tree.parent(run), cst.FunctionDef)]
    before = [call for call in edits.tree.all(cst.Call) if edits.tree.line(call) < min(lines, default=float("inf"))]
    is_built |= any(edits.tree.code(call.func) == model and edits.tree.function(call) is None for call in before)
    if not is_built:
        edits.say(variables, advice("unbuilt model", model=model))


def _is_built_later(edits: Edits, model: cst.CSTNode, seen: frozenset[Any] = frozenset()) -> bool:
    """Return whether an expression is a model of the program's own class that its first call builds."""
    owners = set(edits.values.own_classes(model)) - seen if edits.values.is_a(model, "keras.Model") else ()
    return any(_is_unbuilt(edits, part, seen.union(owners)) for own in owners for part in edits.tree.nodes(own.node))


def _is_unbuilt(edits: Edits, node: cst.CSTNode, seen: frozenset[Any]) -> bool:
    """Return whether a statement gives a model a part that its first call builds: a layer, or a model of no shape."""
    if not isinstance(node, cst.Assign) or not (edits.tree.target_code(node) or "").startswith("self."):
        return False
    if isinstance(node.value, cst.Call) and edits.tree.code(node.value.func).endswith("Sequential"):
        parts = [source for name in edits.tree.names(node.value) for source in edits.tree.sources(name)]
        return bool(node.value.args) and not any(map(GIVES_SHAPE.search, map(edits.tree.code, [node.value, *parts])))
    is_layer = edits.values.is_a(node.value, "keras.layers.Layer")
    return (is_layer and not edits.values.is_a(node.value, "keras.Model")) or _is_built_later(edits, node.value, seen)
