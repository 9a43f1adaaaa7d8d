"""Parameters of a function as Python's parser gives them: their positions and their defaults."""

from __future__ import annotations

import ast
from typing import Any

NO_LITERAL = object()
"""The value of code that is no literal."""


def names_by_position(arguments: ast.arguments | None) -> list[str]:
    """Return the parameters that may be passed by position, without `self`."""
    names = [part.arg for part in (*arguments.posonlyargs, *arguments.args)] if arguments is not None else []
    return names[names[:1] in (["self"], ["cls"]) :]


def defaults(arguments: ast.arguments | None) -> dict[str, Any]:
    """Map each parameter to the value of its default; `NO_LITERAL` for one that is no literal, or for none."""
    if arguments is None:
        return {}
    names = [part.arg for part in (*arguments.posonlyargs, *arguments.args)]
    values = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
    only = [part.arg for part in arguments.kwonlyargs]
    values |= dict(zip(only, arguments.kw_defaults, strict=True))
    return {name: literal(values.get(name)) for name in (*names, *only)}


def required(arguments: ast.arguments | None) -> list[str]:
    """Return the parameters by position that have no default."""
    names = names_by_position(arguments)
    return names[: len(names) - len(arguments.defaults)] if arguments is not None else []


def is_default(arguments: ast.arguments | None, name: str, code: str) -> bool:
    """Return whether the code of an argument is the default of its parameter."""
    value = literal(code)
    return value is not NO_LITERAL and value == defaults(arguments).get(name, NO_LITERAL)


def literal(node: ast.AST | str | None) -> Any:
    """Return the value of code; `NO_LITERAL` for other code, and for none."""
    try:
        return ast.literal_eval(node) if node is not None else NO_LITERAL  # pyright: ignore[reportArgumentType]
    except (ValueError, SyntaxError):
        return NO_LITERAL
