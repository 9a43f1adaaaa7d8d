"""The user's call of a public function: its misspelt arguments, and the line that a warning points to."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def explain_arguments(function: Callable[P, R], also: Iterable[str] = (), name: str = "") -> Callable[P, R]:
    """Decorate a function so that an unknown argument is refused with the nearest name.

    Args:
        function: the function.
        also: further names that its `**` argument takes.
        name: the function's name in the error; "" is its own.

    Example:
        >>> @explain_arguments
        ... def connect(tpu="", cores=None):
        ...     return cores
        >>> connect(core=4)
        Traceback (most recent call last):
        TypeError: connect() has no argument 'core'; did you mean 'cores'?
    """
    signature = inspect.signature(function)
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = frozenset(key for key, parameter in signature.parameters.items() if parameter.kind in named)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        # A run of a step takes microseconds: look at the signature only for a name that is not in it.
        if kwargs and not known.issuperset(kwargs):
            check_arguments(name or function.__name__, signature, kwargs, also)
        return function(*args, **kwargs)

    return checked


def explain_methods(cls: C) -> C:
    """Decorate a class as `explain_arguments` does its constructor and its public methods."""
    for name, member in tuple(vars(cls).items()):
        if inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, explain_arguments(member, name=cls.__name__ if name == "__init__" else name))
    return cls


def refuse_attribute(value: object, name: str) -> Any:
    """Refuse a misspelt attribute with the nearest name: the `__getattr__` of a class.

    Raises:
        AttributeError: there is no such attribute, or its property raised this error.
    """
    if hasattr(type(value), name) or name.startswith("_"):
        return object.__getattribute__(value, name)
    near = difflib.get_close_matches(name, [known for known in dir(type(value)) if not known.startswith("_")], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise AttributeError(f"{type(value).__name__} has no attribute {name!r}{hint}")


def check_arguments(name: str, signature: inspect.Signature, passed: Iterable[str], also: Iterable[str] = ()) -> None:
    """Refuse an argument that a function does not have.

    Args:
        name: name of the function, for the error.
        signature: the function's signature.
        passed: the names of a call's named arguments.
        also: further names that the function takes.

    Raises:
        TypeError: the function has no argument of one of these names.
    """
    parameters = signature.parameters.values()
    if not also and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = [parameter.name for parameter in parameters if parameter.kind in named]
    known = [known_name for known_name in dict.fromkeys((*own, *also)) if known_name not in ("self", "cls")]
    for argument in passed:
        if argument not in known:
            near = difflib.get_close_matches(argument, known, n=1)
            listed = f"its arguments are {', '.join(known)}" if known else "it takes no named arguments"
            hint = f"did you mean {near[0]!r}?" if near else listed
            raise TypeError(f"{name}() has no argument {argument!r}; {hint}")


def users_stacklevel() -> int:
    """Return the `stacklevel` of a warning that points to the first line outside of this package and of Keras.

    It is counted from the function that calls this one, which must also call `warnings.warn`.
    """
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("anytpu.", "keras.")):
        level, frame = level + 1, frame.f_back
    return level + 1
