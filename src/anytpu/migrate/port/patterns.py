"""Rewrite small patterns of several names: blocks that only order operations, `apply`, options, and learning rates."""

from __future__ import annotations

import functools
import re
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from anytpu.migrate.port import known
from anytpu.migrate.port.arguments import (
    argument_of,
    keyword_of,
    lambda_in_parentheses,
    plain_assignment,
    with_argument,
)
from anytpu.migrate.port.control_flow import plan_range_loops
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.filling import OWNER, fill, leave_out_method, rename_attribute
from anytpu.migrate.port.fitting import STORES_MODEL
from anytpu.migrate.port.resolvers import plan_resolvers
from anytpu.migrate.port.rules import new_name, rule_of, rules
from anytpu.migrate.port.sessions import plan_sessions
from anytpu.migrate.port.tree import parameter_names
from anytpu.migrate.replaced.table import advice, facts

_ORDERING = ("control_dependencies", "Graph", "get_default_graph")
_SETS_RATE = re.compile(r"LearningRateScheduler|ReduceLROnPlateau|set_value\(|\.(lr|learning_rate)\s*=|keras_to_tpu")
_BATCHES_OF_KERAS = re.compile(r"\.((fit|evaluate|predict)(_generator)?|\w+_on_batch)\(")
_KEEPS_STATE = re.compile(r"\.scope\(\)|tpu_model")
_ENDLESS = re.compile(r"\.repeat\(\s*(count\s*=\s*)?(-1|None)?\s*\)")
_ACTIVATIONS = ("", "activation", "recurrent_activation")
_COUNTS = ("units", "filters", "input_dim", "output_dim")
"""Numbers of a layer: Keras 3 takes integers of Python alone."""
_STEPS = ("steps", "steps_per_epoch", "validation_steps")
_BATCHES = m.Call(
    args=[
        m.Arg(
            m.Lambda(
                body=m.Call(
                    m.Attribute(m.Name(), m.Name("batch")),
                    [m.Arg(m.SaveMatchedNode(m.DoNotCare(), "size")), m.ZeroOrMore()],
                )
            )
        )
    ]
)
"""`flat_map(lambda window: window.batch(size))`."""
_SESSION_OPTION = m.Attribute(m.Attribute(attr=m.Name("gpu_options") | m.Name("graph_options")))
"""`config.gpu_options.allow_growth`."""
_FIRST_INPUT = m.Attribute(
    m.Subscript(
        m.Attribute(m.SaveMatchedNode(m.DoNotCare(), "model"), m.Name("layers")),
        [m.SubscriptElement(m.Index(m.Integer("0")))],
    ),
    m.Name("input"),
)
"""`model.layers[0].input`."""
_NAMED_INPUT = m.Attribute(
    m.Call(m.Attribute(attr=m.Name("get_layer")), [m.Arg(m.SaveMatchedNode(m.SimpleString(), "name"))]), m.Name("input")
)
"""`model.get_layer("x").input`."""
_INPUT = m.OneOf(m.Name("Input"), m.Attribute(attr=m.Name("Input")))
_SCHEDULES = ("train.piecewise_constant", "train.exponential_decay", "train.cosine_decay", "train.polynomial_decay")
_MONITORS = ("callbacks.EarlyStopping", "callbacks.ModelCheckpoint", "callbacks.ReduceLROnPlateau")
_METRIC_NAMES = "{model}._flatten_metrics_in_order(dict((name, name) for name in {model}.get_metrics_result()))"


def plan_patterns(edits: Edits) -> None:
    """Plan the patterns, before the single names."""
    # Patterns of whole blocks come first: they mark nodes as handled, and later rules skip these.
    plan_range_loops(edits)
    plan_sessions(edits)
    plan_resolvers(edits)
    for plan in _PLANS:
        plan(edits)
    for node in edits.tree.nodes():
        if isinstance(node, cst.With):
            is_ordering = len(node.items) == 1 and _orders(edits, node.items[0].item)
            if is_ordering and isinstance(node.body, cst.IndentedBlock):
                edits.put_body(node, node.items[0])
        elif isinstance(node, cst.Call):
            _plan_mixed_inputs(edits, node)
        elif isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name) and edits.values.is_host(node):
            # `image /= 255` in a function of a data set: NumPy would change the source.
            edits.put(node, lambda updated: plain_assignment(updated, cst.Name(updated.target.value)))
        elif isinstance(node, cst.ImportFrom | cst.Import):
            _list_foreign(edits, node)
        elif m.matches(node, _SESSION_OPTION) and edits.tree.is_stored(node):
            edits.drop_statement(node)
        elif isinstance(node, cst.Attribute):
            _plan_member(edits, node)
    # Variables come last: the edits above may remove their only reader.
    _plan_unread(edits)


