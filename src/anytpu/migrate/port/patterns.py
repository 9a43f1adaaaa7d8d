"""Rewrite small patterns of several names: blocks that only order operations, `apply`, options, and learning rates."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from anytpu.migrate.port import known
from anytpu.migrate.port.arguments import argument_of, in_parentheses, keyword_of, plain_assignment, with_argument
from anytpu.migrate.port.control_flow import plan_range_loops
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.filling import OWNER, fill, leave_out_method, rename_attribute
from anytpu.migrate.port.resolvers import plan_resolvers
from anytpu.migrate.port.rules import new_name, rule_of, rules
from anytpu.migrate.port.seeds import functions_of_lambdas
from anytpu.migrate.port.sessions import plan_sessions
from anytpu.migrate.port.tree import parameter_names
from anytpu.migrate.replaced.table import FOREIGN

_ORDERING = ("control_dependencies", "Graph", "get_default_graph")
_SETS_RATE = re.compile(r"LearningRateScheduler|ReduceLROnPlateau|set_value\(|\.(lr|learning_rate)\s*=|keras_to_tpu")
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
_COMPUTED_STEP = (
    "optax and Keras call a schedule with the number of the step, not with {step}: "
    "write its boundaries or decay_steps in steps"
)
_MONITORS = ("callbacks.EarlyStopping", "callbacks.ModelCheckpoint", "callbacks.ReduceLROnPlateau")
_MODES = 'the versions of Keras 2 took different modes for {metric!r}: write mode="max" or mode="min"'
_MODE = "Keras 2 took mode={mode} for {metric!r}; check that it is meant"
_PARTS = "tpu.pipeline.windows makes whole windows: write the size of this batch there, and leave this flat_map out"
_PERIOD = "Keras 3 counts batches, not epochs: write save_freq=, the number of epochs times the batches of one"
_METRIC_NAMES = "{model}._flatten_metrics_in_order(dict((name, name) for name in {model}.get_metrics_result()))"


def plan_patterns(edits: Edits) -> None:
    """Plan the patterns, before the single names."""
    # Patterns of whole blocks come first: they mark nodes as handled, and later rules skip these.
    plan_range_loops(edits)
    plan_sessions(edits)
    plan_resolvers(edits)
    for node in edits.tree.nodes():
        if isinstance(node, cst.With):
            is_ordering = len(node.items) == 1 and _orders(edits, node.items[0].item)
            if is_ordering and isinstance(node.body, cst.IndentedBlock):
                edits.put_body(node, node.items[0])
        elif isinstance(node, cst.Call):
            _plan_apply(edits, node)
            _plan_decay(edits, node)
            _plan_compile(edits, node)
            _plan_steps(edits, node)
            _plan_cache(edits, node)
            _plan_window(edits, node)
            _list_computed_step(edits, node)
            _plan_rate(edits, node)
            _plan_adapt(edits, node)
            _plan_keywords(edits, node)
            _plan_mixed_inputs(edits, node)
        elif isinstance(node, cst.AugAssign):
            _plan_assignment(edits, node)
        elif isinstance(node, cst.ImportFrom | cst.Import):
            _list_foreign(edits, node)
        elif isinstance(node, cst.Attribute) and node.attr.value == "as_dict":
            _plan_specification(edits, node)
        elif m.matches(node, _SESSION_OPTION) and edits.tree.is_stored(node):
            edits.drop_statement(node)
        elif isinstance(node, cst.Attribute) and m.matches(node, _FIRST_INPUT):
            _plan_first_input(edits, node)
        elif isinstance(node, cst.Attribute) and m.matches(node, _NAMED_INPUT):
            _plan_named_input(edits, node)
        elif isinstance(node, cst.Attribute) and node.attr.value == "metrics_names":
            # Keras 3 names one metric that holds all of `compile`; this is the order of what evaluate returns.
            edits.put(node, lambda updated: edits.expression(_METRIC_NAMES, model=updated.value))
            edits.mark(node)
    # Variables come last: the edits above may remove their only reader.
    _plan_unread(edits)
    _plan_registration(edits)
    _plan_verbosity(edits)


def _orders(edits: Edits, item: cst.BaseExpression) -> bool:
    """Return whether a block only orders operations: statements run in the order they are written."""
    match: Any = m.extract(item, m.Call(m.Attribute(m.SaveMatchedNode(m.Call(), "made"), m.Name("as_default"))))
    call = match["made"] if match is not None else item
    return isinstance(call, cst.Call) and edits.tree.old_name(call.func) in _ORDERING


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
    if fill(edits, made, rule[1], rule[1].target, **{OWNER: owner}):
        edits.put(call, lambda updated: updated.args[0].value)
        edits.mark(call.func)
        edits.cover(made.func)


def _plan_decay(edits: Edits, call: cst.Call) -> None:
    """Turn the `decay` of an optimizer of Keras 2 into the schedule that it stood for."""
    decay, rate = argument_of(call, -1, "decay"), argument_of(call, 0, "lr", "learning_rate")
    name = new_name(edits.tree.library_name(call.func) or "") or ""
    if decay is None or not known.is_below(known.find(name), "keras.optimizers.Optimizer"):
        return
    if re.fullmatch(r"0(\.0*)?", edits.tree.code(decay.value)):
        edits.drop(decay)
    elif rate is None:
        edits.say(
            decay, "Keras 3 has no decay: pass keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay) as the rate"
        )
    elif _SETS_RATE.search(edits.tree.module.code):
        edits.say(
            decay, "Keras 3 has no decay beside a learning rate that is set: leave it out, or use a schedule only"
        )
    else:
        edits.drop(decay)
        schedule = "keras.optimizers.schedules.InverseTimeDecay({rate}, 1, {decay})"
        edits.put(
            rate.value, lambda updated: edits.expression(schedule, rate=updated, decay=edits.rebuilt(decay.value))
        )


def _plan_specification(edits: Edits, method: cst.Attribute) -> None:
    """Turn `resolver.cluster_spec().as_dict()` into a dictionary, and `[...]` of it into a look-up that may fail."""
    call, specification = edits.tree.parent_call(method), method.value
    if call is None or not m.matches(specification, m.Call(m.Attribute(attr=m.Name("cluster_spec")))):
        return
    item = edits.tree.parent(call)
    key = item.slice[0].slice if isinstance(item, cst.Subscript) else None
    if isinstance(item, cst.Subscript) and isinstance(key, cst.Index):
        edits.put(
            item,
            lambda _: edits.expression(
                "{spec}.get({key})", spec=edits.rebuilt(specification), key=edits.rebuilt(key.value)
            ),
        )
    else:
        edits.put(call, lambda updated: updated.func.value)
    edits.mark(method)


def _plan_compile(edits: Edits, call: cst.Call) -> None:
    """Give `compile` an optimizer of Keras in place of TensorFlow 1's, which `tf.keras` took too."""
    is_compile = isinstance(call.func, cst.Attribute) and call.func.attr.value == "compile"
    optimizer = argument_of(call, 0, "optimizer") if is_compile else None
    values = [optimizer.value] if optimizer is not None else []
    if values and isinstance(values[0], cst.Name):
        values = edits.tree.values_assigned_to(values[0].value)
    for made in values:
        row = rules().get(f"compile.{edits.tree.old_name(made.func)}") if isinstance(made, cst.Call) else None
        if row is not None and isinstance(made, cst.Call):
            fill(edits, made, row)


