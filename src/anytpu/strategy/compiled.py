"""A compiled step of one strategy, and one run of it.

Rule: a compiled step holds neither the function that it was compiled from nor the Keras variables that it reads and
writes: the model that they belong to may die before it.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine.backend import Backend, Executable
from anytpu.engine.interrupts import deferred_interrupts
from anytpu.engine.pace import CallPace
from anytpu.program.program import REPLICATED, ROWS, Tree
from anytpu.strategy import variables as homes
from anytpu.strategy.per_replica import PerReplica, of_handles
from anytpu.strategy.replicas import RowCounts
from anytpu.strategy.step import Step


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledStep:
    """A step function, compiled for one form of its arguments.

    Attributes:
        executable: of its Program.
        references: to the Keras variables that it reads and writes, in the order of the state.
        trainable: which of them were trainable when it was compiled.
        has_rows: for a batch that does not fill all replicas, which outputs have an axis of rows in front; else None.
        counts: as in `Step`.
        pace: how many steps its next call should run, of a loop.
    """

    executable: Executable
    references: tuple[weakref.ref[Any], ...]
    trainable: tuple[bool, ...]
    has_rows: Tree
    counts: tuple[int, ...] | None
    pace: CallPace = dataclasses.field(default_factory=CallPace)

    @classmethod
    def of(cls, executable: Executable, step: Step) -> CompiledStep:
        """Return a step with its executable."""
        references = tuple(weakref.ref(variable) for variable in step.variables)
        # The padded step itself holds the model.
        has_rows = None if step.padded is None else step.padded.has_rows
        return cls(executable, references, tuple(v.trainable for v in step.variables), has_rows, step.counts)

    @property
    def variables(self) -> list[Any]:
        """The Keras variables that it reads and writes; None in the place of one that is gone."""
        return [reference() for reference in self.references]

    def run(self, backend: Backend, arrays: list[Any], own: Tree = None) -> tuple[Tree, Tree]:
        """Run the step on arguments, and let the variables hold their new values.

        Args:
            backend: where.
            arrays: what travels of the arguments.
            own: the arrays of NNX modules, or None.

        Returns:
            The new arrays of the modules, or None, and what the step returns.
        """
        # Copies: the call consumes what it is handed, and these arrays are the user's.
        copies = None if own is None else backend.put(jax.tree.map(lambda a: jnp.array(a, copy=True), own), REPLICATED)
        batch = [_put(backend, one) for one in arrays]
        variables = self.variables
        # A call consumes the state: an interrupt between it and the new state would leave the variables without values.
        with deferred_interrupts():
            state = homes.take(backend, variables, homes.Holder("strategy.run")), copies
            try:
                (values, new), outputs = self.executable.step(state, batch)
                homes.settle(backend, variables, values)
            except BaseException:
                homes.release(variables)
                raise
        return None if own is None else backend.get(new), self.opened(backend, outputs, arrays)

    def opened(self, backend: Backend, outputs: Tree, arrays: list[Any]) -> Tree:
        """Return handles of the outputs of one step as `PerReplica`, without the pads of the arguments."""
        rows = None if self.has_rows is None else tuple(int(one) for one in arrays[-1].padded())
        return of_handles(backend, outputs, self.executable.outputs, rows, self.has_rows)

    def fits(self, counts: RowCounts | None) -> bool:
        """Say whether a run can use it: its variables live and are as trainable, and the counts of rows are its own."""
        if counts is not None and not counts.are(self.counts):
            return False
        pairs = zip(self.variables, self.trainable, strict=True)
        return all([v is not None and v.trainable is flag for v, flag in pairs])


def _put(backend: Backend, one: Any) -> Any:
    if isinstance(one, np.ndarray):
        # A copy: JAX may use the memory as it is, and its owner may write the next batch there before this one is done.
        return backend.put_once(np.array(one), REPLICATED)
    if not isinstance(one, PerReplica):
        return backend.put(one, REPLICATED)
    handle = one.handle_on(backend)
    if handle is not None:
        return handle
    return backend.put(one.shared(), REPLICATED) if one.is_shared else backend.put_once(one.padded(), ROWS)