def _orders(edits: Edits, item: cst.BaseExpression) -> bool:
    """Return whether a block only orders operations: statements run in the order they are written."""
    match: Any = m.extract(item, m.Call(m.Attribute(m.SaveMatchedNode(m.Call(), "made"), m.Name("as_default"))))
    call = match["made"] if match is not None else item
    return isinstance(call, cst.Call) and edits.tree.old_name(call.func) in _ORDERING


def _plan_apply(edits: Edits) -> None:
    """Turn `dataset.apply(tf.data.experimental.map_and_batch(...))` into steps of the data set."""
    for call, method in edits.tree.method_calls("apply"):
        made = call.args[0].value if len(call.args) == 1 else None
        old = edits.tree.old_name(made.func) if isinstance(made, cst.Call) else None
        rule = rule_of(old) if old is not None else None
        if rule is None or rule[0] != old or rule[1].how != "pattern" or not isinstance(made, cst.Call):
            continue
        if fill(edits, made, rule[1], rule[1].target, old=None, **{OWNER: method.value}):
            edits.put(call, lambda updated: updated.args[0].value)
            edits.mark(method)
            edits.cover(made.func)


def _plan_decay(edits: Edits) -> None:
    """Turn the `decay` of an optimizer of Keras 2 into the schedule that it stood for."""
    for call, name in edits.tree.calls():
        decay, rate = argument_of(call, "", "decay"), argument_of(call, name, "lr", "learning_rate")
        if decay is None or not known.is_below(known.find(new_name(name) or ""), "keras.optimizers.Optimizer"):
            continue
        is_zero = bool(re.fullmatch(r"0(\.0*)?", edits.tree.code(decay.value)))
        if not is_zero and rate is None:
            edits.say(decay, advice("decay without a rate"))
        elif not is_zero and _SETS_RATE.search(edits.tree.module.code):
            edits.say(decay, advice("decay of a rate that is set"))
        else:
            edits.drop(decay)
            if not is_zero:
                edits.put(rate.value, functools.partial(_with_decay, edits, decay.value))


def _with_decay(edits: Edits, decay: cst.BaseExpression, rate: cst.BaseExpression) -> cst.BaseExpression:
    schedule = "keras.optimizers.schedules.InverseTimeDecay({rate}, 1, {decay})"
    return edits.expression(schedule, rate=rate, decay=edits.rebuilt(decay))


def _plan_member(edits: Edits, node: cst.Attribute) -> None:
    if node.attr.value == "as_dict":
        _plan_specification(edits, node)
    elif m.matches(node, _FIRST_INPUT):
        _plan_first_input(edits, node)
    elif m.matches(node, _NAMED_INPUT):
        _plan_named_input(edits, node)
    elif node.attr.value == "metrics_names":
        # Keras 3 names one metric that holds all of `compile`; this is the order of what evaluate returns.
        edits.put(node, lambda updated: edits.expression(_METRIC_NAMES, model=updated.value))
        edits.mark(node)


def _plan_specification(edits: Edits, method: cst.Attribute) -> None:
    """Turn `resolver.cluster_spec().as_dict()` into a dictionary, and `[...]` of it into a look-up that may fail."""
    call, specification = edits.tree.parent_call(method), method.value
    if call is None or not m.matches(specification, m.Call(m.Attribute(attr=m.Name("cluster_spec")))):
        return
    item: Any = edits.tree.parent(call)
    if m.matches(item, m.Subscript(slice=[m.SubscriptElement(m.Index())])):
        edits.put(item, lambda new: edits.expression("{spec}.get({key})", spec=new.value, key=new.slice[0].slice.value))
    edits.put(call, lambda updated: updated.func.value)
    edits.mark(method)


