"""`Compiled`: the executable of the backends that run in this process.

Rule: everything is compiled ahead of its first call, so a compilation is counted, timed and refused in one place, and a
call does nothing but hand over arrays. A call that fails has consumed its state already, and its error says so.
"""

from __future__ import annotations

from typing import Any, final

import jax
import numpy as np

from anytpu.engine.backend import Executable, Steps
from anytpu.engine.compilation import compiled
from anytpu.errors import BackendError
from anytpu.program.program import Tree


@final
class Compiled(Executable):
    """An XLA executable of one Program, as a single step or as a loop.

    Args:
        lowered: what `jax.jit(...).lower(...)` returned, of a function whose second result is the outputs of one step.
    """

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._compiled = compiled(lowered)
        self._outputs = jax.tree.map(lambda info: jax.ShapeDtypeStruct(info.shape, info.dtype), lowered.out_info[1])

    @property
    def outputs(self) -> Tree:
        """Specs of the outputs of one step."""
        return self._outputs

    @property
    def temporary_bytes(self) -> int:
        """Memory that XLA allocates for each call beside arguments and results; 0 where it does not say."""
        sizes = self._compiled.memory_analysis()
        return 0 if sizes is None else sizes.temp_size_in_bytes

    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """Run one step.

        Raises:
            BackendError: XLA failed while it ran, for example for want of memory.
        """
        return self._call(state, batch)

    def steps(self, state: Tree, feed: Tree, start: int, count: int) -> Steps:
        """Run `count` steps of a feed in one compiled loop.

        Raises:
            BackendError: XLA failed while it ran, for example for want of memory.
        """
        state, last, every, bad_step = self._call(state, feed, np.int32(start), np.int32(count))
        return Steps(state, last, every, count, bad_step)

    def _call(self, *given: Any) -> Any:
        try:
            return self._compiled(*given)
        except jax.errors.JaxRuntimeError as error:
            raise BackendError(_failed(str(error))) from error


def _failed(reason: str) -> str:
    first_line = next(iter(reason.strip().splitlines()), "")
    return (
        f"the call of a compiled program failed: XLA says {first_line!r}. The state that was handed to this call is "
        "lost: load saved weights into the model before you go on"
    )
