"""The cache of a strategy's compiled steps, and one run of a compiled step.

Idea: the cache key is the identity of the function (`identity.py`) and the form of its arguments (`arguments.py`). A
run without an entry compiles the step. The `trainable` flags of the variables count too: a layer that is frozen between
two runs is frozen in the second one.

Rule: neither a compiled step nor a cache entry holds a strong reference to a function, a model or its variables. So
they may be freed before the step. An entry watches its objects through weak references. When the first of them dies,
the step and its executable are dropped, so an id in a key never belongs to another object. Objects that cannot be
weakly referenced (with slots) are held as long as the step. Above `MAX_STEPS` entries, the least recently used entry is
dropped.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.interrupts import deferred_interrupts
from anytpu.engine.pace import CallPace
from anytpu.program.program import REPLICATED, ROWS, Tree, array_layouts
from anytpu.strategy import modules
from anytpu.strategy import variables as homes
from anytpu.strategy.arguments import ArgumentForm, split_arguments, weak_spec_of, with_weak_types
from anytpu.strategy.identity import Identity, is_weakly_referable, keep_reader, readers_of
from anytpu.strategy.per_replica import PerReplica, of_handles
from anytpu.strategy.replicas import check_step
from anytpu.strategy.scopes import compiled_in_spite
from anytpu.strategy.step import Call, ReplicaStep, step_of

MAX_STEPS = 64
"""Maximum number of compiled steps in the cache of a strategy."""

_MAX_VARIANTS = 4
"""Maximum number of variants of one step, which differ in `trainable` flags."""


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledStep:
    """A step function, compiled for one form of its arguments.

    Attributes:
        executable: the executable of its Program.
        references: weak references to the Keras variables that it reads and writes, in the order of the state.
        trainable: for each variable, whether it was trainable at compile time.
        shapes: for a batch that does not fill all replicas, the shapes of each output, as in `UnevenStep`; otherwise
            None.
        layouts: for a whole-batch step, the layouts of its state and of its batch; otherwise None.
        own: specs of the state of a pure step or of the modules, as in `ReplicaStep`.
        outputs: specs of the outputs of one step, with their weak types.
        pace: chooses the number of steps of the next call of a loop.
    """

    executable: Executable
    references: tuple[weakref.ref[Any], ...]
    trainable: tuple[bool, ...]
    shapes: list[tuple[tuple[int, ...], ...] | None] | None
    layouts: tuple[Tree, Tree] | None
    own: Tree
    outputs: Tree
    pace: CallPace = dataclasses.field(default_factory=CallPace)

    @classmethod
    def of(cls, executable: Executable, step: ReplicaStep) -> CompiledStep:
        """Return the compiled form of a step."""
        references = tuple(weakref.ref(variable) for variable in step.variables)
        # Keep only the shapes: the step itself holds the model.
        shapes = None if step.uneven is None else step.uneven.shapes
        layouts = array_layouts(step.program) if step.program.replicas is None else None
        trainable = tuple(v.trainable for v in step.variables)
        specs, tree = jax.tree.flatten(executable.outputs)
        pairs = zip(specs, step.weak_outputs or [False] * len(specs), strict=True)
        outputs = [jax.ShapeDtypeStruct(spec.shape, spec.dtype, weak_type=is_weak) for spec, is_weak in pairs]
        return cls(executable, references, trainable, shapes, layouts, step.own, tree.unflatten(outputs))

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
        backend.hosts.count_call()
        batch = [_put(backend, array) for array in arrays]
        # A step without a state donates nothing, so an interrupt loses nothing.
        if own is None and not self.references:
            return None, self.opened(backend, self.executable.step(([], None), batch)[1])
        # Copy: the call donates its inputs, and these arrays belong to the user.
        copies = None if own is None else backend.put(jax.tree.map(_copied, own, self.own), REPLICATED)
        variables = self.variables
        # A call donates the state: an interrupt before the new state is stored would leave variables without values.
        with deferred_interrupts():
            state = homes.take(backend, variables, homes.Holder("strategy.run")), copies
            try:
                (values, new), outputs = self.executable.step(state, batch)
                homes.settle(variables, values)
            except BaseException:
                homes.release(variables)
                raise
        return None if own is None else self.opened_own(backend, new), self.opened(backend, outputs)

    def opened_own(self, backend: Backend, new: Tree) -> Tree:
        """Return the arrays of the new state of a pure step or of the modules, with weak types where they have them."""
        return with_weak_types(backend.get(new), self.own)

    def opened(self, backend: Backend, outputs: Tree) -> Tree:
        """Return handles of the outputs of one step as `PerReplica`, without pads.

        The outputs of a whole-batch step are returned as arrays.
        """
        if self.layouts is not None:
            return backend.get(outputs)
        return of_handles(backend, outputs, self.outputs, self.shapes)

    def fits(self) -> bool:
        """Return whether a run can use this step: its variables are alive with the same `trainable` flags."""
        for reference, is_trainable in zip(self.references, self.trainable, strict=True):
            variable = reference()
            if variable is None or variable.trainable is not is_trainable:
                return False
        return True


def _copied(array: Any, spec: jax.ShapeDtypeStruct) -> Any:
    return jnp.array(array, spec.dtype, copy=True)


def _put(backend: Backend, array: Any) -> Any:
    """Return the handle of an argument on a backend."""
    if isinstance(array, np.ndarray):
        # Copy: JAX may use the memory in place, and its owner may overwrite it with the next batch during the step.
        return backend.put_once(np.array(array), REPLICATED)
    if not isinstance(array, PerReplica):
        return backend.put(array, REPLICATED)
    handle = array.handle_on(backend)
    if handle is not None:
        # The outputs of a program that runs on several hosts are on every core.
        return handle if backend.hosts.is_alone else backend.put(handle, ROWS)
    if array.is_shared:
        return backend.put(array.shared(), REPLICATED)
    if not array.has_own_rows:
        return backend.put_once(array.padded(), ROWS)
    with backend.hosts.own_rows():
        return backend.put_once(array.padded(), ROWS)


class _CacheEntry:
    """The compiled steps of one function and one form of its arguments.

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
        own = weakref.ref(self)

        def drop_steps(dead: Any) -> None:
            # The garbage collector may run this in any thread at any moment, so it only assigns.
            del dead
            entry = own()
            if entry is not None:
                entry.is_dead, entry.steps, entry._watched = True, [], {}

        for value in objects:
            if id(value) not in self._watched:
                self._watched[id(value)] = weakref.ref(value, drop_steps) if is_weakly_referable(value) else value


