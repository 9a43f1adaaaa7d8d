"""The cache of a strategy's compiled steps.

Idea: the cache key is the identity of the function (`identity.py`) and the form of its arguments (`arguments.py`). A
run without an entry compiles the step. The `trainable` flags of the variables count too: a layer that is frozen between
two runs is frozen in the second one.

Rule: an entry holds no model. Its objects are watched through weak references; when the first of them dies, the step
and its executable are dropped. So an id in a key never belongs to another object. Objects that cannot be weakly
referenced (with slots) are held as long as the step. Above `MAX_STEPS` entries, the least recently used one is dropped.
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
from anytpu.strategy.arguments import ArgumentForm, split_arguments
from anytpu.strategy.compiled import CompiledStep
from anytpu.strategy.identity import Identity, is_weakly_referable
from anytpu.strategy.replicas import refuse_inside
from anytpu.strategy.step import Call, ReplicaStep, step_of

MAX_STEPS = 64
"""Maximum number of compiled steps in the cache of a strategy."""

_MAX_VARIANTS = 4
"""Maximum number of variants of one step, which differ in `trainable` flags or in the counts of real rows."""


class KeptSteps:
    """A cache entry: the compiled steps of one function and one form of its arguments.

    Attributes:
        steps: one for each combination of `trainable` flags, the newest first; empty once a watched object has died.
        is_dead: True once a watched object has died.
    """

    __slots__ = ("__weakref__", "_watched", "is_dead", "steps")

    def __init__(self) -> None:
        self.steps: list[CompiledStep] = []
        self.is_dead = False
        self._watched: dict[int, Any] = {}

    def add(self, step: CompiledStep, objects: Iterable[Any]) -> None:
        """Add a step, and watch the objects that it depends on."""
        self.steps = [step, *self.steps[: _MAX_VARIANTS - 1]]
        callback = _on_death(weakref.ref(self))
        for value in objects:
            if id(value) not in self._watched:
                self._watched[id(value)] = weakref.ref(value, callback) if is_weakly_referable(value) else value


def _on_death(reference: weakref.ref[KeptSteps]) -> Callable[[Any], None]:
    def drop_steps(dead: Any) -> None:
        # The garbage collector may run this in any thread at any moment, so it only assigns.
        del dead
        kept = reference()
        if kept is not None:
            kept.is_dead, kept.steps, kept._watched = True, [], {}

    return drop_steps


class CompiledSteps:
    """The cache of one strategy's compiled steps."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple, KeptSteps] = OrderedDict()

    def __len__(self) -> int:
        return sum(not kept.is_dead for kept in self._steps.values())

    def run(self, strategy: Any, fn: Callable, args: tuple, kwargs: dict | None) -> Any:
        """Run a function on each replica of a strategy; compile it if necessary."""
        check_step(fn, "run", "call the function itself", "strategy.run(fn, args=(x,))")
        backend = strategy.backend
        # 1. Separate the arguments: arrays of NNX modules, static leaves of Equinox modules, and passed arrays.
        extracted = modules.extract_modules(args, kwargs)
        if extracted is not None:
            args, kwargs = extracted.args, extracted.kwargs
        args, kwargs = modules.wrap_static_leaves((args, kwargs))
        form, arrays = split_arguments(args, kwargs, strategy.num_replicas_in_sync)
        # 2. Find the compiled step, run it, and write new arrays back to the NNX modules.
        if extracted is None:
            return modules.unwrap_static_leaves(self.find(strategy, fn, form).run(backend, arrays)[1])
        step = self.find(strategy, fn, form, own=spec_of(extracted.values), module_form=extracted.form)
        values, outputs = step.run(backend, arrays, extracted.values)
        extracted.write_back(values)
        return modules.unwrap_static_leaves(outputs)

    def find(
        self,
        strategy: Any,
        fn: Callable,
        form: ArgumentForm,
        loop: Loop | None = None,
        own: Tree = None,
        module_form: modules.ModuleForm | None = None,
    ) -> CompiledStep:
        """Return the compiled step of a function; compile it if necessary.

        Args:
            strategy: the strategy that runs it.
            fn: the step function of one replica.
            form: the form of its arguments, without the state of a pure step.
            loop: the loop that runs it, or None for one step per call.
            own: specs of the state of a pure step, or of the arrays of NNX modules; None for a function without either.
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
        step = _traced(call, own, modules.trace_check(call.name, identity.objects))
        # A loop returns one output per replica, so only single steps share outputs.
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
        """Drop dead entries, and the least recently used entries above the limit."""
        for key in [key for key, kept in self._steps.items() if kept.is_dead]:
            del self._steps[key]
        while len(self._steps) > MAX_STEPS:
            self._steps.popitem(last=False)


def _traced(call: Call, own: Tree, check: Callable | None) -> ReplicaStep:
    try:
        return step_of(call, own, check)
    except Exception as error:
        ours = modules.translate_flax_error(call.name, error)
        if ours is error:
            raise
        raise ours from error


def check_step(fn: Any, name: str, instead: str, example: str) -> None:
    """Check that `fn` is callable, and that the caller is outside every replica.

    Args:
        fn: the function argument.
        name: name of the called method, for the error.
        instead: the advice for a call inside a replica.
        example: an example of a correct call.
    """
    refuse_inside(name, instead)
    if not callable(fn):
        raise SettingError(f"fn must be a function that one replica runs, not {fn!r}: {example}")
