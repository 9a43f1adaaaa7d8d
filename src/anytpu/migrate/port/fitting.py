"""Fit the arguments of a call to a function of Keras 3: keywords, positions and defaults that differ from Keras 2.

Rule: an argument passes only if the new function takes it. One whose position differs is passed by keyword, and a
default that differs is written out. An argument that is gone is dropped if it asked for nothing, and else listed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from typing import Any

import libcst as cst

from anytpu.migrate.port import known, old_api
from anytpu.migrate.port.arguments import keyword_of, with_argument, with_keyword
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.filling import rename_attribute
from anytpu.migrate.port.known import Definition
from anytpu.migrate.port.signatures import NO_LITERAL, defaults, is_default, names_by_position, required
from anytpu.migrate.replaced.table import advice, facts

STORES_MODEL = re.compile(
    r"\b(load_model|model_from_\w+|clone_model|ModelCheckpoint|keras_to_tpu_model|tpu_model)\b|\.(save|to_json)\("
)
"""In a program with this, a model is made again by the names of its functions."""
_MAX_LISTED = 24
_SAME_DEFAULTS = ("data_format", "ema_overwrite_frequency", "profile_batch", "reduction", "step", "verbose")
"""Parameters whose defaults differ in their text, or only in what they print."""


def fit_arguments(
    edits: Edits,
    call: cst.Call,
    old: str | None,
    new: Definition | None,
    *,
    keywords: Mapping[str, str | None],
    shown: str,
    accepted: frozenset[str] | None = None,
    by_keyword: str = "",
) -> None:
    """Plan the arguments of a call, or list those that its new function does not take.

    Args:
        edits: the planned edits.
        call: the call.
        old: the recorded name of the old function; None if its positions are not known.
        new: the new function or class; None checks nothing but `keywords`.
        keywords: keyword arguments that the table renames, or drops (None).
        shown: the new function's name in findings.
        accepted: keywords of the new function; None for those of its definition.
        by_keyword: a parameter that is passed by keyword from now on, and all behind it.
    """
    before = old_api.parameters(old) if old is not None else None
    after = known.declared(new) if new is not None else None
    accepted = accepted or (known.parameters(new) if new is not None else None)
    new_positions = names_by_position(after)
    # Keras 2 took `add_weight((3,), name="w")`, too: a name that is passed by keyword is no position.
    by_name = {keyword_of(argument) for argument in call.args}
    positions = [name for name in names_by_position(before) if name not in by_name]
    fitting = {old: new for old, new in keywords.items() if new is None or accepted is None or new in accepted}
    renamed = {**keywords, **_renamed(before, after), **fitting}
    is_moved = before is None
    for index, argument in enumerate(call.args):
        keyword = keyword_of(argument)
        if argument.star:
            positions = []  # of what follows `*args`
            _list_keys(edits, argument, keywords, accepted, shown)
        name = keyword or (positions[index] if index < len(positions) else "")
        if not name or edits.is_done(argument) or (argument.keyword is not None and edits.is_done(argument.keyword)):
            continue
        target = renamed.get(name, name)
        if target is not None and accepted is not None and target not in accepted:
            successors = facts("renamed arguments").get(name, ())
            target = next((other for other in successors if other in accepted), target)
        is_gone = target is None or (accepted is not None and target not in accepted)
        code = edits.tree.code(argument.value)
        is_usual = is_default(before, name, code)
        asks_nothing = code == "None" or is_usual or name in facts("functions")["arguments that change no number"]
        if target is None or (is_gone and asks_nothing) or (name == "reduction" and is_usual):
            edits.drop(argument)
            is_moved = True
        elif is_gone:
            taken = ", ".join(sorted((accepted or frozenset()) - {""})[:_MAX_LISTED])
            hint = facts("gone arguments").get(name, f"its own are {taken}")
            edits.say(argument, advice("refused argument", shown=shown, name=name, hint=hint))
            if not keyword:
                edits.compose(argument, functools.partial(with_keyword, name=name))
                is_moved = True
        elif keyword and target != keyword and argument.keyword is not None:
            rename_attribute(edits, argument.keyword, target)
        elif not keyword and before is not None and after is not None:
            is_forwarded = after.vararg is not None and target not in defaults(after)
            is_same = new_positions[index] == target if index < len(new_positions) else is_forwarded
            is_moved |= not is_same or target == by_keyword
            if is_moved:
                edits.compose(argument, functools.partial(with_keyword, name=target))
    if not any(argument.star for argument in call.args):
        _write_defaults(edits, call, before, after, renamed)


def _list_keys(
    edits: Edits, argument: cst.Arg, keywords: Mapping[str, str | None], accepted: frozenset[str] | None, shown: str
) -> None:
    """List the keys of a dictionary that a call gets as `**options` and that its new function does not take."""
    made = [part for part in edits.tree.sources(argument.value) if isinstance(part, cst.Dict)]
    keys = [item.key for part in made for item in part.elements if isinstance(item, cst.DictElement)]
    for key in (key for key in keys if isinstance(key, cst.SimpleString)):
        name = str(key.evaluated_value)
        if (accepted is not None and name not in accepted) or keywords.get(name, name) != name:
            hint = facts("gone arguments").get(name, keywords.get(name) or "leave it out")
            edits.say(key, advice("refused argument", shown=shown, name=name, hint=hint))


def _renamed(before: ast.arguments | None, after: ast.arguments | None) -> dict[str, str | None]:
    """Map each parameter that only the old function has to the one in its position that only the new one has."""
    olds, news = defaults(before), defaults(after)
    pairs = zip(names_by_position(before), names_by_position(after), strict=False)
    same = ((old, new) for old, new in pairs if olds[old] in (NO_LITERAL, news[new]))
    return {old: new for old, new in same if old not in news and new not in olds}


def _write_defaults(
    edits: Edits,
    call: cst.Call,
    before: ast.arguments | None,
    after: ast.arguments | None,
    renamed: Mapping[str, str | None],
) -> None:
    """Write out the old default of each argument that is not passed, where the new default is another value."""
    news = defaults(after)
    keywords = {keyword_of(argument) for argument in call.args}
    passed = keywords | set(names_by_position(before)[: sum(argument.keyword is None for argument in call.args)])
    for name, old in defaults(before).items():
        new = renamed.get(name, name)
        if {name, new} & passed or new not in news or old in (None, NO_LITERAL, ...) or name in _SAME_DEFAULTS:
            continue
        is_label = name == "name" and news[new] is None
        is_required = news[new] is NO_LITERAL and new in required(after)
        if is_required or (news[new] is not NO_LITERAL and not is_label and _parts(old) != _parts(news[new])):
            own = facts("values of Keras 2").get(str(old))
            value = edits.expression(own or repr(old))
            if own and STORES_MODEL.search(edits.tree.module.code):
                edits.say(call, advice("stored activation"))
            edits.compose(call, lambda updated, new=new, value=value: with_argument(updated, new, value))


def _parts(value: Any) -> set[Any]:
    """Return the numbers and texts in a default: Keras takes 1 for (1, 1), and "Zeros" for "zeros"."""
    if isinstance(value, tuple | list):
        return {part for item in value for part in _parts(item)}
    return {value.lower() if isinstance(value, str) else value}


@functools.cache
def old_class(owner: Definition) -> str | None:
    """Return the recorded name of the class that a class replaces, or the nearest class above it; None for none.

    Example:
        >>> old_class(known.find("keras.layers.Dense")), old_class(known.find("anytpu.pipeline.Dataset"))
        ('keras.layers.Dense', 'data.Dataset')
    """
    for definition in known.ancestors(owner):
        for name in old_api.names_ending(definition.name):
            if known.find(name) == definition:
                return name
    return next((old for new, old in facts("owners").items() if known.is_below(owner, new)), None)
