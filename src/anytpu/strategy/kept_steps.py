"""The compiled steps that a strategy keeps.

Idea: a step is kept by what its function depends on and by the form of its arguments, and compiled when a run finds
none. Which variables are trainable is part of it: a layer that is frozen between two runs is frozen in the second.

Rule: the least recently used step is dropped when there are more than `MOST_STEPS`, and with it what it holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax

from anytpu.engine.backend import Loop
from anytpu.engine.measurements import listener_of
from anytpu.errors import SettingError
from anytpu.program.program import Tree
from anytpu.strategy.arguments import Form, parted
from anytpu.strategy.compiled import CompiledStep
from anytpu.strategy.identity import Identity
from anytpu.strategy.replicas import refuse_inside
from anytpu.strategy.step import Call, step_of

MOST_STEPS = 64
"""The most compiled steps that a strategy keeps."""

_MOST_SETTINGS = 4
"""The most ways of setting `trainable` for which one step is kept."""


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
        return self.find(strategy, fn, form).run(backend, arrays)

    def find(self, strategy: Any, fn: Callable, form: Form, loop: Loop | None = None, own: Tree = None) -> CompiledStep:
        """Return the compiled step of a function; compile it if need be.

        Args:
            strategy: the strategy that runs it.
            fn: what one replica does.
            form: the form of its arguments, behind the state of a pure step.
            loop: the loop that runs it, or None for one step a call.
            own: specs of the state of a pure step; None for a function that has none.
        """
        leaves, tree = jax.tree.flatten(own)
        key = (Identity(fn), form, loop, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        kept = self._steps.get(key)
        if kept is not None:
            self._steps.move_to_end(key)
            for step in kept:
                if step.is_current():
                    return step
        step = step_of(Call(fn, form, strategy, is_pure=own is not None), own)
        executable = strategy.compile(step.program, loop)
        executable.listener = None if loop is None else listener_of(step.program, strategy.backend.cores)
        compiled = CompiledStep(executable, step, tuple(v.trainable for v in step.variables))
        self._steps[key] = [compiled, *(kept or [])[: _MOST_SETTINGS - 1]]
        if len(self._steps) > MOST_STEPS:
            self._steps.popitem(last=False)
        return compiled


def check_callable(fn: Any, example: str) -> None:
    """Refuse what is not a function that one replica can run."""
    if not callable(fn):
        raise SettingError(f"fn must be a function that one replica runs, not {fn!r}: {example}")
