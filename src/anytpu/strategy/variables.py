"""Keras variables whose values lie on a backend.

Idea: a variable's value lives on the cores as a handle; the variable itself holds an array only when somebody may look.
Each variable remembers the handle and the array that it was last given, so "has the user assigned to it since?" is one
identity test, and nothing that is already on the cores travels again.

Rule: `take` before a call, `give` after it, `attach` when somebody may look; `settle` does both. A handle that was
handed to a call is consumed. Between `take` and `attach` the variables are those of one `Holder`, in one thread.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from anytpu import _keras
from anytpu.engine.backend import Backend
from anytpu.program.program import REPLICATED
from anytpu.strategy.occupancy import Occupancy, in_use

_HOME = "_anytpu_home"
_OCCUPANCY = "_anytpu_occupancy"
_FREED = threading.Condition()


@dataclasses.dataclass(frozen=True, eq=False)
class Holder:
    """The owner of variables between `take` and `attach`.

    Attributes:
        what: the call, as "fit of 'digits'".
        give_back: lets the variables hold their newest values before the end of the call; None for a call of one step,
            which ends by itself.
        thread: the thread that called.
    """

    what: str
    give_back: Callable[[], None] | None = None
    thread: threading.Thread = dataclasses.field(default_factory=threading.current_thread)


@dataclasses.dataclass(slots=True)
class _Home:
    """Where the value of one variable lies.

    Attributes:
        backend: the backend that holds it.
        handle: the handle there.
        attached: the array that the variable was last given for it.
        is_stale: True when `handle` is newer than `attached`.
        holder: who has taken the variable; None when nobody has.
    """

    backend: Backend
    handle: Any
    attached: Any
    is_stale: bool = False
    holder: Holder | None = None

    def __deepcopy__(self, memo: Any) -> None:
        # A copy of a variable has a value of its own, which lies nowhere yet.
        return None


def occupancy_of(model: Any) -> Occupancy:
    """Return which thread runs a model."""
    return vars(model).setdefault(_OCCUPANCY, Occupancy())


def take(backend: Backend, variables: Collection[Any], holder: Holder | None = None) -> list[Any]:
    """Return the handles of the variables' values, bringing those to the backend that are not there.

    Variables that a single step in another thread has taken are waited for; those that an outer call of this thread has
    taken are given back first. Without a holder they are only looked at, and nobody else is kept from them.

    Raises:
        StrategyError: a call of many steps in another thread has taken some of them.
    """
    while True:
        with _FREED:
            other = _holder_of(variables)
            if other is None:
                handles = [_take_one(backend, variable) for variable in variables]
                _hold(variables, holder)
                return handles
            is_mine = other.thread is threading.current_thread()
            if other.give_back is None and not is_mine:
                _FREED.wait()
                continue
        if other.give_back is None or not is_mine:
            raise in_use(holder.what if holder else "take", other.what, other.thread)
        other.give_back()


def release(variables: Iterable[Any]) -> None:
    """Let go of variables that were taken, where a call failed."""
    with _FREED:
        _hold(variables, None)
        _FREED.notify_all()


def give(variables: Iterable[Any], handles: Iterable[Any]) -> None:
    """Record new handles as the values of variables that were taken; `attach` shows them to the variables."""
    for variable, handle in zip(variables, handles, strict=True):
        home = vars(variable)[_HOME]
        home.handle, home.is_stale = handle, True


def attach(variables: Collection[Any]) -> None:
    """Let the variables hold their newest values, where the user has not assigned others since."""
    for variable in variables:
        home = vars(variable).get(_HOME)
        if home is not None and home.is_stale:
            _attach_one(variable, home)
    release(variables)


def restore(variables: Iterable[Any]) -> None:
    """Undo what was assigned to variables since they were attached last."""
    for variable in variables:
        home = vars(variable).get(_HOME)
        if home is not None:
            _keras.attach(variable, home.attached)


def settle(backend: Backend, variables: Collection[Any], handles: Any) -> None:
    """Give and attach at once, right after a call, when nobody can have assigned since the variables were taken."""
    for variable, handle, array in zip(variables, handles, backend.get(handles), strict=True):
        home = vars(variable)[_HOME]
        home.attached = array if isinstance(array, jax.Array) else jnp.asarray(array)
        home.handle, home.is_stale = handle, False
        _keras.attach(variable, home.attached)
    release(variables)


def _holder_of(variables: Iterable[Any]) -> Holder | None:
    homes = (vars(variable).get(_HOME) for variable in variables)
    return next((home.holder for home in homes if home is not None and home.holder is not None), None)


def _hold(variables: Iterable[Any], holder: Holder | None) -> None:
    for variable in variables:
        home = vars(variable).get(_HOME)
        if home is not None:
            home.holder = holder


def _attach_one(variable: Any, home: _Home) -> None:
    if _keras.value_of(variable) is home.attached:
        array = home.backend.get(home.handle)
        home.attached = array if isinstance(array, jax.Array) else jnp.asarray(array)
        _keras.attach(variable, home.attached)
    home.is_stale = False


def _take_one(backend: Backend, variable: Any) -> Any:
    home = vars(variable).get(_HOME)
    value = _keras.value_of(variable)
    if home is not None and value is home.attached:
        if home.backend is backend:
            return home.handle
        if home.is_stale:
            _attach_one(variable, home)
        value = _keras.value_of(variable)
    # A copy: the call consumes what it is handed, and this array is the user's.
    handle = backend.put(jnp.array(value, copy=True), REPLICATED)
    vars(variable)[_HOME] = _Home(backend, handle, value)
    return handle
