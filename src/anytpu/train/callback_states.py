"""The states of Keras's callbacks: what they have learnt since `fit` began.

Idea: a callback with `get_state` and `set_state` is asked. Of any other the attributes that hold plain values are its
state: numbers, text, arrays, lists and dicts, such as EarlyStopping's `wait` and `best_weights`. Only attributes that
changed since `fit` began are stored, so settings such as `patience` come from the program that continues.

Rule: a list that the callback changed, and did not replace, is changed when it is restored: the program may hold it
too. CSVLogger's file is part of its state: it continues with the lines of the checkpoint.
"""

from __future__ import annotations

import collections
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np

from anytpu.train.checkpoint.host_state import copied, pack, refilled

LOG = logging.getLogger("anytpu")

_SKIPPED = {"_model", "model", "params", "validation_data", "csv_file", "writer"}
_FUNCTIONS = {"keras.ops.less": keras.ops.less, "keras.ops.greater": keras.ops.greater}
_FUNCTION = "__function__"
_COMPARED_BYTES = 2**12
_CHANGED = ""
"""The entry of a state that lists the attributes whose objects the callback changed; no attribute has this name."""


class CallbackStates:
    """The states of the callbacks of one fit.

    Args:
        callbacks: the callbacks, before `on_train_begin`.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks = [callback for callback in callbacks if _has_state(callback)]
        self._began = [copied(_comparable(callback)) for callback in self._callbacks]
        self._unsaved = [_unsaved(callback) for callback in self._callbacks]
        self.begin()

    def begin(self) -> None:
        """Note the objects that the callbacks hold after `on_train_begin`."""
        kinds = (list, dict, set, np.ndarray)
        self._objects = [
            {name: value for name, value in vars(callback).items() if isinstance(value, kinds)}
            for callback in self._callbacks
        ]

    def get(self) -> dict[str, Any]:
        """Return the state of each callback by its name."""
        return {name: self._state(index) for index, name in enumerate(self._names())}

    def set(self, states: dict[str, Any]) -> list[str]:
        """Restore states, and return the names of the callbacks that have none."""
        for index, name in enumerate(self._names()):
            if name in states:
                self._restore(index, states[name])
        return [name for name in self._names() if name not in states]

    def _names(self) -> list[str]:
        counts: dict[str, itertools.count] = {}
        names = [type(callback).__name__ for callback in self._callbacks]
        numbered = [(name, next(counts.setdefault(name, itertools.count(1)))) for name in names]
        return [name if number == 1 else f"{name}#{number}" for name, number in numbered]

    def _state(self, index: int) -> Any:
        callback = self._callbacks[index]
        if hasattr(callback, "get_state"):
            return callback.get_state()
        began, objects = self._began[index], self._objects[index]
        # Only what has changed since the fit began. A list grows, and an array may change, while the next step runs.
        plain = _plain(callback)
        state: dict[str, Any] = {n: copied(v) for n, v in plain.items() if n not in began or not _is_same(v, began[n])}
        state[_CHANGED] = [name for name in state if name in objects and objects[name] is vars(callback)[name]]
        self._warn(index)
        if isinstance(callback, keras.callbacks.CSVLogger):
            state["lines"] = _lines(callback)
        return state

    def _restore(self, index: int, state: Any) -> None:
        callback = self._callbacks[index]
        if hasattr(callback, "get_state"):
            callback.set_state(state)
            return
        state = dict(state)
        is_logger = isinstance(callback, keras.callbacks.CSVLogger)
        lines = state.pop("lines", None) if is_logger else None
        # An attribute that is not in the state had its first value; the new process may have changed it since.
        began, now = self._began[index], _plain(callback)
        changed = {*state.pop(_CHANGED, ()), *(began.keys() - state.keys())}
        for name, value in {**began, **state}.items():
            if name in now and _is_same(now[name], value):
                continue
            value = _FUNCTIONS[value[_FUNCTION]] if _is_function(value) else copied(value)
            setattr(callback, name, refilled(vars(callback).get(name), value) if name in changed else value)
        if lines is not None:
            _continue_file(callback, lines)

    def _warn(self, index: int) -> None:
        """Name once each list or dict that has changed and cannot be saved."""
        callback, unsaved = self._callbacks[index], self._unsaved[index]
        for name, parts in _unsaved(callback).items():
            if unsaved.get(name, []) not in (parts, None):
                unsaved[name] = None
                LOG.warning(
                    "The attribute %r of the callback %s is not saved: it holds itself, or other parts than numbers, "
                    "text, arrays, lists and dicts. Write get_state() and set_state(state)",
                    name,
                    type(callback).__name__,
                )


def _has_state(callback: Any) -> bool:
    return not isinstance(callback, keras.callbacks.ProgbarLogger)


def _plain(callback: Any) -> dict[str, Any]:
    """Return the attributes of a callback that a checkpoint can hold."""
    plain = {}
    for name, value in vars(callback).items():
        if name in _SKIPPED:
            continue
        known = next((path for path, function in _FUNCTIONS.items() if function is value), None)
        if known is not None:
            value = {_FUNCTION: known}
        try:
            pack(value, name, {})
        except TypeError:
            continue
        plain[name] = value
    return plain


def _comparable(callback: Any) -> dict[str, Any]:
    """Return the attributes that are compared with later ones: all but large arrays, which count as changed."""
    return {name: value for name, value in _plain(callback).items() if _text(value) is not None}


def _is_same(value: Any, other: Any) -> bool:
    text = _text(value)
    return text is not None and text == _text(other)


def _unsaved(callback: Any) -> dict[str, Any]:
    """Return the lists and dicts of a user's callback that a checkpoint cannot hold by name: the ids of their parts."""
    if type(callback).__module__.partition(".")[0] in ("keras", "anytpu") or hasattr(callback, "get_state"):
        return {}
    kinds, plain = (list, dict, set, collections.deque), _plain(callback)
    return {
        name: [(id(part), len(part) if isinstance(part, kinds) else 0) for part in _parts(value)]
        for name, value in vars(callback).items()
        if isinstance(value, kinds) and name not in plain and name not in _SKIPPED
    }


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _text(value: Any) -> Any:
    """Return an object that is equal for equal states, since NaN equals NaN; None for one with a large array."""
    arrays: dict[str, np.ndarray] = {}
    packed = json.dumps(pack(value, "", arrays))
    if any(array.nbytes > _COMPARED_BYTES for array in arrays.values()):
        return None
    return packed, tuple((array.shape, str(array.dtype), array.tobytes()) for array in arrays.values())


def _is_function(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {_FUNCTION} and value[_FUNCTION] in _FUNCTIONS


def _lines(callback: Any) -> str | None:
    file = callback.csv_file
    if file is None or file.closed:
        return None
    file.flush()
    return Path(callback.filename).read_bytes().decode()


def _continue_file(callback: Any, lines: str) -> None:
    """Give a CSVLogger the lines of the checkpoint; the line after them is the next that it writes."""
    if callback.csv_file is not None and not callback.csv_file.closed:
        callback.csv_file.close()
    Path(callback.filename).write_bytes(lines.encode())
    callback.csv_file = open(callback.filename, "a", encoding="utf-8")  # noqa: SIM115 (Keras closes it)
    callback.append_header = not lines
    callback.writer = None
