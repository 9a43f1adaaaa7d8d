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

_OF_NUMPY = ("x", "y", "batch_size", "num_epochs", "shuffle")
_NAME = "estimator.Estimator"


def plan_estimators(edits: Edits) -> None:
    """Plan each `tf.estimator.Estimator`, its model function and its input functions."""
    # 1. Inputs from arrays, and metrics that were pairs.
    calls = [call for call, name in edits.tree.calls() if name == _NAME]
    for call, name in edits.tree.calls():
        if name.endswith("estimator.inputs.numpy_input_fn"):
            _plan_arrays(edits, call)
        if name.startswith("metrics.") and _is_pair(edits, call):
            edits.say(call, advice("metric pair"))
            edits.leave(call.func)
        metrics = argument_of(call, -1, "eval_metric_ops")
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
        input_fn = argument_of(call, 0, "input_fn")
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
    has_config = argument_of(call, 2, "config") is not None
    return new if has_config else with_argument(new, "config", edits.expression("tpu.RunConfig()"))


def _plan_arrays(edits: Edits, call: cst.Call) -> None:
    """Plan an input function of arrays; list one whose order is not known."""
    shuffle = argument_of(call, _OF_NUMPY.index("shuffle"), "shuffle")
    if shuffle is None or not (_is(shuffle, "True") or _is(shuffle, "False")):
        edits.say(call, advice("order of arrays"))
        edits.leave(call.func)
    else:
        edits.put(call, functools.partial(_from_arrays, edits), covers=call.func)


def _from_arrays(edits: Edits, call: cst.Call) -> cst.BaseExpression:
    """Return an input function of a data set that has the rows, order and passes of `numpy_input_fn`.

    Its arguments are default values of the lambda: they are evaluated once, and before their variables change.
    """
    x, y, batch_size, epochs, shuffle = (argument_of(call, at, name) for at, name in enumerate(_OF_NUMPY))
    order = ".shuffle()" if shuffle is not None and _is(shuffle, "True") else ""
    passes = "" if epochs is None or _is(epochs, "1") else ".repeat()" if _is(epochs, "None") else ".repeat({epochs})"
    used = {"x": x, "y": y, "epochs": epochs if "{epochs}" in passes else None, "batch_size": batch_size}
    replacements = {name: part.value for name, part in used.items() if part is not None and not _is(part, "None")}
    replacements.setdefault("batch_size", cst.Integer("128"))
    early = [name for name, part in replacements.items() if not isinstance(part, cst.Integer)]
    body = f"from_arrays({'({x}, {y})' if 'y' in replacements else '{x}'}){order}{passes}.batch({{batch_size}})"
    for name in early:
        body = body.replace(f"{{{name}}}", name)
    parameters = ", ".join(["params", *(f"{name}={{{name}}}" for name in early)])
    return edits.expression(f"lambda {parameters}: tpu.pipeline.Dataset.{body}", **replacements)


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

    edits.compose(function.params, with_parameter)


def _with_params(edits: Edits, passed: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(passed, cst.Lambda) and not passed.params.params:
        return passed.with_changes(
            params=cst.Parameters([cst.Param(cst.Name("params"))]), whitespace_after_lambda=cst.SimpleWhitespace(" ")
        )
    return edits.expression("lambda params: {function}()", function=lambda_in_parentheses(passed))
