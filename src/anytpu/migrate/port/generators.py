"""Rewrite `tf.data.Dataset.from_generator`: its types made tensors of what the generator yields, lists too.

Rule: the types become a `map` that makes arrays of them. Without it a list would be a structure of numbers.
"""

from __future__ import annotations

import libcst as cst

from anytpu.migrate.port.arguments import argument_of
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.replaced.table import advice


def plan_generators(edits: Edits) -> None:
    """Plan the types of all data sets that are made from generators."""
    for call, name in edits.tree.calls():
        if name != "data.Dataset.from_generator":
            continue
        types, shapes = (argument_of(call, name, key) for key in ("output_types", "output_shapes"))
        types = types or argument_of(call, name, "output_signature")
        code = _converted(edits, types.value, "row") if types is not None else None
        if types is not None and code is None:
            edits.say(types, advice("types of a generator"))
            edits.leave(types)
            continue
        for argument in (types, shapes):
            if argument is not None:
                edits.drop(argument)
        if code is not None:
            template = f"{{dataset}}.map(lambda row: {code})"
            edits.compose(call, lambda updated, new=template: edits.expression(new, dataset=updated))


def _converted(edits: Edits, types: cst.BaseExpression, part: str) -> str | None:
    """Return code that makes arrays of a part of an element; None for types that are no literal."""
    if isinstance(types, cst.Tuple):
        parts = [_converted(edits, element.value, f"{part}[{index}]") for index, element in enumerate(types.elements)]
        known = [code for code in parts if code is not None]
        return f"({', '.join(known)}{',' * (len(parts) == 1)})" if len(known) == len(parts) else None
    if isinstance(types, cst.Dict):
        items = [element for element in types.elements if isinstance(element, cst.DictElement)]
        keys = [edits.tree.code(item.key) for item in items]
        parts = [_converted(edits, item.value, f"{part}[{key}]") for key, item in zip(keys, items, strict=True)]
        if len(items) < len(types.elements) or None in parts:
            return None
        return f"{{{', '.join(f'{key}: {code}' for key, code in zip(keys, parts, strict=True))}}}"
    if isinstance(types, cst.Call) and edits.tree.old_name(types.func) == "TensorSpec":
        dtype = argument_of(types, "TensorSpec", "dtype")
        return _converted(edits, dtype.value, part) if dtype is not None else f'np.asarray({part}, "float32")'
    name = (edits.tree.old_name(types) or "").removeprefix("dtypes.")
    text = types.evaluated_value if isinstance(types, cst.SimpleString) else name
    if not isinstance(text, str) or not text.isidentifier():
        return None
    return f"np.asarray({part}, {'bytes' if text == 'string' else repr(text).replace(chr(39), chr(34))})"