def _plan_compile(edits: Edits) -> None:
    """Give `compile` an optimizer of Keras in place of TensorFlow 1's, and a list of the one metric that it got."""
    for call, _ in edits.tree.method_calls("compile"):
        given = argument_of(call, "keras.Model.compile", "metrics")
        metric = given.value if given is not None else None
        is_function = isinstance(metric, cst.Name | cst.Lambda) and edits.values.functions(metric)
        is_text = isinstance(metric, cst.SimpleString)
        if metric is not None and (is_text or is_function or edits.values.is_a(metric, "keras.metrics.Metric")):
            edits.compose(metric, lambda updated: edits.expression("[{metric}]", metric=updated))
        optimizer = argument_of(call, "keras.Model.compile", "optimizer")
        for made in edits.tree.sources(optimizer.value) if optimizer is not None else ():
            row = rules().get(f"compile.{edits.tree.old_name(made.func)}") if isinstance(made, cst.Call) else None
            if row is not None and isinstance(made, cst.Call):
                fill(edits, made, row)
                if row.target.startswith("keras.optimizers.RMSprop"):
                    edits.say(made, row.note, "note")


def _plan_steps(edits: Edits) -> None:
    """Round up a number of steps that is a quotient: TensorFlow took 2.5 steps for 3."""
    loops = ("fit", "evaluate", "predict")
    for call, method in edits.tree.method_calls(*loops, *(f"{name}_generator" for name in loops)):
        for argument in call.args if edits.values.is_a(method.value, "keras.Model") else ():
            if keyword_of(argument) in _STEPS and _is_quotient(edits, argument.value):
                edits.compose(argument.value, lambda steps: edits.expression("int(np.ceil({steps}))", steps=steps))


def _is_quotient(edits: Edits, value: cst.BaseExpression) -> bool:
    sources = [part for part in edits.tree.sources(value) if isinstance(part, cst.BinaryOperation)]
    return any(m.findall(source, m.BinaryOperation(operator=m.Divide())) for source in sources)


def _plan_cache(edits: Edits) -> None:
    """Leave out a `cache` behind an endless `repeat`: it would store the same elements again and again."""
    for call, method in edits.tree.method_calls("cache"):
        if edits.values.is_dataset(method.value) and _is_repeated(edits, call):
            edits.say(call, advice("endless cache"), "note")
            leave_out_method(edits, call)


def _is_repeated(edits: Edits, call: cst.Call) -> bool:
    """Return whether an endless `repeat` comes before, in the same chain or in an assignment to its variable."""
    tree, start = edits.tree, call.func
    while isinstance(start, cst.Call | cst.Attribute):
        start = start.func if isinstance(start, cst.Call) else start.value
    above = (line for line in tree.nodes(tree.function(call)) if tree.target_code(line) == tree.code(start))
    parts = [call.func, *(line for line in above if tree.ends_before(line, call))]
    return any(_ENDLESS.search(tree.code(part)) for part in parts)


def _plan_window(edits: Edits) -> None:
    """Turn `window(...)` and the `flat_map(lambda w: w.batch(...))` behind it into `tpu.pipeline.windows`."""
    for call, method in edits.tree.method_calls("window", "flat_map"):
        whole = argument_of(call, "data.Dataset.window", "drop_remainder")
        if not edits.values.is_dataset(method.value):
            continue
        if method.attr.value == "window":
            if whole is not None and edits.tree.code(whole.value) == "True":
                fill(edits, call, rules()["data.Dataset.window"], rules()["data.Dataset.window"].target)
        elif m.matches(call, _BATCHES) and not _is_whole_window(edits, call):
            edits.say(call, advice("parts of windows"))
        elif m.matches(call, _BATCHES):
            leave_out_method(edits, call)
            edits.cover(call.args[0])


def _is_whole_window(edits: Edits, call: cst.Call) -> bool:
    """Return whether `flat_map` puts each window into one batch, so that nothing is left to do."""
    match = m.extract(call, _BATCHES)
    made = [c for c in edits.tree.all(cst.Call) if m.matches(c.func, m.Attribute(attr=m.Name("window")))]
    sizes = [size for window in made if (size := argument_of(window, "data.Dataset.window", "size")) is not None]
    if match is None or not sizes:
        return False
    size: Any = match["size"]
    return all(edits.tree.code(other.value) == edits.tree.code(size) for other in sizes)


