"""Rewrite plain Estimators: to a `TPUEstimator` on one device, as an Estimator trained.

Idea: the functions of a `TPUEstimator` take `params`. A model function gets the parameter, and an input function that
lacks it is called in a lambda that has it.
"""

from __future__ import annotations

import functools

import libcst as cst

from anytpu.migrate.port.arguments import argument_of, lambda_in_parentheses, with_argument
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.tree import parameter_names
from anytpu.migrate.port.values import MODEL_FUNCTION, Function
from anytpu.migrate.replaced.table import advice

_NAME = "estimator.Estimator"


def plan_estimators(edits: Edits) -> None:
    """Plan each `tf.estimator.Estimator`, its model function and its input functions."""
    # 1. Metrics that were pairs.
    calls = [call for call, name in edits.tree.calls() if name == _NAME]
    for call, name in edits.tree.calls():
        if name.startswith("metrics.") and _is_pair(edits, call):
            edits.say(call, advice("metric pair"))
            edits.leave(call.func)
        metrics = argument_of(call, name, "eval_metric_ops")
        if metrics is not None and name == "estimator.EstimatorSpec":
            edits.say(metrics, advice("metric functions"))
    # 2. The estimators themselves. They run on one device.
    for call in calls:
        edits.put(call, functools.partial(_on_one_device, edits))
        edits.cover(call.func)
    # 3. Functions without `params`: model functions and input functions get one.
    for function in edits.tree.all(cst.FunctionDef) if calls else ():
        if set(parameter_names(function)) >= MODEL_FUNCTION and not _takes_params(function):
            _add_params(edits, function)
    for call, method in edits.tree.method_calls("train", "evaluate", "predict") if calls else ():
        input_fn = argument_of(call, f"{_NAME}.train", "input_fn")
        if input_fn is not None and edits.values.is_a(method.value, "anytpu.TPUEstimator"):
            functions = edits.values.functions(input_fn.value)
            if functions and not any(_takes_params(function.node) for function in functions):
                edits.compose(input_fn.value, functools.partial(_with_params, edits))


def _is_pair(edits: Edits, call: cst.Call) -> bool:
    """Return whether a program takes the result of a metric apart, where it stands or through a variable."""
    tree, above = edits.tree, edits.tree.parent(call)
    targets = [target.target for target in above.targets] if isinstance(above, cst.Assign) else []
    if isinstance(above, cst.Subscript) or any(isinstance(target, cst.Tuple | cst.List) for target in targets):
        return True
    names = [target for target in targets if isinstance(target, cst.Name)]
    reads = [(read, tree.parent(read)) for name in names for read in tree.reads_of(name)]
    return any(
        (isinstance(use, cst.Subscript) and use.value is read)
        or (isinstance(use, cst.Assign) and any(isinstance(t.target, cst.Tuple | cst.List) for t in use.targets))
        for read, use in reads
    )


def _on_one_device(edits: Edits, call: cst.Call) -> cst.Call:
    new = with_argument(call.with_changes(func=edits.expression("tpu.TPUEstimator")), "use_tpu", cst.Name("False"))
    has_config = argument_of(call, _NAME, "config") is not None
    return new if has_config else with_argument(new, "config", edits.expression("tpu.RunConfig()"))


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

    edits.compose(function.params, with_parameter)


def _with_params(edits: Edits, passed: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(passed, cst.Lambda) and not passed.params.params:
        return passed.with_changes(
            params=cst.Parameters([cst.Param(cst.Name("params"))]), whitespace_after_lambda=cst.SimpleWhitespace(" ")
        )
    return edits.expression("lambda params: {function}()", function=lambda_in_parentheses(passed))
