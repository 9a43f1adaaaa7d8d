"""Check of a step's result: a pair whose state has the structure, shapes and dtypes of the input state.

Idea: a step is called repeatedly with its own state. A leaf that changes its shape or dtype in the first step would
make the second step another program.

Rule: this package checks the result at every trace of a step; the error names the leaf.
"""

from __future__ import annotations

from typing import Any

import jax

from anytpu.errors import ProgramError
from anytpu.program.leaves import leaf_names, leaf_text
from anytpu.program.program import Tree


def check_result(name: str, state: Tree, result: Any, names: tuple[str, ...] = ()) -> None:
    """Check the result of a step against its input state.

    Args:
        name: name of the program, for the error.
        state: the input state, a tree of `jax.ShapeDtypeStruct`.
        result: the result of the step, with arrays replaced by `jax.ShapeDtypeStruct`.
        names: name of each leaf of `state`; empty: the path of each leaf.

    Raises:
        ProgramError: the result is not a pair, or its state has another structure, shape or dtype.
    """
    new_state, _ = check_pair(name, result)
    before, after = jax.tree.structure(state), jax.tree.structure(new_state)
    if before != after:
        raise ProgramError(
            f"The step of {name!r} must return a state of the same structure as the one that it was given: "
            f"it was given {before} and returned {after}."
        )
    for leaf_name, old, new in zip(
        names or leaf_names(state, "state"), jax.tree.leaves(state), jax.tree.leaves(new_state), strict=True
    ):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ProgramError(
                f"The step of {name!r} must return each state as it was given: {leaf_name!r} was given as "
                f"{leaf_text(old)} and returned as {leaf_text(new)}. Cast it back with .astype, or start with a state "
                "of the type that comes back."
            )


def check_pair(name: str, result: Any) -> tuple[Any, Any]:
    """Return the result of a step if it is a pair (state, outputs); otherwise raise `ProgramError`."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise ProgramError(
        f"The step of {name!r} must return a pair (state, outputs), not {_text(result)}. "
        "Where there is nothing to report, return (state, {})."
    )


def _text(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {len(result)}"
    if result is None:
        return "None"
    is_array = isinstance(result, jax.Array | jax.ShapeDtypeStruct)
    return "an array" if is_array else f"a {type(result).__name__}"
