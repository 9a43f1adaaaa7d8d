"""The compiled steps of one strategy, and one run of one of them.

Idea: a step is kept by what its function depends on and by the form of its arguments, and compiled when a run finds
none. Which variables are trainable is part of it: a layer that is frozen between two runs is frozen in the second.

Rule: the least recently used step is dropped when there are more than `MOST_STEPS`, and with it what it holds.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from anytpu.engine.backend import Backend, Executable
from anytpu.engine.interrupts import deferred_interrupts
from anytpu.errors import SettingError
from anytpu.program.program import REPLICATED, ROWS
from anytpu.strategy import variables as homes
from anytpu.strategy.arguments import Form, parted
from anytpu.strategy.identity import Identity
from anytpu.strategy.per_replica import PerReplica, of_handles
from anytpu.strategy.replicas import refuse_inside
from anytpu.strategy.step import step_program

MOST_STEPS = 64
"""The most compiled steps that a strategy keeps."""

_MOST_SETTINGS = 4
"""The most ways of setting `trainable` for which one step is kept."""


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledStep:
    """A step function, compiled for one form of its arguments.

    Attributes:
        executable: of its Program.
        variables: the Keras variables that are its state, in order.
        trainable: which of them were trainable when it was compiled.
    """

    executable: Executable
    variables: tuple[Any, ...]
    trainable: tuple[bool, ...]

    def run(self, backend: Backend, arrays: list[Any]) -> Any:
        """Run the step on arguments, and let the variables hold their new values."""
        batch = [_put(backend, one) for one in arrays]
        # A call consumes the state: an interrupt between it and the new state would leave the variables without values.
        with deferred_interrupts():
            state, outputs = self.executable.step(homes.take(backend, self.variables), batch)
            homes.settle(backend, self.variables, state)
        return of_handles(backend, outputs, self.executable.outputs)

    def is_current(self) -> bool:
        """Say whether the same variables are trainable as when it was compiled."""
        return all([v.trainable is flag for v, flag in zip(self.variables, self.trainable, strict=True)])


class CompiledSteps:
    """The compiled steps of one strategy."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[Identity, Form], list[CompiledStep]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, strategy: Any, fn: Callable, args: tuple, kwargs: dict | None) -> Any:
        """Run a function on each replica of a strategy; compile it if need be."""
        refuse_inside("run", "call the function itself")
        if not callable(fn):
            raise SettingError(f"fn must be a function that one replica runs, not {fn!r}: strategy.run(fn, args=(x,))")
        backend = strategy.backend
        form, arrays = parted(args, kwargs, strategy.num_replicas_in_sync)
        return self._find(strategy, fn, form).run(backend, arrays)

    def _find(self, strategy: Any, fn: Callable, form: Form) -> CompiledStep:
        key = (Identity(fn), form)
        kept = self._steps.get(key)
        if kept is not None:
            self._steps.move_to_end(key)
            for step in kept:
                if step.is_current():
                    return step
        program, variables = step_program(fn, form, strategy)
        executable = strategy.compile(program)
        step = CompiledStep(executable, tuple(variables), tuple(v.trainable for v in variables))
        self._steps[key] = [step, *(kept or [])[: _MOST_SETTINGS - 1]]
        if len(self._steps) > MOST_STEPS:
            self._steps.popitem(last=False)
        return step


def _put(backend: Backend, one: Any) -> Any:
    if isinstance(one, np.ndarray):
        # A copy: JAX may use the memory as it is, and its owner may write the next batch there before this one is done.
        return backend.put(np.array(one), REPLICATED)
    if not isinstance(one, PerReplica):
        return backend.put(one, REPLICATED)
    handle = one.handle_on(backend)
    return backend.put(one.stacked(), ROWS) if handle is None else handle
