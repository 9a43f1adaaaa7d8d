"""The states of Keras's callbacks: what they have learnt since `fit` began.

Idea: a callback with `get_state` and `set_state` is asked. Of any other the attributes that hold plain values are its
state: numbers, text, arrays, lists and dicts, such as EarlyStopping's `wait` and `best_weights`. Only attributes that
changed since `fit` began are stored, so settings such as `patience` come from the program that continues.

Rule: CSVLogger's file is part of its state: it continues with the lines of the checkpoint.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

from anytpu.train.checkpoint.host_state import pack

_SKIPPED = {"_model", "model", "params", "validation_data", "csv_file", "writer"}
_FUNCTIONS = {"keras.ops.less": keras.ops.less, "keras.ops.greater": keras.ops.greater}
_FUNCTION = "__function__"
_COMPARED_BYTES = 2**12


class CallbackStates:
    """The states of the callbacks of one fit.

    Args:
        callbacks: the callbacks, before `on_train_begin`.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks = [callback for callback in callbacks if _has_state(callback)]
        self._began = [_plain(callback) for callback in self._callbacks]
        self._began_texts = [{name: _text(value) for name, value in began.items()} for began in self._began]

    def get(self) -> dict[str, Any]:
        """Return the state of each callback by its name. Arrays are not copied."""
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
        texts = self._began_texts[index]
        # Only what has changed since the fit began.
        state = {name: value for name, value in _plain(callback).items() if texts.get(name) != _text(value)}
        if isinstance(callback, keras.callbacks.CSVLogger):
            state["lines"] = _lines(callback)
        return state

    def _restore(self, index: int, state: Any) -> None:
        callback = self._callbacks[index]
        if hasattr(callback, "get_state"):
            callback.set_state(state)
            return
        state = dict(state)
        lines = state.pop("lines", None)
        # An attribute that is not in the state had its first value; the new process may have changed it since.
        for name, value in {**self._began[index], **state}.items():
            setattr(callback, name, _FUNCTIONS[value[_FUNCTION]] if _is_function(value) else _copied(value))
        if lines is not None and isinstance(callback, keras.callbacks.CSVLogger):
            _continue_file(callback, lines)


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
        # Lists and dicts grow while the next step runs; arrays are replaced, not changed.
        plain[name] = _copied(value)
    return plain


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _text(value: Any) -> Any:
    """Return an object that is equal for equal states: NaN equals NaN. Large arrays count as changed."""
    arrays: dict[str, np.ndarray] = {}
    packed = json.dumps(pack(value, "", arrays))
    if any(array.nbytes > _COMPARED_BYTES for array in arrays.values()):
        return object()
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
