"""Rewrite small patterns of several names: blocks that only order operations, `apply`, options, and learning rates."""

from __future__ import annotations

import functools
import re
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node

from anytpu._replaced import FOREIGN
from anytpu.port import known
from anytpu.port.edits import Edits
from anytpu.port.filling import drop_self_assignment, drop_statement, fill
from anytpu.port.loops import plan_loops
from anytpu.port.resolvers import plan_resolvers
from anytpu.port.rules import new_name, rule_of
from anytpu.port.seeds import functions_of_lambdas
from anytpu.port.sessions import plan_sessions

_ORDERING = ("control_dependencies", "Graph.as_default", "get_default_graph.as_default")
_SETS_RATE = re.compile(r"LearningRateScheduler|ReduceLROnPlateau|set_value\(|\.(lr|learning_rate)\s*=|keras_to_tpu")
_BRANCH = (
    "a step cannot branch on a tensor: write keras.ops.cond(test, lambda: ..., lambda: ...), or "
    "keras.ops.where(test, a, b) to choose between two values"
)
_LOOP = "a step cannot loop on a tensor: write keras.ops.while_loop(condition, body, variables)"


def plan_patterns(edits: Edits) -> None:
    """Plan the patterns, before the single names."""
    plan_loops(edits)
    plan_sessions(edits)
    plan_resolvers(edits)
    for node in edits.tree.nodes():
        if isinstance(node, cst.With):
            _plan_block(edits, node)
        elif isinstance(node, cst.Call):
            _plan_apply(edits, node)
            _plan_decay(edits, node)
            _plan_specification(edits, node)
            _plan_weight(edits, node)
            _plan_cache(edits, node)
        elif isinstance(node, cst.If | cst.While | cst.IfExp | cst.Assert):
            _list_branch(edits, node)
        elif isinstance(node, cst.AugAssign):
            _plan_assignment(edits, node)
        elif isinstance(node, cst.ImportFrom | cst.Import):
            _list_foreign(edits, node)
        elif isinstance(node, cst.Subscript):
            _plan_worker(edits, node)
    _plan_unread(edits)
    _plan_registration(edits)


def _plan_block(edits: Edits, block: cst.With) -> None:
    """Replace a block by its body if it only orders operations: statements run in the order they are written."""
    if (
        len(block.items) != 1
        or not isinstance(block.body, cst.IndentedBlock)
        or not _orders(edits, block.items[0].item)
    ):
        return
    statements = block.body.body

    def body_alone(_: cst.With) -> Any:
        lines = [line for statement in statements for line in edits.rebuilt_lines(statement)]
        if not lines:
            return cst.RemoveFromParent()
        first = lines[0].with_changes(leading_lines=[*block.leading_lines, *lines[0].leading_lines])
        return cst.FlattenSentinel([first, *lines[1:]])

    edits.put(block, body_alone, covers=block.items[0])


def _orders(edits: Edits, item: cst.BaseExpression) -> bool:
    if not isinstance(item, cst.Call):
        return False
    if edits.tree.old_name(item.func) == "control_dependencies":
        return True
    inner = item.func.value if isinstance(item.func, cst.Attribute) and item.func.attr.value == "as_default" else None
    return isinstance(inner, cst.Call) and edits.tree.old_name(inner.func) in ("Graph", "get_default_graph")


def _plan_apply(edits: Edits, call: cst.Call) -> None:
    """Turn `dataset.apply(tf.data.experimental.map_and_batch(...))` into steps of the data set."""
    is_apply = isinstance(call.func, cst.Attribute) and call.func.attr.value == "apply" and len(call.args) == 1
    made = call.args[0].value if is_apply else None
    old = edits.tree.old_name(made.func) if isinstance(made, cst.Call) else None
    rule = rule_of(old) if old is not None else None
    if rule is None or rule[0] != old or rule[1].how != "pattern" or not isinstance(made, cst.Call):
        return
    assert isinstance(call.func, cst.Attribute)
    owner = call.func.value
    if fill(edits, made, rule[1], "tpu.made" + rule[1].target.removeprefix("{self}")):
        # The steps are built on a placeholder, which the data set then replaces.
        def steps(updated: Any) -> Any:
            return _replaced(updated.args[0].value, edits.rebuilt(owner))

        edits.put(call, steps)
        edits.mark(call.func)


