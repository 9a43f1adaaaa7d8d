"""What one run of a step computed: everything by name, as NumPy arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from anytpu.program.leaves import leaf_names
from anytpu.program.program import Tree


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The values of one step.

    Attributes:
        marked: the marked values, by their marks.
        logs: what the step reports, by name.
        state: the leaves of the new state.
    """

    marked: dict[str, np.ndarray]
    logs: dict[str, np.ndarray]
    state: tuple[np.ndarray, ...]


def outcome_of(state: Tree, outputs: Tree) -> Outcome:
    """Return what a step with taps returned as an outcome. Half precision becomes float32, which holds it.

    Args:
        state: the new state, arrays.
        outputs: the pair of the logs and the marked values.
    """
    logs, values = outputs
    names = leaf_names(logs, "output")
    return Outcome(
        {mark: _readable(one) for mark, one in values.items()},
        {name: _readable(one) for name, one in zip(names, jax.tree.leaves(logs), strict=True)},
        tuple(map(_readable, jax.tree.leaves(state))),
    )


def outcome_to_arrays(outcome: Outcome) -> dict[str, np.ndarray]:
    """Return an outcome as one flat dictionary, for a file."""
    return {
        **{f"marked {mark}": one for mark, one in outcome.marked.items()},
        **{f"log {name}": one for name, one in outcome.logs.items()},
        **{f"state {number:06d}": one for number, one in enumerate(outcome.state)},
    }


def arrays_to_outcome(arrays: dict[str, np.ndarray]) -> Outcome:
    """Return what `outcome_to_arrays` was given."""

    def part(start: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(start): arrays[name] for name in sorted(arrays) if name.startswith(start)}

    return Outcome(part("marked "), part("log "), tuple(part("state ").values()))


def _readable(one: Any) -> np.ndarray:
    """Return an array of a type that files know, copied: a later step may consume the memory of this one."""
    array = np.array(one)
    return array.astype("float32") if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array
