"""`assign`: set variables to the values of a checkpoint, all or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anytpu.errors import FileError
from anytpu.train.checkpoint import ArrayForm, Purpose, Restored, difference


def size_bytes(named: Mapping[str, Any]) -> int:
    """Return the size of the values of all variables, in bytes."""
    return sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in named.values())


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
