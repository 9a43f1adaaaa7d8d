"""`FlatArgument`: users' names for the arguments of a compiled program.

Idea: a compiled step takes one flat argument for each leaf of the state, then one for each leaf of the batch. The
compiler keeps the position in an argument's name, "leaves[3]"; without one, arguments are in order.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from anytpu.program.program import Program

_POSITION = re.compile(r"^\w+\[(\d+)\]$")


class FlatArgument(NamedTuple):
    """A flat argument: its name, and whether it is carried from step to step."""

    name: str
    use: Literal["state", "batch"]


def leaves_of(program: Program) -> tuple[FlatArgument, ...]:
    """Return the flat arguments of a program, in order.

    State has the program's own names, the batch its path: "batch/image", "batch/0".
    """
    state = jax.tree.leaves(program.state)
    names = program.state_names or tuple(f"state/{place}" for place in range(len(state)))
    paths = [path for path, _ in tree_flatten_with_path(program.batch)[0]]
    batch = [f"batch/{keystr(path, simple=True, separator='/')}" if path else "batch" for path in paths]
    return (*(FlatArgument(name, "state") for name in names), *(FlatArgument(name, "batch") for name in batch))


def position_of(op_name: str, number: int) -> int:
    """Return the index of the flat argument of a parameter: the position in its name, else its number."""
    match = _POSITION.match(op_name)
    return int(match[1]) if match else number
