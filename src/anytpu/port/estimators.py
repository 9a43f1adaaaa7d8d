"""Rewrite plain Estimators: to a `TPUEstimator` on one device, as an Estimator trained.

Idea: the functions of a `TPUEstimator` take `params`. A model function gets the parameter, and an input function that
lacks it is called in a lambda that has it.
"""

from __future__ import annotations

import functools

import libcst as cst

from anytpu.port.arguments import argument_of, in_parentheses, with_argument
from anytpu.port.edits import Edits
from anytpu.port.values import MODEL_FUNCTION, Function, parameter_names

_VERBS = ("train", "evaluate", "predict")
_METRICS = (
    "write eval_metrics=(metric_fn, [labels, logits]): metric_fn(labels, logits) gets the rows of the whole "
    "evaluation, and returns metrics of Keras or numbers by name"
)
_OF_NUMPY = ("x", "y", "batch_size", "num_epochs", "shuffle")
_ORDER = "write shuffle=True or shuffle=False: tpu.pipeline.Dataset has a method shuffle, which is called or left out"
_LATE = (
    "the rewritten input function would read {names} only when it is called: make it in a function of its own that "
    "takes {names}"
)
_REPEATED = (cst.For, cst.While, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_NAME = "estimator.Estimator"


def plan_estimators(edits: Edits) -> None:
    """Plan each `tf.estimator.Estimator`, its model function and its input functions."""
    calls = [call for call in edits.tree.all(cst.Call) if edits.tree.old_name(call.func) == _NAME]
    for call in edits.tree.all(cst.Call):
        if (edits.tree.old_name(call.func) or "").endswith("estimator.inputs.numpy_input_fn"):
            _plan_arrays(edits, call)
        metrics = argument_of(call, -1, "eval_metric_ops")
        if metrics is not None and edits.tree.old_name(call.func) == "estimator.EstimatorSpec":
            edits.say(metrics, _METRICS)
    for call in calls:
        edits.put(call, functools.partial(_with_one_device, edits))
        edits.cover(call.func)
    for function in edits.tree.all(cst.FunctionDef) if calls else ():
        if set(parameter_names(function)) >= MODEL_FUNCTION and not _takes_params(function):
            _add_params(edits, function)
    for call in edits.tree.all(cst.Call) if calls else ():
        is_verb = isinstance(call.func, cst.Attribute) and call.func.attr.value in _VERBS
        input_fn = argument_of(call, 0, "input_fn") if is_verb else None
        if input_fn is not None and isinstance(call.func, cst.Attribute):
            functions = edits.values.functions(input_fn.value)
            is_estimator = edits.values.is_a(call.func.value, "anytpu.TPUEstimator")
            if is_estimator and functions and not any(_takes_params(function.node) for function in functions):
                edits.put_after(input_fn.value, functools.partial(_with_params, edits))


def _with_one_device(edits: Edits, call: cst.Call) -> cst.Call:
    new = with_argument(call.with_changes(func=edits.expression("tpu.TPUEstimator")), "use_tpu", cst.Name("False"))
    has_config = argument_of(call, 2, "config") is not None
    return new if has_config else with_argument(new, "config", edits.expression("tpu.RunConfig()"))


def _plan_arrays(edits: Edits, call: cst.Call) -> None:
    """Plan an input function of arrays; list one whose order or whose variables are not known."""
    shuffle = argument_of(call, _OF_NUMPY.index("shuffle"), "shuffle")
    late = _rebound(edits, call)
    if late:
        edits.say(call, _LATE.format(names=", ".join(late)))
    elif shuffle is None or not (_is(shuffle, "True") or _is(shuffle, "False")):
        edits.say(call, _ORDER)
    else:
        edits.put(call, functools.partial(_from_arrays, edits), covers=call.func)
        return
    edits.leave(call.func)


def _rebound(edits: Edits, call: cst.Call) -> list[str]:
    """Return the variables of a call's arguments that may change behind it: a lambda reads them late."""
    tree = edits.tree
    is_repeated = tree.around(call, *_REPEATED) is not None
    names = [n for argument in call.args for n in tree.names(argument.value) if tree.library_name(n) is None]
    own = [n for n in names if tree.scopes_of(n)]
    stored = [n for n in tree.names() if tree.is_stored(n)]

    def changes(name: cst.Name) -> bool:
        stores = [n for n in stored if n.value == name.value and tree.scopes_of(n) & tree.scopes_of(name)]
        return any(is_repeated or not tree.ends_before(tree.small_statement(n) or n, call) for n in stores)

    return sorted({name.value for name in own if changes(name)})


def _from_arrays(edits: Edits, call: cst.Call) -> cst.BaseExpression:
    """Return an input function of a data set that has the rows, order and passes of `numpy_input_fn`."""
    x, y, batch_size, epochs, shuffle = (argument_of(call, at, name) for at, name in enumerate(_OF_NUMPY))
    has_labels = y is not None and not _is(y, "None")
    arrays = "({x}, {y})" if has_labels else "{x}"
    order = ".shuffle()" if shuffle is not None and _is(shuffle, "True") else ""
    passes = "" if epochs is None or _is(epochs, "1") else ".repeat()" if _is(epochs, "None") else ".repeat({epochs})"
    template = f"lambda params: tpu.pipeline.Dataset.from_arrays({arrays}){order}{passes}.batch({{batch_size}})"
    rows = batch_size.value if batch_size is not None else cst.Integer("128")
    parts = {"x": x, "y": y if has_labels else None, "epochs": epochs if "{epochs}" in passes else None}
    given = {name: part.value for name, part in parts.items() if part is not None}
    return edits.expression(template, batch_size=rows, **given)


def _is(argument: cst.Arg, code: str) -> bool:
    return cst.Module([]).code_for_node(argument.value) == code


def _takes_params(function: Function) -> bool:
    every = (*function.params.params, *function.params.kwonly_params)
    return function.params.star_kwarg is not None or any(parameter.name.value == "params" for parameter in every)


def _add_params(edits: Edits, function: cst.FunctionDef) -> None:
    """Give a model function the parameter `params`, behind those that it has."""
    has_default = any(parameter.default is not None for parameter in function.params.params)
    new = cst.Param(cst.Name("params"), default=cst.Name("None") if has_default else None)

    def with_parameter(updated: cst.Parameters) -> cst.Parameters:
        kept = [*updated.params[:-1], updated.params[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
        return updated.with_changes(params=[*kept, new])

    edits.put_after(function.params, with_parameter)


def _with_params(edits: Edits, passed: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(passed, cst.Lambda) and not passed.params.params:
        return passed.with_changes(
            params=cst.Parameters([cst.Param(cst.Name("params"))]), whitespace_after_lambda=cst.SimpleWhitespace(" ")
        )
    function = in_parentheses(passed) if isinstance(passed, cst.Lambda) else passed
    return edits.expression("lambda params: {function}()", function=function)