def _replaced(steps: Any, owner: Any) -> Any:
    """Return a chain of method calls with another object at its start."""
    if isinstance(steps, cst.Call):
        return steps.with_changes(func=_replaced(steps.func, owner))
    if isinstance(steps, cst.Attribute) and steps.attr.value != "made":
        return steps.with_changes(value=_replaced(steps.value, owner))
    return owner


def _plan_decay(edits: Edits, call: cst.Call) -> None:
    """Turn the `decay` of an optimizer of Keras 2 into the schedule that it stood for."""
    old = edits.tree.library_name(call.func)
    definition = known.find(new_name(old) or "") if old is not None else None
    if definition is None or not definition.is_class:
        return
    decay = next((a for a in call.args if a.keyword is not None and a.keyword.value == "decay"), None)
    optimizer = known.find("keras.optimizers.Optimizer")
    if decay is None or optimizer not in known.ancestors(definition):
        return
    rates = [a for n, a in enumerate(call.args) if (a.keyword.value if a.keyword else n) in (0, "lr", "learning_rate")]
    if not rates or re.fullmatch(r"0(\.0*)?", edits.tree.code(decay.value)):
        edits.drop(decay)
        return
    if _SETS_RATE.search(edits.tree.module.code):
        edits.say(
            decay, "Keras 3 has no decay beside a learning rate that is set: leave it out, or use a schedule only"
        )
        return
    rate, schedule = rates[0].value, "keras.optimizers.schedules.InverseTimeDecay({rate}, 1, {decay})"
    decay_value = decay.value
    edits.drop(decay)
    edits.put(
        rate, lambda updated: edits.expression(schedule, rate=updated, decay=edits.rebuilt(decay_value)), covers=None
    )


def _plan_worker(edits: Edits, node: cst.Subscript) -> None:
    """Turn `resolver.cluster_spec().as_dict()["worker"]` into a look-up that an empty dictionary survives."""
    made = node.value
    if not isinstance(made, cst.Call) or not isinstance(made.func, cst.Attribute) or made.func.attr.value != "as_dict":
        return
    spec = made.func.value
    index = node.slice[0].slice
    if (
        isinstance(spec, cst.Call)
        and edits.tree.code(spec.func).endswith(".cluster_spec")
        and isinstance(index, cst.Index)
    ):
        key = index.value
        edits.put(
            node,
            lambda _: edits.expression("{spec}.get({key})", spec=edits.rebuilt(spec), key=edits.rebuilt(key)),
        )
        edits.cover(made.func.attr)
        edits.mark(made.func)


def _plan_specification(edits: Edits, call: cst.Call) -> None:
    """Turn `resolver.cluster_spec().as_dict()` into `resolver.cluster_spec()`, which is a dictionary."""
    is_subscripted = isinstance(edits.tree.parent(call), cst.Subscript)
    if edits.tree.code(call.func).endswith(".cluster_spec().as_dict") and not is_subscripted:
        assert isinstance(call.func, cst.Attribute)
        edits.put(call, lambda updated: updated.func.value)
        edits.mark(call.func)


def _plan_weight(edits: Edits, call: cst.Call) -> None:
    """Give the arguments of `add_weight` their keywords: Keras 2 had the name first, Keras 3 has the shape first."""
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value in ("add_weight", "add_variable")
    if not isinstance(call.func, cst.Attribute) or not is_method or any(argument.star for argument in call.args):
        return
    if edits.values.is_a(call.func.value, "keras.layers.Layer"):
        positional = [argument for argument in call.args if argument.keyword is None]
        for argument, name in zip(positional, ("name", "shape", "dtype", "initializer"), strict=False):
            edits.put(argument, functools.partial(_with_keyword, name))


def _with_keyword(name: str, argument: cst.Arg) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return argument.with_changes(keyword=cst.Name(name), equal=equal)


