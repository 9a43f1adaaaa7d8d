"""A compiled step of one strategy, and one run of it.

Rule: a compiled step holds no strong reference to its function or to its Keras variables: their model may be freed
before the step.
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
from anytpu.strategy.step import ReplicaStep


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledStep:
    """A step function, compiled for one form of its arguments.

    Attributes:
        executable: the executable of its Program.
        references: weak references to the Keras variables that it reads and writes, in the order of the state.
        trainable: for each variable, whether it was trainable at compile time.
        has_rows: for a batch that does not fill all replicas, a tree of bools: True for outputs whose first axis is
            rows; otherwise None.
        counts: number of real rows of each replica, as in `ReplicaStep`.
        pace: chooses the number of steps of the next call of a loop.
    """

    executable: Executable
    references: tuple[weakref.ref[Any], ...]
    trainable: tuple[bool, ...]
    has_rows: Tree
    counts: tuple[int, ...] | None
    pace: CallPace = dataclasses.field(default_factory=CallPace)

    @classmethod
    def of(cls, executable: Executable, step: ReplicaStep) -> CompiledStep:
        """Return the compiled form of a step."""
        references = tuple(weakref.ref(variable) for variable in step.variables)
        # Keep only `has_rows`: the padded step itself holds the model.
        has_rows = None if step.padded is None else step.padded.has_rows
        return cls(executable, references, tuple(v.trainable for v in step.variables), has_rows, step.counts)

    @property
    def variables(self) -> list[Any]:
        """The Keras variables that it reads and writes; None for a freed one."""
        return [reference() for reference in self.references]

    def run(self, backend: Backend, arrays: list[Any], own: Tree = None) -> tuple[Tree, Tree]:
        """Run the step on arguments, and store the new values of the variables.

        Args:
            backend: the backend that runs the step.
            arrays: the passed values of the arguments, from `split_arguments`.
            own: the arrays of NNX modules, or None.

        Returns:
            The new arrays of the modules, or None, and the outputs of the step.
        """
        # Copy: the call donates its inputs, and these arrays belong to the user.
        copies = None if own is None else backend.put(jax.tree.map(lambda a: jnp.array(a, copy=True), own), REPLICATED)
        batch = [_put(backend, array) for array in arrays]
        variables = self.variables
        # A call donates the state: an interrupt before the new state is stored would leave variables without values.
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
        rows = None if self.has_rows is None else tuple(int(count) for count in arrays[-1].padded())
        return of_handles(backend, outputs, self.executable.outputs, rows, self.has_rows)

    def fits(self, counts: RowCounts | None) -> bool:
        """Return whether a run can use this step.

        The variables must be alive with the same `trainable` flags, and the counts of rows must match.
        """
        if counts is not None and not counts.fits(self.counts):
            return False
        pairs = zip(self.variables, self.trainable, strict=True)
        return all([v is not None and v.trainable is flag for v, flag in pairs])


def _put(backend: Backend, array: Any) -> Any:
    """Return the handle of an argument on a backend."""
    if isinstance(array, np.ndarray):
        # Copy: JAX may use the memory in place, and its owner may overwrite it with the next batch during the step.
        return backend.put_once(np.array(array), REPLICATED)
    if not isinstance(array, PerReplica):
        return backend.put(array, REPLICATED)
    handle = array.handle_on(backend)
    if handle is not None:
        return handle
    return backend.put(array.shared(), REPLICATED) if array.is_shared else backend.put_once(array.padded(), ROWS)