def _list_computed_step(edits: Edits) -> None:
    """List a schedule of an expression such as `global_step * batch_size`: optax and Keras call it with the step."""
    for call, name in edits.tree.calls():
        step = argument_of(call, name, "global_step", "x")
        if name.endswith(_SCHEDULES) and step is not None and isinstance(step.value, cst.BinaryOperation):
            edits.say(call, advice("computed step", step=edits.tree.code(step.value)))
            edits.leave(call)


def _plan_keywords(edits: Edits) -> None:
    """Write the names of layers without slashes, which Keras 3 refuses, and hard_sigmoid as Keras 2 computed it."""
    for call, name in edits.tree.calls():
        label = argument_of(call, "", "name") if ".layers." in name or name in ("keras.Input", "keras.Model") else None
        if label is not None:
            _plan_label(edits, label.value)
        for argument in (arg for arg in call.args if ".layers." in name and keyword_of(arg) in _ACTIVATIONS):
            text = argument.value.evaluated_value if isinstance(argument.value, cst.SimpleString) else ""
            if (new := facts("values of Keras 2").get(text)) is not None:
                edits.put(argument.value, lambda _, new=new: edits.expression(new))
                if STORES_MODEL.search(edits.tree.module.code):
                    edits.say(argument, advice("stored activation"))
        if name.endswith("layers.Embedding"):
            _plan_length(edits, call)
        state = argument_of(call, "", "stateful") if ".layers." in name else None
        is_lost = _BATCHES_OF_KERAS.search(code := edits.tree.module.code) and not _KEEPS_STATE.search(code)
        if state is not None and edits.tree.code(state.value) != "False" and is_lost:
            edits.say(state, advice("state of a layer"))
        count = argument_of(call, name, *_COUNTS) if ".layers." in name else None
        calls = [part for part in edits.tree.sources(count and count.value) if isinstance(part, cst.Call)]
        if count is not None and any(edits.tree.numpy_name(made.func) for made in calls):
            edits.compose(count.value, lambda updated: edits.expression("int({count})", count=updated))
        if name.endswith(_MONITORS):
            _plan_mode(edits, call, name)


def _plan_flags(edits: Edits) -> None:
    """Let the program have a flag that absl's logging has too, such as `log_dir`."""
    for call in edits.tree.all(cst.Call):
        name = call.args[0].value if ".DEFINE_" in edits.tree.code(call.func) and call.args else None
        if isinstance(name, cst.SimpleString) and name.evaluated_value in facts("functions")["flags of absl"]:
            edits.compose(call, lambda updated: with_argument(updated, "allow_override", cst.Name("True")))


def _plan_label(edits: Edits, label: cst.BaseExpression) -> None:
    """Write a layer's name, also one that is put together, with "_" in place of "/", wherever the program has it."""
    parts = [part for part in edits.tree.nodes(label) if isinstance(part, cst.SimpleString | cst.FormattedStringText)]
    for part in (p for p in parts if "/" in p.value and not isinstance(edits.tree.parent(p), cst.Index)):
        edits.put(part, lambda updated: updated.with_changes(value=updated.value.replace("/", "_")))
    whole = label.evaluated_value if isinstance(label, cst.SimpleString) else None
    if isinstance(whole, str) and "/" in whole:
        same = (
            text for text in edits.tree.all(cst.SimpleString) if text.evaluated_value == whole and text is not label
        )
        for text in (text for text in same if _names_layer(edits, text)):
            new = whole.replace("/", "_")
            edits.compose(text, lambda updated, new=new: updated.with_changes(value=updated.value.replace(whole, new)))


def _names_layer(edits: Edits, text: cst.SimpleString) -> bool:
    """Return whether a string names a layer: in `get_layer`, or beside `.name` in a comparison or a call of it."""
    call, comparison = edits.tree.around(text, cst.Call), edits.tree.around(text, cst.Comparison)
    function = edits.tree.code(call.func) if call is not None and edits.tree.parent(text) in call.args else ""
    is_compared = comparison is not None and m.findall(comparison, m.Attribute(attr=m.Name("name")))
    return function.endswith("get_layer") or ".name." in function or bool(is_compared)


