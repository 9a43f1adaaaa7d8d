"""Keras variables whose values lie on a backend.

Idea: a variable's value is a property of its home. It lies on the cores as a handle; the variable holds an `Unread` in
its place, and an array only once somebody has read it. So a call brings nothing back, however many variables it has
changed. Each home remembers the array that was read, so "has the user assigned to it since?" is one identity test, and
nothing that is already on the cores travels again.

Rule: `take` before a call, `give` and `release` after it; `settle` does both. A handle that was handed to a call is
consumed. Between `take` and `release` the variables are those of one `Holder`, in one thread. Anybody may read them
meanwhile, and write to them: a holder that runs many calls says what is newest, and is told what was touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu import _keras
from anytpu.engine.backend import Backend
from anytpu.program.program import REPLICATED
from anytpu.strategy.occupancy import Occupancy, in_use

_HOME = "_anytpu_home"
_OCCUPANCY = "_anytpu_occupancy"
_SMALL_BYTES = 2**10
_FREED = threading.Condition()


@dataclasses.dataclass(frozen=True, eq=False)
class Holder:
    """The owner of variables between `take` and `release`.

    Attributes:
        what: the call, as "fit of 'digits'".
        give_back: gives and releases the variables before the end of the call; None for a call of one step, which ends
            by itself.
        newest: returns the handle of the newest value of the variable of this index; None where calls take the
            variables one by one.
        lock: held while a call consumes the newest values.
        touched: variables that were read or written since the last call.
        thread: the thread that called.
    """

    what: str
    give_back: Callable[[], None] | None = None
    newest: Callable[[int], Any] | None = None
    lock: contextlib.AbstractContextManager[Any] = dataclasses.field(default_factory=threading.RLock)
    touched: list[Any] = dataclasses.field(default_factory=list)
    thread: threading.Thread = dataclasses.field(default_factory=threading.current_thread)


class _Home:
    """Where the value of one variable lies.

    Attributes:
        backend: the backend that holds it.
        handle: the handle there; a holder may have a newer one.
        attached: the array that the variable holds for it; None when nobody has read it.
        unread: what the variable holds then.
        holder: who has taken the variable; None when nobody has.
        index: the variable's index among those that the holder has taken.
    """

    __slots__ = ("attached", "backend", "handle", "holder", "index", "unread")

    def __init__(self, backend: Backend, handle: Any, attached: Any) -> None:
        self.backend, self.handle, self.attached = backend, handle, attached
        self.holder: Holder | None = None
        self.index = 0
        self.unread = Unread(self)

    def __deepcopy__(self, memo: Any) -> None:
        # A copy of a variable has a value of its own, which lies nowhere yet.
        return None

    def read(self, variable: Any = None) -> jax.Array:
        """Return the newest value, and let the variable hold it."""
        while True:
            holder = self.holder
            if holder is not None and holder.newest is None and holder.give_back is not None and _is_mine(holder):
                holder.give_back()
                continue
            with _FREED if holder is None else holder.lock, _FREED:
                if self.holder is holder:
                    return self._read(variable, holder)

    def _read(self, variable: Any, holder: Holder | None) -> jax.Array:
        if holder is not None and holder.newest is not None:
            self.handle = holder.newest(self.index)
        array = self.backend.get(self.handle)
        if not isinstance(array, jax.Array):
            with jax.ensure_compile_time_eval():  # A function that is traced may be the first to read.
                array = jnp.asarray(array)
        if variable is not None:
            self.attached = array
            _keras.attach(variable, array)
            self.touch(variable)
        return array

    def touch(self, variable: Any) -> None:
        """Tell a holder of many calls that the variable was read or written."""
        if self.holder is not None and self.holder.newest is not None:
            self.holder.touched.append(variable)


@final
class Unread:
    """Stands in a variable for a value that nobody has read yet.

    Args:
        home: where the value lies.
    """

    __slots__ = ("_home",)

    def __init__(self, home: _Home) -> None:
        self._home = home

    def read(self, variable: Any) -> jax.Array:
        """Return the value, and let the variable hold it."""
        return self._home.read(variable)

    def written(self, variable: Any) -> None:
        """Note that the variable is assigned another value."""
        self._home.touch(variable)

    def __deepcopy__(self, memo: Any) -> jax.Array:
        return jnp.array(self._home.read(), copy=True)

    def __reduce__(self) -> Any:
        return jnp.asarray, (np.asarray(self._home.read()),)


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
            is_mine = _is_mine(other)
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
    """Record new handles as the values of variables that were taken, where the user has not assigned others since."""
    for variable, handle in zip(variables, handles, strict=True):
        home = vars(variable)[_HOME]
        home.handle = handle
        if _keras.value_of(variable) is home.attached:
            _hide(variable, home)


def renewed(backend: Backend, holder: Holder) -> list[tuple[int, Any]]:
    """Return the index and the new handle of each variable that was assigned to while it is held."""
    new = []
    while holder.touched:
        variable = holder.touched.pop()
        home, value = vars(variable)[_HOME], _keras.value_of(variable)
        if value is home.unread:
            continue
        if value is not home.attached:
            new.append((home.index, _put(backend, value)))
        _hide(variable, home)
    return new


def restore(variables: Iterable[Any]) -> None:
    """Undo what was assigned to variables since they were given last."""
    for variable in variables:
        home = vars(variable).get(_HOME)
        if home is not None:
            _hide(variable, home)


def settle(backend: Backend, variables: Collection[Any], handles: Any) -> None:
    """Give and release at once, right after a call, when nobody can have assigned since the variables were taken."""
    for variable, handle in zip(variables, handles, strict=True):
        home = vars(variable)[_HOME]
        home.handle = handle
        _hide(variable, home)
    release(variables)


def _hide(variable: Any, home: _Home) -> None:
    """Let a variable hold its value unread: the array that it held is consumed by the next call."""
    home.attached = None
    _keras.attach(variable, home.unread)


def _holder_of(variables: Iterable[Any]) -> Holder | None:
    homes = (vars(variable).get(_HOME) for variable in variables)
    return next((home.holder for home in homes if home is not None and home.holder is not None), None)


def _hold(variables: Iterable[Any], holder: Holder | None) -> None:
    for index, variable in enumerate(variables):
        home = vars(variable).get(_HOME)
        if home is None:
            continue
        home.holder, home.index = holder, index
        if holder is not None and holder.newest is not None:
            _hide(variable, home)


def _is_mine(holder: Holder) -> bool:
    return holder.thread is threading.current_thread()


def _take_one(backend: Backend, variable: Any) -> Any:
    home = vars(variable).get(_HOME)
    value = _keras.value_of(variable)
    if home is not None and (value is home.unread or (value is home.attached and value is not None)):
        if home.backend is backend:
            return home.handle
        value = home.read(variable)
    # A copy: the call consumes what it is handed, and this array is the user's.
    handle = _put(backend, value)
    vars(variable)[_HOME] = _Home(backend, handle, value)
    return handle


def _put(backend: Backend, value: Any) -> Any:
    """Bring a copy of a value to a backend. Many small ones come in each call: the metrics that are reset."""
    if isinstance(value, jax.Array) and value.nbytes <= _SMALL_BYTES and value.is_fully_addressable:
        return backend.put_once(np.array(value), REPLICATED)
    return backend.put(jnp.array(value, copy=True), REPLICATED)


_keras.install_placeholders(Unread)
