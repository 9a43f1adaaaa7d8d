"""Keras variables whose values are on a backend.

Idea: each variable has a `_Home`, the location of its value. The value is on the cores, known by a handle. The variable
itself holds an `Unread` placeholder, and an array only after it was read. So a call transfers nothing back, however
many variables it has changed. Each home remembers the array that was read. One identity test then shows whether the
user has assigned to the variable since, and values already on the cores are not transferred again.

Protocol:

1. `take` before a call returns the handles. The call donates them.
2. `give` and `release` after the call store the new handles; `settle` does both.

Rule: between `take` and `release` the variables belong to one `Holder`, in one thread. Other code may still read and
write them. A holder that runs many calls provides the newest handles, and gets the list of touched variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from anytpu import _keras
from anytpu.engine.backend import Backend
from anytpu.program.program import REPLICATED, Layout
from anytpu.strategy.occupancy import Occupancy, in_use_error

_HOME = "_anytpu_home"
_OCCUPANCY = "_anytpu_occupancy"
_SMALL_BYTES = 2**10
_LARGE_BYTES = 2**26
"""Size above which an array that only its variable holds is moved, not copied: a copy would take as much memory."""
_FREED = threading.Condition()


@dataclasses.dataclass(frozen=True, eq=False)
class Holder:
    """The owner of variables between `take` and `release`.

    Attributes:
        call: name of the call, such as "fit of 'digits'".
        give_back: gives and releases the variables before the end of the call; None for a call of one step, which ends
            soon.
        newest: returns the handle of the newest value of the variable at an index; None if each call takes the
            variables anew.
        lock: held while a call donates the newest values.
        touched: variables that were read or written since the last call.
        thread: the thread of the call.
    """

    call: str
    give_back: Callable[[], None] | None = None
    newest: Callable[[int], Any] | None = None
    lock: contextlib.AbstractContextManager[Any] = dataclasses.field(default_factory=threading.RLock)
    touched: list[Any] = dataclasses.field(default_factory=list)
    thread: threading.Thread = dataclasses.field(default_factory=threading.current_thread)


class _Home:
    """The location of one variable's value.

    Attributes:
        backend: the backend that holds the value.
        layout: the layout of the value.
        handle: handle of the value on the backend; a holder may have a newer one.
        attached: the array that the variable holds after a read; None before.
        unread: the placeholder that the variable holds before a read.
        holder: the owner that has taken the variable; None if it is free.
        index: index of the variable among those that the holder has taken.
    """

    __slots__ = ("attached", "backend", "handle", "holder", "index", "layout", "unread")

    def __init__(self, backend: Backend, layout: Layout, handle: Any, attached: Any) -> None:
        self.backend, self.layout, self.handle, self.attached = backend, layout, handle, attached
        self.holder: Holder | None = None
        self.index = 0
        self.unread = Unread(self)

    def __deepcopy__(self, memo: Any) -> None:
        # A copy of a variable has its own value, which is not on a backend yet.
        return None

    def read(self, variable: Any = None) -> jax.Array:
        """Return the newest value, and store it in the variable.

        The holder may change while this thread waits for a lock. So the loop reads the holder, takes its lock, and
        retries if the holder has changed.
        """
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
            with jax.ensure_compile_time_eval():  # The first read may be inside a traced function.
                array = jnp.asarray(array)
        if variable is not None:
            self.attached = array
            _keras.attach(variable, array)
            self.touch(variable)
        return array

    def touch(self, variable: Any) -> None:
        """Record for a holder of many calls that the variable was read or written."""
        if self.holder is not None and self.holder.newest is not None:
            self.holder.touched.append(variable)


@final
class Unread:
    """Placeholder in a variable for a value that was not read yet.

    Args:
        home: the location of the value.
    """

    __slots__ = ("_home",)

    def __init__(self, home: _Home) -> None:
        self._home = home

    def read(self, variable: Any) -> jax.Array:
        """Return the value, and store it in the variable."""
        return self._home.read(variable)

    def written(self, variable: Any) -> None:
        """Record that the variable is assigned another value."""
        self._home.touch(variable)

    def __deepcopy__(self, memo: Any) -> jax.Array:
        return jnp.array(self._home.read(), copy=True)

    def __reduce__(self) -> Any:
        return jnp.asarray, (np.asarray(self._home.read()),)


def occupancy_of(model: Any) -> Occupancy:
    """Return the occupancy of a model, which is created on first use."""
    return vars(model).setdefault(_OCCUPANCY, Occupancy())


def take(
    backend: Backend,
    variables: Collection[Any],
    holder: Holder | None = None,
    layouts: Collection[Layout] | None = None,
) -> list[Any]:
    """Return the handles of the variables' values; values that are not on the backend are transferred first.

    If a single step in another thread has taken some variables, this waits for it. If an outer call of this thread has
    taken them, that call gives them back first. Without a holder the variables stay free for others.

    Args:
        backend: the backend of the call.
        variables: the Keras variables.
        holder: their owner until `release`, or None.
        layouts: the layout of each variable's value; None: whole on each core.

    Raises:
        StrategyError: a call of many steps in another thread has taken some of them.
    """
    while True:
        with _FREED:
            other = _holder_of(variables)
            # 1. All variables are free: take them.
            if other is None:
                each = [REPLICATED] * len(variables) if layouts is None else layouts
                handles = _there(backend, variables, each)
                for index, (variable, layout) in enumerate(zip(variables, each, strict=True)):
                    if handles[index] is None:
                        handles[index] = _take_variable(backend, holder, variable, layout)
                _hold(variables, holder)
                return handles
            # 2. A single step of another thread ends soon: wait for its release.
            is_mine = _is_mine(other)
            if other.give_back is None and not is_mine:
                _FREED.wait()
                continue
        # 3. Many steps of another thread: error. An outer call of this thread: it gives back, and the loop retries.
        if other.give_back is None or not is_mine:
            raise in_use_error(holder.call if holder else "take", other.call, other.thread)
        other.give_back()


def release(variables: Iterable[Any]) -> None:
    """Release variables that were taken, for example after a failed call."""
    with _FREED:
        _hold(variables, None)
        _FREED.notify_all()


def give(variables: Iterable[Any], handles: Iterable[Any]) -> None:
    """Record new handles as the values of taken variables, except where the user has assigned a value since."""
    variables = list(variables)
    for variable, value, handle in zip(variables, _keras.values_of(variables), handles, strict=True):
        home = vars(variable)[_HOME]
        home.handle = handle
        if value is home.attached:
            _hide(variable, home)


def renewed(backend: Backend, holder: Holder) -> list[tuple[int, Any]]:
    """Return the index and the new handle of each variable that was assigned to while it was held."""
    new = []
    while holder.touched:
        variable = holder.touched.pop()
        home, value = vars(variable)[_HOME], _keras.value_of(variable)
        # The variable was neither read nor assigned since the last call.
        if value is home.unread:
            continue
        if value is not home.attached:
            new.append((home.index, _put(backend, value, home.layout)))
        # The next call donates the array that a read has stored in the variable.
        _hide(variable, home)
    return new


def host_copy(variable: Any) -> np.ndarray:
    """Return a copy of a variable's newest value on the host, also during a call; the variable stays unread."""
    return np.array(newest(variable))


