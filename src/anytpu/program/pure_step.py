"""`PureStep`: a step of a framework as a function of state and batch, and the rules that the frameworks share."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from anytpu.errors import ProgramError


@dataclasses.dataclass(frozen=True)
class PureStep:
    """A step of a framework as a function of state and batch.

    Attributes:
        step: function `(state, batch) -> (state, outputs)`.
        state: arrays of the state, or their specs, by name.
        batch: arrays of the batch, or their specs, by the name of the step's parameter.
        kinds: `Program.state_kinds` of each array of the state, by name.
        notes: sentences on assumptions, for the reader of a plan.
    """

    step: Callable[[Any, Any], tuple[Any, Any]]
    state: dict[str, Any]
    batch: dict[str, Any]
    kinds: dict[str, str]
    notes: tuple[str, ...] = ()


def is_array(leaf: Any) -> bool:
    """Return whether a leaf is an array or the spec of one."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def names_of_parameters(step: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first parameters of a step; of `*batch`: "batch/0", "batch/1"."""
    names: list[str] = []
    for parameter in inspect.signature(step).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}/{place}" for place in range(count - len(names))]
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(parameter.name)
    if len(names) < count:
        raise ProgramError(
            f"the step takes {len(names)} arguments, {', '.join(names)}, and input_specs has {count}. Give one for each"
        )
    return names[:count]