def _plan_steps(edits: Edits, call: cst.Call) -> None:
    """Round up a number of steps that is a quotient: TensorFlow took 2.5 steps for 3."""
    name = call.func.attr.value.removesuffix("_generator") if isinstance(call.func, cst.Attribute) else ""
    is_loop = name in ("fit", "evaluate", "predict")
    if is_loop and isinstance(call.func, cst.Attribute) and edits.values.is_a(call.func.value, "keras.Model"):
        for argument in call.args:
            if keyword_of(argument) in _STEPS and _is_quotient(edits, argument.value):
                edits.compose(argument.value, lambda steps: edits.expression("int(np.ceil({steps}))", steps=steps))


def _is_quotient(edits: Edits, value: cst.BaseExpression, hops: int = 3) -> bool:
    if isinstance(value, cst.BinaryOperation):
        parts = (value.left, value.right) if isinstance(value.operator, cst.Add | cst.Subtract | cst.Multiply) else ()
        return isinstance(value.operator, cst.Divide) or any(_is_quotient(edits, part, hops) for part in parts)
    values = edits.tree.values_assigned_to(value.value) if isinstance(value, cst.Name) and hops else []
    return any(_is_quotient(edits, assigned, hops - 1) for assigned in values)


def _plan_cache(edits: Edits, call: cst.Call) -> None:
    """Leave out a `cache` behind an endless `repeat`: it would store the same elements again and again."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "cache":
        return
    if edits.values.is_dataset(call.func.value) and _is_repeated(edits, call):
        edits.say(call, "cache is left out: the data set is endless here; put it before repeat()", "note")
        leave_out_method(edits, call)


def _is_repeated(edits: Edits, call: cst.Call) -> bool:
    """Return whether an endless `repeat` comes before, in the same chain or in an assignment to its variable."""
    tree, start = edits.tree, call.func
    while isinstance(start, cst.Call | cst.Attribute):
        start = start.func if isinstance(start, cst.Call) else start.value
    chain = set(tree.nodes(call.func))
    for node in tree.nodes(tree.function(call)):
        if m.matches(node, m.Call(m.Attribute(attr=m.Name("repeat")))) and isinstance(node, cst.Call):
            is_endless = not node.args or tree.code(node.args[0].value) in ("-1", "None")
            is_same = tree.target_code(tree.small_statement(node)) == tree.code(start)
            if is_endless and (node in chain or (is_same and tree.ends_before(node, call))):
                return True
    return False


def _plan_window(edits: Edits, call: cst.Call) -> None:
    """Turn `window(...)` and the `flat_map(lambda w: w.batch(...))` behind it into `tpu.pipeline.windows`."""
    if not isinstance(call.func, cst.Attribute) or not edits.values.is_dataset(call.func.value):
        return
    whole = argument_of(call, 3, "drop_remainder")
    if call.func.attr.value == "window" and whole is not None and edits.tree.code(whole.value) == "True":
        fill(edits, call, rules()["data.Dataset.window"], rules()["data.Dataset.window"].target)
    elif call.func.attr.value == "flat_map" and m.matches(call, _BATCHES) and not _is_whole_window(edits, call):
        edits.say(call, _PARTS)
    elif call.func.attr.value == "flat_map" and m.matches(call, _BATCHES):
        leave_out_method(edits, call)
        edits.cover(call.args[0])


def _is_whole_window(edits: Edits, call: cst.Call) -> bool:
    """Return whether `flat_map` puts each window into one batch, so that nothing is left to do."""
    match = m.extract(call, _BATCHES)
    made = [c for c in edits.tree.all(cst.Call) if m.matches(c.func, m.Attribute(attr=m.Name("window")))]
    sizes = [size for window in made if (size := argument_of(window, 0, "size")) is not None]
    if match is None or not sizes:
        return False
    size: Any = match["size"]
    return all(edits.tree.code(other.value) == edits.tree.code(size) for other in sizes)


def _list_computed_step(edits: Edits, call: cst.Call) -> None:
    """List a schedule of an expression such as `global_step * batch_size`: optax and Keras call it with the step."""
    name = edits.tree.library_name(call.func) or ""
    if not name.endswith(_SCHEDULES):
        return
    step = argument_of(call, 0 if name.endswith("constant") else 1, "global_step", "x")
    if step is not None and isinstance(step.value, cst.BinaryOperation):
        edits.say(call, _COMPUTED_STEP.format(step=edits.tree.code(step.value)))
        edits.leave(call)


def _plan_keywords(edits: Edits, call: cst.Call) -> None:
    """Write the names of layers without slashes, which Keras 3 refuses, and leave out `period=1`, its default."""
    name = edits.tree.library_name(call.func) or ""
    label = argument_of(call, -1, "name") if ".layers." in name or name in ("keras.Input", "keras.Model") else None
    if label is not None and isinstance(label.value, cst.SimpleString) and "/" in label.value.value:
        edits.put(label.value, lambda updated: updated.with_changes(value=updated.value.replace("/", "_")))
    if name.endswith("layers.Embedding"):
        _plan_length(edits, call)
    period = argument_of(call, 6, "period") if name.endswith("callbacks.ModelCheckpoint") else None
    if period is not None and edits.tree.code(period.value) == "1":
        edits.drop(period)
    elif period is not None and (keyword_of(period) or isinstance(period.value, cst.Integer)):
        edits.say(period, _PERIOD)
        edits.cover(period)
    if name.endswith("TFRecordWriter") and len(call.args) == 2:
        row = dataclasses.replace(rules()["io.TFRecordWriter"], parameters={"path": None, "options": None})
        fill(edits, call, row, "tpu.pipeline.RecordWriter({path}, {options})")
    _plan_mode(edits, call, name)


def _plan_length(edits: Edits, call: cst.Call) -> None:
    """Give an Embedding its `input_shape`: a Sequential of Keras 2 that started with one was built, of any length."""
    length = argument_of(call, 7, "input_length")
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
    is_monitor = name.endswith(_MONITORS)
    monitor, mode = (argument_of(call, -1, key) for key in ("monitor", "mode"))
    if not is_monitor or monitor is None or (mode is not None and edits.tree.code(mode.value)[1:-1] != "auto"):
        return
    metric = edits.tree.code(monitor.value)[1:-1]
    is_text = isinstance(monitor.value, cst.SimpleString)
    if not is_text or metric.removeprefix("val_") in ("loss", "acc", "accuracy"):
        return
    is_up = "acc" in metric or (name.endswith("ModelCheckpoint") and metric.startswith("fmeasure"))
    if name.endswith("EarlyStopping") and is_up != metric.endswith(("acc", "accuracy", "auc")):  # as later versions did
        edits.say(call, _MODES.format(metric=metric))
        return
    new = cst.SimpleString('"max"' if is_up else '"min"')
    edits.compose(call, lambda updated: with_argument(updated, "mode", new))
    edits.say(call, _MODE.format(mode=new.value, metric=metric), "note")


def _plan_first_input(edits: Edits, node: cst.Attribute) -> None:
    """Turn `model.layers[0].input` into the model's input: Keras 3 gives an InputLayer no input.

    The layers of a model with several inputs are in another order than its inputs.
    """
    match: Any = m.extract(node, _FIRST_INPUT)
    made = edits.tree.values_assigned_to(match["model"].value) if isinstance(match["model"], cst.Name) else []
    inputs = [argument_of(call, 0, "inputs") for call in made if isinstance(call, cst.Call)]
    is_single = not any(part is not None and isinstance(part.value, cst.List | cst.Tuple | cst.Dict) for part in inputs)
    is_single |= edits.values.is_a(match["model"], "keras.Sequential")
    template = "{model}.inputs[0]" if is_single else "{model}.layers[0].output"
    edits.put(node, lambda _: edits.expression(template, model=edits.rebuilt(match["model"])))
    edits.mark(node)


def _plan_named_input(edits: Edits, node: cst.Attribute) -> None:
    """Turn `model.get_layer("x").input` into the output of the layer, if the program has an `Input` of that name."""
    match: Any = m.extract(node, _NAMED_INPUT)
    inputs = [call for call in edits.tree.all(cst.Call) if m.matches(call.func, _INPUT)]
    names = [argument_of(call, -1, "name") for call in inputs]
    if any(name is not None and edits.tree.code(name.value)[1:-1] == match["name"].value[1:-1] for name in names):
        rename_attribute(edits, node.attr, "output")


def _plan_adapt(edits: Edits, call: cst.Call) -> None:
    """Give `adapt` of a layer the values of a data set as an array: Keras 3 takes data sets of TensorFlow only."""
    data = argument_of(call, 0, "data") if m.matches(call.func, m.Attribute(attr=m.Name("adapt"))) else None
    if data is not None and edits.values.is_dataset(data.value):
        edits.compose(
            data.value,
            lambda updated: edits.expression("np.concatenate([np.atleast_1d(part) for part in {data}])", data=updated),
        )


def _plan_rate(edits: Edits, call: cst.Call) -> None:
    """Give LearningRateScheduler a float: Keras 3 takes no tensor."""
    is_scheduler = (edits.tree.library_name(call.func) or "").endswith("callbacks.LearningRateScheduler")
    passed = argument_of(call, 0, "schedule") if is_scheduler else None
    for function in edits.values.functions(passed.value) if passed is not None else ():
        names = parameter_names(function.node)
        if "array" in edits.values.returned(function.node):
            code = f"lambda {', '.join(names)}: float({{function}}({', '.join(names)}))"
            edits.compose(passed.value, lambda updated, code=code: edits.expression(code, function=_alone(updated)))  # pyright: ignore[reportOptionalMemberAccess]
            return


def _alone(function: Any) -> Any:
    return in_parentheses(function) if isinstance(function, cst.Lambda) else function


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


def _plan_assignment(edits: Edits, node: cst.AugAssign) -> None:
    """Turn `image /= 255` in a function of a data set into `image = image / 255`: NumPy would change the source."""
    if isinstance(node.target, cst.Name) and edits.values.is_host(node):
        edits.put(node, lambda updated: plain_assignment(updated, cst.Name(updated.target.value)))


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
    names = [new_name(name) for _, name in edits.tree.chains()]
    if "tpu.keras_to_tpu_model" not in names:
        return

    def registered(updated: Any) -> Any:
        decorator = cst.Decorator(edits.expression("keras.saving.register_keras_serializable()"))
        return updated.with_changes(decorators=[*updated.decorators, decorator])

    in_lambdas = functions_of_lambdas(edits)
    for node in edits.tree.all(cst.ClassDef, cst.FunctionDef):
        if node in in_lambdas or (isinstance(node, cst.ClassDef) and edits.values.is_layer(node)):
            edits.compose(node, registered)


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
            if uses and all(_is_of_function(edits, use) for use in uses):
                edits.drop_statement(made)


def _plan_verbosity(edits: Edits) -> None:
    """Keep the level of the log where a program writes lines that the default level hides."""
    names = [name for _, name in edits.tree.chains()]
    if not any(re.match(r"logging\.(info|debug|log|vlog)", name) for name in names):
        return
    for node, name in edits.tree.chains():
        if name == "logging.set_verbosity":
            edits.put(node, lambda _: edits.expression("absl.logging.set_verbosity"), covers=node)


def _is_of_function(edits: Edits, use: cst.Name) -> bool:
    """Return whether a variable's use is an argument of `tf.function`, which is removed."""
    call = edits.tree.around(use, cst.Call)
    return call is not None and edits.tree.old_name(call.func) == "function"


def _is_left_out(edits: Edits, use: cst.Name) -> bool:
    """Return whether a variable's use is removed: in an ordering block, as options, or as its attribute."""
    tree, above = edits.tree, edits.tree.parent(use)
    if edits.is_done(use) or isinstance(above, cst.Attribute):
        return True
    call = tree.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and tree.code(call.func).endswith(".with_options")