def newest(variable: Any) -> jax.Array:
    """Return a variable's newest value, which the next call may donate; the variable stays unread."""
    home, value = vars(variable).get(_HOME), _keras.value_of(variable)
    return home.read() if home is not None and value is home.unread else value


def restore(variables: Iterable[Any]) -> None:
    """Undo assignments to variables since the last `give`."""
    for variable in variables:
        home = vars(variable).get(_HOME)
        if home is not None:
            _hide(variable, home)


def settle(variables: Collection[Any], handles: Any) -> None:
    """Give and release directly after a call, when no assignment can have happened since `take`."""
    for variable, value, handle in zip(variables, _keras.values_of(variables), handles, strict=True):
        home = vars(variable)[_HOME]
        home.handle = handle
        if value is not home.unread:
            _hide(variable, home)
    release(variables)


def _hide(variable: Any, home: _Home) -> None:
    """Replace a variable's array by the placeholder: the next call donates that array."""
    home.attached = None
    _keras.attach(variable, home.unread)


def _holder_of(variables: Iterable[Any]) -> Holder | None:
    for variable in variables:
        home = vars(variable).get(_HOME)
        if home is not None and home.holder is not None:
            return home.holder
    return None


def _hold(variables: Iterable[Any], holder: Holder | None) -> None:
    hides = holder is not None and holder.newest is not None
    for index, variable in enumerate(variables):
        home = vars(variable).get(_HOME)
        if home is None:
            continue
        home.holder, home.index = holder, index
        if hides and home.attached is not None:
            _hide(variable, home)


def _is_mine(holder: Holder) -> bool:
    return holder.thread is threading.current_thread()


def _there(backend: Backend, variables: Collection[Any], layouts: Collection[Layout]) -> list[Any]:
    """Return the handle of each variable whose value is on the backend in its layout, and None for each other one.

    No value is referred to after this: a large one of a variable is then moved, and not copied.
    """
    handles = []
    for variable, value, layout in zip(variables, _keras.values_of(variables), layouts, strict=True):
        home = vars(variable).get(_HOME)
        is_there = home is not None and value is home.unread and home.backend is backend and home.layout == layout
        handles.append(home.handle if home is not None and is_there else None)
    return handles


def _take_variable(backend: Backend, holder: Holder | None, variable: Any, layout: Layout) -> Any:
    home = vars(variable).get(_HOME)
    value: Any = _keras.value_of(variable)
    if home is not None and (value is home.unread or (value is home.attached and value is not None)):
        if home.backend is backend:
            if home.layout != layout:
                home.handle, home.layout = backend.put(home.handle, layout), layout
            return home.handle
        value = home.read(variable)
    is_hidden = holder is not None and holder.newest is not None
    # The references are the variable's, this function's and the argument's: nobody else has the array.
    is_large = isinstance(value, jax.Array) and value.nbytes >= _LARGE_BYTES
    is_own = is_hidden and is_large and sys.getrefcount(value) <= 3
    # Copy: the call donates its inputs, and this array belongs to the user.
    handle = backend.put(value, layout) if is_own else _put(backend, value, layout)
    home = vars(variable)[_HOME] = _Home(backend, layout, handle, value)
    if is_hidden:
        _hide(variable, home)  # Its array is freed before the next variable is copied.
    return handle


def _put(backend: Backend, value: Any, layout: Layout) -> Any:
    """Put a copy of a value on a backend. A call takes small values on the host along: it has many, from resets."""
    is_small = isinstance(value, jax.Array) and value.nbytes <= _SMALL_BYTES and value.is_fully_addressable
    # To read an accelerator's array the host would wait for it.
    if is_small and all(device.platform == "cpu" for device in value.devices()):
        return backend.put_once(np.array(value), layout)
    return backend.put(jnp.array(value, copy=True), layout)


_keras.install_placeholders(Unread)
