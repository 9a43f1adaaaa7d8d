"""A compiled step of one strategy, and one run of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from anytpu.engine.backend import Backend, Executable
from anytpu.engine.interrupts import deferred_interrupts
from anytpu.engine.pace import Pace
from anytpu.program.program import REPLICATED, ROWS, Tree
from anytpu.strategy import variables as homes
from anytpu.strategy.per_replica import PerReplica, of_handles
from anytpu.strategy.step import Step


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledStep:
    """A step function, compiled for one form of its arguments.

    Attributes:
        executable: of its Program.
        step: the step; the Keras variables that it reads and writes are its state.
        trainable: which of them were trainable when it was compiled.
        pace: how many steps its next call should run, of a loop.
    """

    executable: Executable
    step: Step
    trainable: tuple[bool, ...]
    pace: Pace = dataclasses.field(default_factory=Pace)

    def run(self, backend: Backend, arrays: list[Any]) -> Any:
        """Run the step on arguments, and let the variables hold their new values."""
        batch = [_put(backend, one) for one in arrays]
        # A call consumes the state: an interrupt between it and the new state would leave the variables without values.
        with deferred_interrupts():
            (values, _), outputs = self.executable.step((homes.take(backend, self.step.variables), None), batch)
            homes.settle(backend, self.step.variables, values)
        return self.opened(backend, outputs, arrays)

    def opened(self, backend: Backend, outputs: Tree, arrays: list[Any]) -> Tree:
        """Return handles of the outputs of one step as `PerReplica`, without the pads of the arguments."""
        rows = None if self.step.has_rows is None else tuple(int(one) for one in arrays[-1].padded())
        return of_handles(backend, outputs, self.executable.outputs, rows, self.step.has_rows)

    def is_current(self) -> bool:
        """Say whether the same variables are trainable as when it was compiled."""
        return all([v.trainable is flag for v, flag in zip(self.step.variables, self.trainable, strict=True)])


def _put(backend: Backend, one: Any) -> Any:
    if isinstance(one, np.ndarray):
        # A copy: JAX may use the memory as it is, and its owner may write the next batch there before this one is done.
        return backend.put(np.array(one), REPLICATED)
    if not isinstance(one, PerReplica):
        return backend.put(one, REPLICATED)
    handle = one.handle_on(backend)
    return backend.put(one.padded(), ROWS) if handle is None else handle
