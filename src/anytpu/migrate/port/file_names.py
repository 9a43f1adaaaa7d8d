"""Give the files of models and weights the endings that Keras 3 asks for: `.keras` and `.weights.h5`.

Rule: a name is changed where its literal stands, in all calls alike, so what is saved is found again. A name that no
literal gives is left alone.
"""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from anytpu.migrate.port.arguments import argument_of, with_argument
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.replaced.table import advice

_WEIGHTS, _MODEL = ".weights.h5", ".keras"
_OLD_ENDING = re.compile(r"(\.weights)?\.(h5|hdf5|hdf|ckpt|tf)$")


def plan_file_names(edits: Edits) -> None:
    """Plan the endings of all names of files that the program saves, and of those that it loads again."""
    calls = list(edits.tree.all(cst.Call))
    for call, method in edits.tree.method_calls("save"):
        members = edits.values.own_members(method.value)
        if members and "get_config" not in members and edits.values.is_a(method.value, "keras.Model"):
            edits.say(call, advice("class of a saved model"))
    saved = [name for call in calls if (name := _file(edits, call, _written(edits, call))) is not None]
    loaded = [name for call in calls if (name := _file(edits, call, _read(edits, call))) is not None]
    names = {_text(literal): kind for kind, literal in saved if kind != "converted"}
    plain = {_text(literal) for kind, literal in loaded if kind != "converted"}
    names |= {_text(literal): "weights" for kind, literal in saved if kind == "converted" and _text(literal) in plain}
    for kind, literal in [*saved, *loaded]:
        new = _new_text(_text(literal), names.get(_text(literal), ""), kind)
        if new != _text(literal):
            if kind in ("model", "weights") and "/" in new and isinstance(literal, cst.SimpleString):
                # TensorFlow made the folder of a saved model, or of weights; Keras writes into one that exists.
                line = edits.statement(f"os.makedirs({new.rpartition('/')[0]!r}, exist_ok=True)")
                edits.insert_before(edits.tree.statement(literal), [line])
            edits.put(literal, lambda updated, new=new: _with_text(updated, new))
    _plan_lambdas(edits)


def _plan_lambdas(edits: Edits) -> None:
    """Let Keras load the lambdas of a program that has `Lambda` layers of them, as TensorFlow did."""
    layers = [call for call, name in edits.tree.calls() if name == "keras.layers.Lambda" and call.args]
    functions = [layer.args[0].value for layer in layers if isinstance(layer.args[0].value, cst.Lambda)]
    if not functions:
        return
    uses_library = any(edits.tree.library_name(node) for function in functions for node in edits.tree.nodes(function))
    for call, name in edits.tree.calls():
        is_load = name in ("keras.models.load_model", "keras.saving.load_model")
        if is_load and argument_of(call, "", "safe_mode") is None:
            edits.compose(call, lambda updated: with_argument(updated, "safe_mode", cst.Name("False")))
            edits.say(call, advice("file with lambdas"), "note")
            if uses_library:
                edits.say(call, advice("lambda in a file"))


def _file(edits: Edits, call: cst.Call, what: tuple[str, str] | None) -> tuple[str, Any] | None:
    """Return the kind of a file and the literal that ends its name; None if no literal gives it."""
    kind, function = what or ("", "")
    argument = argument_of(call, function, "filepath") if what is not None else None
    literal = _literal(edits, argument.value) if argument is not None else None
    return (kind, literal) if literal is not None else None


def _written(edits: Edits, call: cst.Call) -> tuple[str, str] | None:
    """Return the kind of file that a call writes, and the old name of its function; None if it writes none."""
    library_name = edits.tree.library_name(call.func)
    if library_name == "keras.models.save_model":
        return "model", library_name
    if library_name == "keras.callbacks.ModelCheckpoint":
        only_weights = argument_of(call, library_name, "save_weights_only")
        is_weights = only_weights is not None and edits.tree.code(only_weights.value) == "True"
        return ("weights" if is_weights else "checkpoint"), library_name
    if isinstance(call.func, cst.Attribute) and edits.values.is_a(call.func.value, "keras.Model"):
        weights = "converted" if "converted" in edits.values.of(call.func.value) else "weights"
        kind = {"save": "model", "save_weights": weights}.get(call.func.attr.value)
        return (kind, f"keras.Model.{call.func.attr.value}") if kind is not None else None
    return None


def _read(edits: Edits, call: cst.Call) -> tuple[str, str] | None:
    """Return the kind of file that a call reads, and the old name of its function; None if it reads none."""
    if edits.tree.library_name(call.func) == "keras.models.load_model":
        return "loaded model", "keras.models.load_model"
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "load_weights":
        kind = "converted" if "converted" in edits.values.of(call.func.value) else "loaded weights"
        return kind, "keras.Model.load_weights"
    return None


def _literal(edits: Edits, name: Any, hops: int = 4) -> cst.SimpleString | cst.FormattedStringText | None:
    """Return the literal that ends a name: of a string, an f-string, a join, or the only value of a variable."""
    if not hops or name is None:
        return None
    if isinstance(name, cst.SimpleString):
        return name if isinstance(name.evaluated_value, str) and name.prefix == "" else None
    if isinstance(name, cst.FormattedString):
        last = name.parts[-1] if name.parts else None
        return last if isinstance(last, cst.FormattedStringText) else None
    if isinstance(name, cst.BinaryOperation):
        is_format = isinstance(name.operator, cst.Modulo)
        return _literal(edits, name.left if is_format else name.right, hops - 1)
    if isinstance(name, cst.Call) and edits.tree.code(name.func).endswith("path.join") and name.args:
        return _literal(edits, name.args[-1].value, hops - 1)
    if isinstance(name, cst.Call) and isinstance(name.func, cst.Attribute) and name.func.attr.value == "format":
        return _literal(edits, name.func.value, hops - 1)
    if isinstance(name, cst.Name):
        values = edits.tree.values_assigned_to(name.value)
        return _literal(edits, values[0], hops - 1) if len(values) == 1 else None
    return None


def _text(literal: cst.SimpleString | cst.FormattedStringText) -> str:
    return str(literal.evaluated_value) if isinstance(literal, cst.SimpleString) else literal.value


def _new_text(text: str, saved_as: str, kind: str) -> str:
    """Return a name with the ending for its content; a file that the program does not write keeps a known ending."""
    content = saved_as or {"loaded model": "model"}.get(kind, "")
    if content == "weights" and not text.endswith(_WEIGHTS):
        return _OLD_ENDING.sub("", text).rstrip("/") + _WEIGHTS
    if content == "checkpoint" and not text.endswith(_MODEL):
        return _OLD_ENDING.sub("", text).rstrip("/") + _MODEL
    if content == "model" and not text.endswith((_MODEL, ".h5", ".hdf5")):
        return _OLD_ENDING.sub("", text).rstrip("/") + _MODEL
    return text


def _with_text(literal: Any, text: str) -> Any:
    if isinstance(literal, cst.FormattedStringText):
        return literal.with_changes(value=text)
    quote = literal.quote
    return literal.with_changes(value=f"{literal.prefix}{quote}{text}{quote}")