def _plan_cache(edits: Edits, call: cst.Call) -> None:
    """Leave out a `cache` behind an endless `repeat`: it would store the same elements again and again."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "cache":
        return
    if edits.values.is_dataset(call.func.value) and _is_repeated(edits, call):
        edits.say(call, "cache is left out: the data set is endless here; put it before repeat()", "note")
        if not drop_self_assignment(edits, call):
            edits.put(call, lambda updated: updated.func.value)
            edits.mark(call.func)


def _is_repeated(edits: Edits, call: cst.Call) -> bool:
    """Return whether an endless `repeat` comes before, in the same chain or in an assignment to its variable."""
    tree, head = edits.tree, call.func
    while isinstance(head, cst.Call | cst.Attribute):
        head = head.func if isinstance(head, cst.Call) else head.value
    chain = set(tree.nodes(call.func))
    for node in tree.nodes(tree.function(call)):
        if isinstance(node, cst.Call) and _is_endless(edits, node):
            statement = tree.small_statement(node)
            targets = statement.targets if isinstance(statement, cst.Assign) else ()
            is_same = isinstance(head, cst.Name) and head.value in {tree.code(target.target) for target in targets}
            if node in chain or (is_same and tree.ends_before(node, call)):
                return True
    return False


def _is_endless(edits: Edits, call: cst.Call) -> bool:
    is_repeat = isinstance(call.func, cst.Attribute) and call.func.attr.value == "repeat"
    return is_repeat and (not call.args or edits.tree.code(call.args[0].value) in ("-1", "None"))


def _list_branch(edits: Edits, node: cst.If | cst.While | cst.IfExp | cst.Assert) -> None:
    """List a branch on a tensor in a step: autograph compiled it, JAX cannot."""
    is_tensor = "array" in edits.values.of(node.test)
    if is_tensor and edits.values.is_traced(node):
        edits.say(node.test, _LOOP if isinstance(node, cst.While) else _BRANCH)


def _plan_assignment(edits: Edits, node: cst.AugAssign) -> None:
    """Turn `image /= 255` in a function of a data set into `image = image / 255`: NumPy would change the source."""
    if not isinstance(node.target, cst.Name) or not edits.is_host(node):
        return
    operator = getattr(cst, type(node.operator).__name__.removesuffix("Assign"))()

    def assignment(updated: Any) -> cst.Assign:
        value = updated.value
        if (
            isinstance(value, cst.BinaryOperation | cst.IfExp | cst.Comparison | cst.BooleanOperation)
            and not value.lpar
        ):
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        result = cst.BinaryOperation(cst.Name(updated.target.value), operator, value)
        return cst.Assign([cst.AssignTarget(updated.target)], result)

    edits.put(node, assignment)


def _list_foreign(edits: Edits, node: cst.ImportFrom | cst.Import) -> None:
    """List the imports of packages that are built on TensorFlow."""
    module = get_full_name_for_node(node.module) if isinstance(node, cst.ImportFrom) and node.module else ""
    names = [] if isinstance(node.names, cst.ImportStar) else [get_full_name_for_node(n.name) or "" for n in node.names]
    full_names = [f"{module}.{name}" if module else name for name in names] or [module or ""]
    for prefix, advice in FOREIGN.items():
        if any(name == prefix or re.match(rf"{prefix}(\.|[A-Z])", name) for name in full_names):
            edits.say(node, advice)


def _plan_registration(edits: Edits) -> None:
    """Register the functions and layers of a model that is converted: a conversion makes its layers again by name."""
    if not any(name.endswith("keras_to_tpu_model") for _, name in edits.tree.chains()):
        return
    layer = known.find("keras.layers.Layer")
    for node in edits.tree.nodes():
        is_layer = isinstance(node, cst.ClassDef) and any(
            layer in known.ancestors(base) for base in edits.values.bases_of(node)
        )
        if is_layer or (isinstance(node, cst.FunctionDef) and node in functions_of_lambdas(edits)):
            edits.put_after(
                node, lambda updated: updated.with_changes(decorators=[*updated.decorators, _register(edits)])
            )


def _register(edits: Edits) -> cst.Decorator:
    return cst.Decorator(edits.expression("keras.saving.register_keras_serializable()"))


def _plan_unread(edits: Edits) -> None:
    """Remove the variables that only the removed lines read: update operations and options of data sets."""
    for node, name in edits.tree.chains():
        call = edits.tree.parent_call(node)
        above = edits.tree.parent(call) if call is not None else None
        if isinstance(above, cst.Assign) and name in ("get_collection", "data.Options"):
            targets = {target.target.value for target in above.targets if isinstance(target.target, cst.Name)}
            if all(_is_left_out(edits, use) for target in targets for use in edits.tree.reads_of(target)):
                drop_statement(edits, above)


def _is_left_out(edits: Edits, use: cst.Name) -> bool:
    """Return whether a variable's use is removed: in an ordering block, as options, or as its attribute."""
    tree, above = edits.tree, edits.tree.parent(use)
    if edits.is_done(use) or isinstance(above, cst.Attribute):
        return True
    call = tree.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and tree.code(call.func).endswith(".with_options")