def _plan_length(edits: Edits, call: cst.Call) -> None:
    """Give an Embedding its `input_shape`: a Sequential of Keras 2 that started with one was built, of any length."""
    length = argument_of(call, "keras.layers.Embedding", "input_length")
    has_shape = any(keyword_of(argument).endswith("input_shape") for argument in call.args)
    if length is not None and not isinstance(length.value, cst.Tuple | cst.List):
        edits.compose(length.value, lambda updated: edits.expression("({length},)", length=updated))
    elif length is None and not has_shape and _is_first_layer(edits, call):
        shape = cst.parse_expression("(None,)")
        edits.compose(call, lambda updated: with_argument(updated, "input_shape", shape))


def _is_first_layer(edits: Edits, call: cst.Call) -> bool:
    """Return whether a layer is the first in the list of a Sequential, or the first that is added to one."""
    tree, above = edits.tree, edits.tree.parent(call)
    maker, parts = tree.around(call, cst.Call), tree.parent(above) if above is not None else None
    if maker is None:
        return False
    if isinstance(parts, cst.List):
        return parts.elements[0] is above and edits.values.is_a(maker, "keras.Sequential")
    if not isinstance(maker.func, cst.Attribute) or not edits.values.is_a(maker.func.value, "keras.Sequential"):
        return False
    added = [other for other in tree.all(cst.Call) if tree.code(other.func) == tree.code(maker.func)]
    return next(other for other in added if tree.function(other) is tree.function(call)) is maker


def _plan_mode(edits: Edits, call: cst.Call, name: str) -> None:
    """Write the mode that Keras 2 chose by the name of a metric: Keras 3 asks the metric, and most have none."""
    monitor, mode = (argument_of(call, name, key) for key in ("monitor", "mode"))
    if monitor is None or (mode is not None and edits.tree.code(mode.value)[1:-1] != "auto"):
        return
    metric = edits.tree.code(monitor.value)[1:-1]
    is_text = isinstance(monitor.value, cst.SimpleString)
    if not is_text or metric.removeprefix("val_") in ("loss", "acc", "accuracy"):
        return
    is_up = "acc" in metric or (name.endswith("ModelCheckpoint") and metric.startswith("fmeasure"))
    if name.endswith("EarlyStopping") and is_up != metric.endswith(("acc", "accuracy", "auc")):  # as later versions did
        edits.say(call, advice("unclear mode", metric=metric))
        return
    new = cst.SimpleString('"max"' if is_up else '"min"')
    edits.compose(call, lambda updated: with_argument(updated, "mode", new))
    edits.say(call, advice("old mode", mode=new.value, metric=metric), "note")


def _plan_first_input(edits: Edits, node: cst.Attribute) -> None:
    """Turn `model.layers[0].input` into the model's input: Keras 3 gives an InputLayer no input.

    The layers of a model with several inputs are in another order than its inputs.
    """
    match: Any = m.extract(node, _FIRST_INPUT)
    made = edits.tree.sources(match["model"]) if isinstance(match["model"], cst.Name) else []
    inputs = [argument_of(call, "keras.Model", "inputs") for call in made if isinstance(call, cst.Call)]
    is_single = not any(part is not None and isinstance(part.value, cst.List | cst.Tuple | cst.Dict) for part in inputs)
    is_single |= edits.values.is_a(match["model"], "keras.Sequential")
    template = "{model}.inputs[0]" if is_single else "{model}.layers[0].output"
    edits.put(node, lambda _: edits.expression(template, model=edits.rebuilt(match["model"])))
    edits.mark(node)


def _plan_named_input(edits: Edits, node: cst.Attribute) -> None:
    """Turn `model.get_layer("x").input` into the output of the layer, if the program has an `Input` of that name."""
    match: Any = m.extract(node, _NAMED_INPUT)
    inputs = [call for call in edits.tree.all(cst.Call) if m.matches(call.func, _INPUT)]
    names = [argument_of(call, "keras.Input", "name") for call in inputs]
    if any(name is not None and edits.tree.code(name.value)[1:-1] == match["name"].value[1:-1] for name in names):
        rename_attribute(edits, node.attr, "output")


def _plan_adapt(edits: Edits) -> None:
    """Give `adapt` of a layer the values of a data set as an array: Keras 3 takes data sets of TensorFlow only."""
    code = "np.concatenate([np.atleast_1d(part) for part in {data}])"
    for call, _ in edits.tree.method_calls("adapt"):
        data = argument_of(call, "keras.layers.Normalization.adapt", "data")
        if data is not None and edits.values.is_dataset(data.value):
            edits.compose(data.value, lambda updated: edits.expression(code, data=updated))