class CompiledSteps:
    """The cache of one strategy's compiled steps."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple, _CacheEntry] = OrderedDict()
        # The same entries by what a `DependencyReader` returns, with their keys in `_steps`.
        self._by_reading: dict[tuple, tuple[_CacheEntry, tuple]] = {}

    def __len__(self) -> int:
        return sum(not entry.is_dead for entry in set(self._steps.values()))

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
        step = self.find(strategy, fn, form, own=weak_spec_of(extracted.values), module_form=extracted.form)
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
        # 1. Look up the steps of this function and form: by the values that decide its identity, then by its identity.
        leaves, tree = jax.tree.flatten(own)
        specs = tuple([(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]) if leaves else ()
        rest = (form.key, loop, tree, specs, module_form and module_form.key)
        objects = form.objects
        for reader in readers_of(fn):
            known = self._by_reading.get((reader(fn, objects), rest))
            if known is not None:
                for compiled in known[0].steps:
                    if compiled.fits():
                        self._steps.move_to_end(known[1])
                        return compiled
        identity = Identity(fn, objects)
        key = (identity.key, rest)
        entry = self._steps.get(key)
        if entry is not None:
            self._steps.move_to_end(key)
            for compiled in entry.steps:
                if compiled.fits():
                    self._remember(fn, objects, identity, rest)
                    return compiled
        # 2. Trace the step, and compile it.
        call = Call(fn, form, strategy, own is not None, module_form, own=own)
        modules.refuse_captured(call.name, identity.objects)
        with compiled_in_spite(f"{call.name} on {strategy!r}"):
            step = _traced(call, modules.trace_check(call.name, identity.objects))
            # A loop returns one output per replica, so only single steps share outputs.
            program = dataclasses.replace(step.program, shares_outputs=loop is None)
            executable = strategy.compile(program, loop)
        compiled = CompiledStep.of(executable, step)
        # 3. Store it. An entry may be dead, also since the compilation: its objects have been collected.
        if entry is None or entry.is_dead:
            entry = self._steps[key] = _CacheEntry()
        parts = () if module_form is None else module_form.objects
        # What the trace itself changed, such as layers that it made, is no change for the next run.
        after = Identity(fn, objects)
        self._steps[(after.key, rest)] = entry
        watched = [*identity.objects, *identity.reached, *after.objects, *after.reached]
        entry.add(compiled, [*watched, *objects, *parts, *step.variables])
        self._drop_entries()
        self._remember(fn, objects, after, rest)
        return compiled

    def _remember(self, fn: Callable, objects: list[Any], identity: Identity, rest: tuple) -> None:
        """Let later runs find the entry of an identity by its reader."""
        keep_reader(fn, identity.reader)
        key = (identity.key, rest)
        self._by_reading[identity.reader(fn, objects), rest] = self._steps[key], key

    def _drop_entries(self) -> None:
        """Drop dead entries, and the least recently used entries above the limit."""
        for key in [key for key, entry in self._steps.items() if entry.is_dead]:
            del self._steps[key]
        while len(self._steps) > MAX_STEPS:
            self._steps.popitem(last=False)
        self._by_reading = {name: known for name, known in self._by_reading.items() if known[1] in self._steps}


def _traced(call: Call, check: Callable | None) -> ReplicaStep:
    try:
        return step_of(call, check)
    except Exception as error:
        ours = modules.translate_flax_error(call.name, error)
        if ours is error:
            raise
        raise ours from error
