"""Keras variables whose values lie on a backend.

Idea: a variable's value lives on the cores as a handle; the variable itself holds an array only when somebody may look.
Each variable remembers the handle and the array that it was last given, so "has the user assigned to it since?" is one
identity test, and nothing that is already on the cores travels again.

Rule: `take` before a call, `give` after it, `attach` when somebody may look; `settle` does both. A handle that was
handed to a call is consumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from anytpu import _keras
from anytpu.engine.backend import Backend
from anytpu.program.program import REPLICATED

_HOME = "_anytpu_home"


@dataclasses.dataclass(slots=True)
class _Home:
    """Where the value of one variable lies.

    Attributes:
        backend: the backend that holds it.
        handle: the handle there.
        attached: the array that the variable was last given for it.
        is_stale: True when `handle` is newer than `attached`.
    """

    backend: Backend
    handle: Any
    attached: Any
    is_stale: bool = False

    def __deepcopy__(self, memo: Any) -> None:
        # A copy of a variable has a value of its own, which lies nowhere yet.
        return None


def take(backend: Backend, variables: Iterable[Any]) -> list[Any]:
    """Return the handles of the variables' values, bringing those to the backend that are not there."""
    return [_take_one(backend, variable) for variable in variables]


def give(variables: Iterable[Any], handles: Iterable[Any]) -> None:
    """Record new handles as the values of variables that were taken; `attach` shows them to the variables."""
    for variable, handle in zip(variables, handles, strict=True):
        home = vars(variable)[_HOME]
        home.handle, home.is_stale = handle, True


def attach(variables: Iterable[Any]) -> None:
    """Let the variables hold their newest values, where the user has not assigned others since."""
    for variable in variables:
        home = vars(variable).get(_HOME)
        if home is None or not home.is_stale:
            continue
        if _keras.value_of(variable) is home.attached:
            array = home.backend.get(home.handle)
            home.attached = array if isinstance(array, jax.Array) else jnp.asarray(array)
            _keras.attach(variable, home.attached)
        home.is_stale = False


def settle(backend: Backend, variables: Iterable[Any], handles: Any) -> None:
    """Give and attach at once, right after a call, when nobody can have assigned since the variables were taken."""
    for variable, handle, array in zip(variables, handles, backend.get(handles), strict=True):
        home = vars(variable)[_HOME]
        home.attached = array if isinstance(array, jax.Array) else jnp.asarray(array)
        home.handle, home.is_stale = handle, False
        _keras.attach(variable, home.attached)


def _take_one(backend: Backend, variable: Any) -> Any:
    home = vars(variable).get(_HOME)
    value = _keras.value_of(variable)
    if home is not None and value is home.attached:
        if home.backend is backend:
            return home.handle
        attach([variable])
        value = _keras.value_of(variable)
    # A copy: the call consumes what it is handed, and this array is the user's.
    handle = backend.put(jnp.array(value, copy=True), REPLICATED)
    vars(variable)[_HOME] = _Home(backend, handle, value)
    return handle
