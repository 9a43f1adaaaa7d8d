"""The compiled steps that a strategy keeps.

Idea: a step is kept by what its function depends on and by the form of its arguments, and compiled when a run finds
none. Which variables are trainable is part of it: a layer that is frozen between two runs is frozen in the second.

Rule: a kept step holds no model. What it depends on is watched through weak references, and when the first of those
objects dies the step and its executable are dropped. So an id in a key is never that of another object. What cannot be
weakly referenced (an object with slots) is held as long as the step. The least recently used step is dropped when there
are more than `MOST_STEPS`.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import jax

from anytpu.engine.backend import Loop
from anytpu.engine.measurements import listener_of
from anytpu.errors import SettingError
from anytpu.program.program import Tree, spec_of
from anytpu.strategy import modules
from anytpu.strategy.arguments import Form, parted
from anytpu.strategy.compiled import CompiledStep
from anytpu.strategy.identity import Identity, is_weakly_referable
from anytpu.strategy.replicas import refuse_inside
from anytpu.strategy.step import Call, Step, step_of

MOST_STEPS = 64
"""The most compiled steps that a strategy keeps."""

_MOST_SETTINGS = 4
"""The most ways of setting `trainable`, and of counts of rows that a step asks for, for which one step is kept."""


class KeptSteps:
    """The compiled steps of one function and one form of its arguments, until an object that they depend on dies.

    Attributes:
        steps: one for each way of setting `trainable`, the newest first; empty once an object has died.
        is_dead: True once one has died.
    """

    __slots__ = ("__weakref__", "_watched", "is_dead", "steps")

    def __init__(self) -> None:
        self.steps: list[CompiledStep] = []
        self.is_dead = False
        self._watched: dict[int, Any] = {}

    def add(self, step: CompiledStep, objects: Iterable[Any]) -> None:
        """Keep one more step, and watch the objects that it depends on."""
        self.steps = [step, *self.steps[: _MOST_SETTINGS - 1]]
        died = _on_death(weakref.ref(self))
        for one in objects:
            if id(one) not in self._watched:
                self._watched[id(one)] = weakref.ref(one, died) if is_weakly_referable(one) else one


def _on_death(reference: weakref.ref[KeptSteps]) -> Callable[[Any], None]:
    def died(_: Any) -> None:
        # This may run in any thread at any moment: nothing but assignments.
        kept = reference()
        if kept is not None:
            kept.is_dead, kept.steps, kept._watched = True, [], {}

    return died


class CompiledSteps:
    """The compiled steps of one strategy."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple, KeptSteps] = OrderedDict()

    def __len__(self) -> int:
        return sum(not kept.is_dead for kept in self._steps.values())

    def run(self, strategy: Any, fn: Callable, args: tuple, kwargs: dict | None) -> Any:
        """Run a function on each replica of a strategy; compile it if need be."""
        check_step(fn, "run", "call the function itself", "strategy.run(fn, args=(x,))")
        backend = strategy.backend
        taken = modules.taken_out(args, kwargs)
        if taken is not None:
            args, kwargs = taken.args, taken.kwargs
        args, kwargs = modules.closed((args, kwargs))
        form, arrays = parted(args, kwargs, strategy.num_replicas_in_sync)
        if taken is None:
            return modules.opened(self.find(strategy, fn, form).run(backend, arrays)[1])
        step = self.find(strategy, fn, form, own=spec_of(taken.values), module_form=taken.form)
        values, outputs = step.run(backend, arrays, taken.values)
        taken.write_back(values)
        return modules.opened(outputs)

    def find(
        self,
        strategy: Any,
        fn: Callable,
        form: Form,
        loop: Loop | None = None,
        own: Tree = None,
        module_form: modules.ModuleForm | None = None,
    ) -> CompiledStep:
        """Return the compiled step of a function; compile it if need be.

        Args:
            strategy: the strategy that runs it.
            fn: what one replica does.
            form: the form of its arguments, behind the state of a pure step.
            loop: the loop that runs it, or None for one step a call.
            own: specs of the state of a pure step, or of the arrays of NNX modules; None for a function without.
            module_form: the form of the NNX modules among its arguments.
        """
        leaves, tree = jax.tree.flatten(own)
        identity = Identity(fn)
        specs = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = (identity.key, form.key, loop, tree, specs, module_form and module_form.key)
        kept = self._steps.get(key)
        if kept is not None:
            self._steps.move_to_end(key)
            for compiled in kept.steps:
                if compiled.fits(form.counts):
                    return compiled
        call = Call(fn, form, strategy, own is not None, module_form)
        modules.refuse_captured(call.name, identity.objects)
        step = _traced(call, own, modules.check_of_trace(call.name, identity.objects))
        # Those who read the outputs of a loop expect one of each replica.
        program = dataclasses.replace(step.program, shares_outputs=loop is None)
        executable = strategy.compile(program, loop)
        executable.listener = None if loop is None else listener_of(step.program, strategy.backend.cores)
        compiled = CompiledStep.of(executable, step)
        if kept is None or kept.is_dead:
            kept = self._steps[key] = KeptSteps()
        parts = () if module_form is None else module_form.objects
        kept.add(compiled, [*identity.objects, *form.objects, *parts, *step.variables])
        self._drop()
        return compiled

    def _drop(self) -> None:
        """Drop the steps that are dead, and the least recently used ones that are too many."""
        for key in [key for key, kept in self._steps.items() if kept.is_dead]:
            del self._steps[key]
        while len(self._steps) > MOST_STEPS:
            self._steps.popitem(last=False)


def _traced(call: Call, own: Tree, check: Callable | None) -> Step:
    try:
        return step_of(call, own, check)
    except Exception as error:
        ours = modules.translated(call.name, error)
        if ours is error:
            raise
        raise ours from error


def check_step(fn: Any, name: str, instead: str, example: str) -> None:
    """Refuse what is not a function that one replica can run, and a call inside a replica.

    Args:
        fn: what was given as the function.
        name: of the method that was called.
        instead: what to type inside a replica.
        example: a call that works.
    """
    refuse_inside(name, instead)
    if not callable(fn):
        raise SettingError(f"fn must be a function that one replica runs, not {fn!r}: {example}")
