"""`Compiled`: the executable of the backends that run in this process.

Rule: everything is compiled ahead of its first call, so a compilation is counted, timed and refused in one place, and a
call does nothing but hand over arrays.
"""

from __future__ import annotations

from typing import Any, final

import jax
import numpy as np

from anytpu.engine.backend import Executable, Steps
from anytpu.program.program import Tree


@final
class Compiled(Executable):
    """An XLA executable of one Program, as a single step or as a loop.

    Args:
        lowered: what `jax.jit(...).lower(...)` returned, of a function whose second result is the outputs of one step.
        options: options for XLA, or None.
    """

    def __init__(self, lowered: jax.stages.Lowered, options: dict[str, Any] | None = None) -> None:
        self._call = lowered.compile(compiler_options=options)
        self._outputs = jax.tree.map(lambda info: jax.ShapeDtypeStruct(info.shape, info.dtype), lowered.out_info[1])

    @property
    def outputs(self) -> Tree:
        """Specs of the outputs of one step."""
        return self._outputs

    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """Run one step."""
        return self._call(state, batch)

    def steps(self, state: Tree, feed: Tree, start: int, count: int) -> Steps:
        """Run `count` steps of a feed in one compiled loop."""
        state, last, every, bad_step = self._call(state, feed, np.int32(start), np.int32(count))
        return Steps(state, last, every, count, bad_step)