def _plan_rate(edits: Edits) -> None:
    """Give LearningRateScheduler a float: Keras 3 takes no tensor."""
    for call, name in edits.tree.calls():
        passed = argument_of(call, name, "schedule") if name.endswith("callbacks.LearningRateScheduler") else None
        functions = edits.values.functions(passed.value) if passed is not None else ()
        function = next((f.node for f in functions if "array" in edits.values.returned(f.node)), None)
        if passed is not None and function is not None:
            names = ", ".join(parameter_names(function))
            code = f"lambda {names}: float({{function}}({names}))"
            edits.compose(passed.value, lambda f, code=code: edits.expression(code, function=lambda_in_parentheses(f)))


def _plan_mixed_inputs(edits: Edits, call: cst.Call) -> None:
    """Make tensors of a data set's arrays that a model takes in a list: Keras 3 takes no list of both."""
    inputs = call.args[0].value if call.args else None
    is_list = isinstance(inputs, cst.List | cst.Tuple) and len(inputs.elements) > 1
    if not is_list or edits.values.is_traced(call) or not edits.values.is_a(call.func, "keras.layers.Layer"):
        return
    assert isinstance(inputs, cst.List | cst.Tuple)
    kinds = [edits.values.of(element.value) for element in inputs.elements]
    if any("element" in kind for kind in kinds) and any("element" not in kind for kind in kinds):
        for element, kind in zip(inputs.elements, kinds, strict=True):
            if "element" in kind:
                edits.compose(
                    element.value, lambda updated: edits.expression("keras.ops.convert_to_tensor({x})", x=updated)
                )


def _list_foreign(edits: Edits, node: cst.ImportFrom | cst.Import) -> None:
    """List the imports of packages that are built on TensorFlow."""
    module = get_full_name_for_node(node.module) if isinstance(node, cst.ImportFrom) and node.module else ""
    names = [] if isinstance(node.names, cst.ImportStar) else [get_full_name_for_node(n.name) or "" for n in node.names]
    full_names = [f"{module}.{name}" if module else name for name in names] or [module or ""]
    for prefix, text in facts("foreign packages").items():
        if any(name == prefix or re.match(rf"{prefix}(\.|[A-Z])", name) for name in full_names):
            edits.say(node, text)


def _plan_unread(edits: Edits) -> None:
    """Remove the variables that only removed code reads: update operations, options of data sets, signatures."""
    for node, name in edits.tree.chains():
        call = edits.tree.parent_call(node)
        above = edits.tree.parent(call) if call is not None else None
        if isinstance(above, cst.Assign) and name in ("get_collection", "data.Options"):
            targets = [target.target for target in above.targets if isinstance(target.target, cst.Name)]
            if all(_is_left_out(edits, use) for target in targets for use in edits.tree.reads_of(target)):
                edits.drop_statement(above)
        elif (
            name == "TensorSpec"
            and not edits.is_done(node)
            and isinstance(made := edits.tree.small_statement(node), cst.Assign)
        ):
            targets = [target.target for target in made.targets]
            uses = [use for t in targets if isinstance(t, cst.Name) for use in edits.tree.reads_of(t)]
            # `tf.function`, of which they are arguments, is removed.
            calls = [edits.tree.around(use, cst.Call) for use in uses]
            if uses and all(call is not None and edits.tree.old_name(call.func) == "function" for call in calls):
                edits.drop_statement(made)


def _is_left_out(edits: Edits, use: cst.Name) -> bool:
    """Return whether a variable's use is removed: in an ordering block, as options, or as its attribute."""
    tree, above = edits.tree, edits.tree.parent(use)
    if edits.is_done(use) or isinstance(above, cst.Attribute):
        return True
    call = tree.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and tree.code(call.func).endswith(".with_options")


_PLANS = (
    _plan_apply,
    _plan_decay,
    _plan_compile,
    _plan_steps,
    _plan_cache,
    _plan_window,
    _list_computed_step,
    _plan_rate,
    _plan_adapt,
    _plan_keywords,
    _plan_flags,
)
"""The plans of patterns of calls."""
