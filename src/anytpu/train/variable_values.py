"""The values of a run's variables: copied to the host for a checkpoint, and set to those of one.

Idea: the training waits while its state is copied. The operating system hands out new memory much more slowly than the
copy itself takes. So a thread reserves the memory when the run begins, and each save uses the same.

Rule: a copy is valid until the next one is made. Values are assigned all or none.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from anytpu.errors import FileError
from anytpu.strategy.variables import newest
from anytpu.train.checkpoint import ArrayForm, Purpose, Restored, difference, is_finite


def size_bytes(named: Mapping[str, Any]) -> int:
    """Return the size of the values of all variables, in bytes."""
    return sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in named.values())


def finite_names(named: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the variables without a NaN or an infinity. Some begin with one, such as a minimum."""
    return frozenset(name for name, variable in named.items() if is_finite(np.asarray(newest(variable))))


class HostMemory:
    """Copies of variables on the host.

    Args:
        named: the variables by name.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._arrays = {name: np.empty(tuple(v.shape), np.dtype(v.dtype)) for name, v in named.items()}
        # The first write to a page is what takes long.
        self._reserving = threading.Thread(target=lambda: [array.fill(0) for array in self._arrays.values()])
        self._reserving.start()

    def copies(self, named: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return copies of the newest values of variables, by name; they replace the copies of the last call."""
        self._reserving.join()
        for name, variable in named.items():
            value = np.asarray(newest(variable))
            copy = self._arrays.get(name)
            if copy is None or (copy.shape, copy.dtype) != (value.shape, value.dtype):
                copy = self._arrays[name] = np.empty(value.shape, value.dtype)
            np.copyto(copy, value)
        return {name: self._arrays[name] for name in named}


def assign(named: Mapping[str, Any], resumed: Restored, what: str) -> None:
    """Assign the values of a checkpoint to variables.

    Args:
        named: the variables by name.
        resumed: the checkpoint.
        what: the owner of the variables, for the error: "the model 'digits'".

    Raises:
        FileError: the checkpoint has other variables. Nothing is assigned.
    """
    wanted = {name: ArrayForm(tuple(v.shape), str(np.dtype(v.dtype))) for name, v in named.items()}
    stored = {name: ArrayForm(value.shape, value.dtype.name) for name, value in resumed.values.items()}
    different = difference(stored, wanted, Purpose.RESUME)
    if different is not None:
        raise FileError(
            f"the checkpoint {resumed.where!r} does not fit {what}. {different}. Build it as it was, or choose another "
            "folder"
        )
    for name, variable in named.items():
        variable.assign(resumed.values[name])
