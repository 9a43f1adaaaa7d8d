"""The compiled steps of one strategy: which there are, and one run of one of them.

Idea: a step is kept by what its function depends on and by the form of its arguments, and compiled when a run finds
none. Which variables are trainable is part of it: a layer that is frozen between two runs is frozen in the second.

Rule: the least recently used step is dropped when there are more than `MOST_STEPS`, and with it what it holds.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.interrupts import deferred_interrupts
from anytpu.engine.pace import Pace
from anytpu.errors import SettingError
from anytpu.program.program import REPLICATED, ROWS, Tree
from anytpu.strategy import variables as homes
from anytpu.strategy.arguments import Form, parted
from anytpu.strategy.identity import Identity
from anytpu.strategy.per_replica import PerReplica, of_handles
from anytpu.strategy.replicas import refuse_inside
from anytpu.strategy.step import Call, Step, step_of

MOST_STEPS = 64
"""The most compiled steps that a strategy keeps."""

_MOST_SETTINGS = 4
"""The most ways of setting `trainable` for which one step is kept."""


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


class CompiledSteps:
    """The compiled steps of one strategy."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple, list[CompiledStep]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, strategy: Any, fn: Callable, args: tuple, kwargs: dict | None) -> Any:
        """Run a function on each replica of a strategy; compile it if need be."""
        refuse_inside("run", "call the function itself")
        check_callable(fn, "strategy.run(fn, args=(x,))")
        backend = strategy.backend
        form, arrays = parted(args, kwargs, strategy.num_replicas_in_sync)
        return self.find(strategy, fn, Identity(fn), form).run(backend, arrays)

    def find(
        self, strategy: Any, fn: Callable, identity: Identity, form: Form, loop: Loop | None = None, own: Tree = None
    ) -> CompiledStep:
        """Return the compiled step of a function; compile it if need be.

        Args:
            strategy: the strategy that runs it.
            fn: what one replica does.
            identity: of the function.
            form: the form of its arguments, behind the state of a pure step.
            loop: the loop that runs it, or None for one step a call.
            own: specs of the state of a pure step; None for a function that has none.
        """
        leaves, tree = jax.tree.flatten(own)
        key = (identity, form, loop, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        kept = self._steps.get(key)
        if kept is not None:
            self._steps.move_to_end(key)
            for step in kept:
                if step.is_current():
                    return step
        step = step_of(Call(fn, form, strategy, is_pure=own is not None), own)
        executable = strategy.compile(step.program, loop)
        compiled = CompiledStep(executable, step, tuple(v.trainable for v in step.variables))
        self._steps[key] = [compiled, *(kept or [])[: _MOST_SETTINGS - 1]]
        if len(self._steps) > MOST_STEPS:
            self._steps.popitem(last=False)
        return compiled


def check_callable(fn: Any, example: str) -> None:
    """Refuse what is not a function that one replica can run."""
    if not callable(fn):
        raise SettingError(f"fn must be a function that one replica runs, not {fn!r}: {example}")


def _put(backend: Backend, one: Any) -> Any:
    if isinstance(one, np.ndarray):
        # A copy: JAX may use the memory as it is, and its owner may write the next batch there before this one is done.
        return backend.put(np.array(one), REPLICATED)
    if not isinstance(one, PerReplica):
        return backend.put(one, REPLICATED)
    handle = one.handle_on(backend)
    return backend.put(one.padded(), ROWS) if handle is None else handle
