"""`CompiledExecutable`: the executable of the backends that run in this process.

Rule: every function is compiled before its first call. So compilations are counted and timed, and their errors are
raised, in one place; a call only passes arrays. A failed call has already consumed its state, and its error says so.
"""

from __future__ import annotations

from typing import Any, final

import jax
import numpy as np

from anytpu.engine.backend import Executable, Steps
from anytpu.engine.compilation import compile_lowered
from anytpu.errors import BackendError
from anytpu.program.program import Tree


@final
class CompiledExecutable(Executable):
    """An XLA executable of one Program, as a single step or as a loop.

    Args:
        lowered: result of `jax.jit(...).lower(...)` for a function whose second result is the outputs of one step.
    """

    def __init__(self, lowered: jax.stages.Lowered) -> None:
        self._compiled = compile_lowered(lowered)
        self._outputs = jax.tree.map(lambda info: jax.ShapeDtypeStruct(info.shape, info.dtype), lowered.out_info[1])

    @property
    def outputs(self) -> Tree:
        """Specs of the outputs of one step."""
        return self._outputs

    @property
    def temporary_bytes(self) -> int:
        """Bytes that XLA allocates for each call besides arguments and results; 0 if XLA does not report them."""
        sizes = self._compiled.memory_analysis()
        return 0 if sizes is None else sizes.temp_size_in_bytes

    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """Run one step.

        Raises:
            BackendError: XLA failed at run time, for example because memory ran out.
        """
        return self._call(state, batch)

    def steps(self, state: Tree, feed: Tree, start: int, count: int) -> Steps:
        """Run `count` steps of a feed in one compiled loop.

        Raises:
            BackendError: XLA failed at run time, for example because memory ran out.
        """
        state, last, every, bad_step = self._call(state, feed, np.int32(start), np.int32(count))
        return Steps(state, last, every, count, bad_step)

    def _call(self, *arguments: Any) -> Any:
        try:
            return self._compiled(*arguments)
        except jax.errors.JaxRuntimeError as error:
            raise BackendError(_failure_text(str(error))) from error


def _failure_text(reason: str) -> str:
    first_line = next(iter(reason.strip().splitlines()), "")
    return (
        f"the call of a compiled program failed: XLA reports {first_line!r}. The state passed to this call is lost: "
        "load saved weights into the model before you continue"
    )
