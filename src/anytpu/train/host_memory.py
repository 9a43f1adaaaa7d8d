"""`HostMemory`: the copy of a run's state on the host, in memory that each save uses again.

Idea: the training waits while its state is copied. The operating system hands out new memory much more slowly than the
copy itself takes. So a thread reserves the memory when the run begins, and later saves use the same.

Rule: a copy is valid until the next one is made.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from anytpu.strategy.variables import newest


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
