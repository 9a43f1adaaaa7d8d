"""The user's call of a public function: its misspelt arguments, and the line that a warning points to."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def explain_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an unknown argument is refused with the nearest name.

    Example:
        >>> @explain_arguments
        ... def connect(tpu="", cores=None):
        ...     return cores
        >>> connect(core=4)
        Traceback (most recent call last):
        TypeError: connect() has no argument 'core'; did you mean 'cores'?
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(function.__name__, signature, kwargs)
        return function(*args, **kwargs)

    return checked


def check_arguments(name: str, signature: inspect.Signature, given: dict[str, Any]) -> None:
    """Refuse an argument that a function does not have.

    Args:
        name: name of the function, for the error.
        signature: the function's signature.
        given: the named arguments of a call.

    Raises:
        TypeError: the function has no argument of one of these names.
    """
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
    for argument in given:
        if argument not in known:
            names = [known_name for known_name in known if known_name != "self"]
            near = difflib.get_close_matches(argument, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its arguments are {', '.join(names)}"
            raise TypeError(f"{name}() has no argument {argument!r}; {hint}")


def users_stacklevel() -> int:
    """Return the `stacklevel` of a warning that points to the first line outside of this package.

    It is counted from the function that calls this one, which must also call `warnings.warn`.
    """
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("anytpu."):
        level, frame = level + 1, frame.f_back
    return level + 1
