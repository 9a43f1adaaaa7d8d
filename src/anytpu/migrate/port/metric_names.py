"""Keep the names of Keras 2's logs: "lr", "acc" where the metric is "accuracy", and "auc" of the metric "AUC"."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m

from anytpu.migrate.port import known
from anytpu.migrate.port.arguments import argument_of, keyword_of, with_argument
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.tree import parameter_names
from anytpu.migrate.replaced.table import advice

_ACC_KEY = re.compile(r"\{(val_)?acc(?=[:}!])")
_ACCURACY = ("acc", "val_acc")
_LOGS = ("lr", "accuracy", "val_accuracy", *_ACCURACY)


def plan_metric_names(edits: Edits) -> None:
    """Plan the names of logs: keys of a History and of a callback's logs, and the `monitor` of callbacks."""
    tree = edits.tree
    texts = _metric_texts(edits)
    metrics = {text.value[1:-1] for text in texts}
    for text in texts:
        _plan_class(edits, text)
    logs = [text for text in tree.all(cst.SimpleString) if text.value[1:-1] in _LOGS and _names_log(edits, text)]
    for text in logs:
        old = text.value[1:-1]
        if old == "lr":
            _rename(edits, text, "learning_rate")
        elif old in _ACCURACY and "accuracy" in metrics and "acc" not in metrics:
            _rename(edits, text, old.replace("acc", "accuracy"))
        elif old in _ACCURACY and {"acc", "accuracy"} <= metrics:
            edits.say(text, advice("two names of accuracy"))


def plan_log_paths(edits: Edits) -> None:
    """Rename the logs in the file names of ModelCheckpoint: "w.{val_acc:.2f}.h5"."""
    metrics = {text.value[1:-1] for text in _metric_texts(edits)}
    if "accuracy" not in metrics or "acc" in metrics:
        return
    for call, name in edits.tree.calls():
        path = argument_of(call, name, "filepath") if name.endswith("callbacks.ModelCheckpoint") else None
        parts = edits.tree.sources(path.value) if path is not None else ()
        for text in (text for part in parts for text in edits.tree.nodes(part) if isinstance(text, cst.SimpleString)):
            edits.compose(text, lambda updated: updated.with_changes(value=_ACC_KEY.sub(r"{\1accuracy", updated.value)))


def _metric_texts(edits: Edits) -> list[cst.SimpleString]:
    """Return the strings that name metrics in calls of `compile`, also through a variable."""
    compiled = edits.tree.method_calls("compile")
    passed = [
        argument_of(call, "keras.Model.compile", key) for call, _ in compiled for key in ("metrics", "weighted_metrics")
    ]
    values = [part for argument in passed if argument is not None for part in edits.tree.sources(argument.value)]
    strings = [text for value in values for text in edits.tree.nodes(value) if isinstance(text, cst.SimpleString)]
    return [text for text in strings if _is_metric(edits, text)]


def _is_metric(edits: Edits, text: cst.SimpleString) -> bool:
    """Return whether a string is a metric itself: not a key of a dictionary or an argument of a metric's call."""
    above = edits.tree.parent(text)
    is_key = isinstance(above, cst.DictElement) and above.key is text
    call = edits.tree.around(text, cst.Call, cst.Assign)
    return not is_key and (not isinstance(call, cst.Call) or _is_compile(call))


def plan_metric_functions(edits: Edits) -> None:
    """Give the program's own metrics labels of (rows, 1), as Keras 2 did for predictions of (rows, 1)."""
    passed = [argument_of(call, "keras.Model.compile", "metrics") for call, _ in edits.tree.method_calls("compile")]
    parts = [part for argument in passed if argument is not None for part in edits.tree.sources(argument.value)]
    elements = [node.value for part in parts for node in edits.tree.nodes(part) if isinstance(node, cst.Element)]
    own = dict.fromkeys(found.node for element in elements for found in edits.values.functions(element))
    _plan_objects(edits, [node for node in own if isinstance(node, cst.FunctionDef) and node in edits.tree.module.body])
    for function in own:
        names = parameter_names(function)
        if isinstance(function, cst.Lambda) or len(names) != 2:
            continue
        labels, scores = names
        test = f"len({labels}.shape) == 1 and len({scores}.shape) == 2"
        code = f"{labels} = keras.ops.expand_dims({labels}, -1) if {test} else {labels}"
        first = [line for line in edits.tree.nodes(function.body) if isinstance(line, cst.SimpleStatementLine)]
        is_text = function.get_docstring() is not None
        edits.insert_before(first[is_text], [edits.statement(code)])


def _plan_objects(edits: Edits, functions: list[cst.FunctionDef]) -> None:
    """Pass the program's metrics to `model_from_json`: Keras 3 writes what compile was given into the text."""
    for call in [call for call, name in edits.tree.calls() if name.endswith("model_from_json")]:
        names = [f.name.value for f in functions if edits.tree.function(call) or edits.tree.ends_before(f, call)]
        own = ", ".join(f"{name}={name}" for name in names)
        passed = argument_of(call, "keras.models.model_from_json", "custom_objects")
        if own and passed is not None:
            code = f"dict({{old}} or (), {own})"
            edits.compose(passed.value, lambda old, code=code: edits.expression(code, old=old))
        elif own:
            new = edits.expression(f"dict({own})")
            edits.compose(call, lambda old, new=new: with_argument(old, "custom_objects", new))


def _plan_class(edits: Edits, text: cst.SimpleString) -> None:
    """Name the metric of a class: Keras 2 logged "AUC" as "auc", Keras 3 logs it as "AUC"."""
    name = text.value[1:-1]
    if name[:1].isupper() and known.is_below(known.find(f"keras.metrics.{name}"), "keras.metrics.Metric"):
        words = re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z0-9]+)", r"\1_\2", name))
        edits.put(text, lambda _: edits.expression(f'keras.metrics.{name}(name="{words.lower()}")'))


def _is_compile(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "compile"


def _rename(edits: Edits, text: cst.SimpleString, new: str) -> None:
    quote = text.value[0]
    edits.put(text, lambda updated: updated.with_changes(value=f"{quote}{new}{quote}"))


def _names_log(edits: Edits, text: cst.SimpleString) -> bool:
    """Return whether a string is the name of a log: a key of `history.history` or `logs`, or a `monitor`."""
    tree, above = edits.tree, edits.tree.parent(text)
    if isinstance(above, cst.Arg):
        call = tree.parent(above)
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "get":
            return _holds_logs(edits, call.func.value)
        return keyword_of(above) == "monitor"
    if isinstance(above, cst.Element):  # for key in ["loss", "lr"]: history.history[key]
        looked_up = [item for item in tree.all(cst.Subscript) if m.matches(item.slice[0].slice, m.Index(m.Name()))]
        return any(_holds_logs(edits, item.value) for item in looked_up)
    item = tree.around(text, cst.Subscript) if isinstance(above, cst.Index) else None
    return item is not None and _holds_logs(edits, item.value)


def _holds_logs(edits: Edits, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.Attribute):
        return value.attr.value == "history" and "history" not in edits.values.own_members(value.value)
    if not isinstance(value, cst.Name):
        return False
    assigned = edits.tree.values_assigned_to(value.value)
    return value.value == "logs" or any(m.matches(node, m.Attribute(attr=m.Name("history"))) for node in assigned)
