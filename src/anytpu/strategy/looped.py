"""`strategy.run_steps`: many steps of one function in one compiled loop.

Idea: batches are stacked, up to 64 MiB, and one call runs the function on each of them in turn, on the device. It
corresponds to a `tf.range` loop around `strategy.run`.

Rule: a call takes about a quarter of a second, so that Ctrl-C takes effect soon. The variables have their newest values
whenever nothing runs, also after an error.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine.backend import Backend, Loop
from anytpu.engine.feeds import BUFFER_BYTES, MAX_STEPS, BatchSource
from anytpu.engine.interrupts import deferred_interrupts, immediate_interrupts
from anytpu.engine.pace import CallWatch
from anytpu.errors import DataError, DataExhaustedError, SettingError
from anytpu.program.program import REPLICATED, Tree
from anytpu.strategy import variables as homes
from anytpu.strategy.arguments import ArgumentForm, ArrayLeaf, split_arguments, weak_spec_of
from anytpu.strategy.compiled_steps import CompiledStep, CompiledSteps
from anytpu.strategy.modules import refuse_shared, unwrap_static_leaves, wrap_static_leaves
from anytpu.strategy.per_replica import PerReplica
from anytpu.strategy.replicas import check_step


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["form"])
@dataclasses.dataclass(frozen=True)
class StepArguments:
    """The arguments of one step.

    Steps with different forms are compiled separately. A value that is not an array (a string, a bool) is in the form.

    Attributes:
        form: the form of the arguments.
        arrays: the passed values.
    """

    form: ArgumentForm
    arrays: list[Any]


def _capacity(batch_bytes: int) -> int:
    return max(1, min(MAX_STEPS, BUFFER_BYTES // max(batch_bytes, 1)))


@dataclasses.dataclass(frozen=True)
class LoopResult:
    """The results of many steps of a function.

    Attributes:
        last: outputs of the last step, each array as a `PerReplica`.
        every: for each call, the handles of its steps' outputs, `(capacity, replicas, ...)`, and the number of steps.
        state: new state of a pure step, as arrays; None for a function without state.
    """

    last: Tree
    every: list[tuple[Tree, int]]
    state: Tree


class LoopRun:
    """One run of many steps.

    Args:
        strategy: the strategy that runs the steps.
        compiled: the cache of its compiled steps.
        fn: the step function of one replica, of one batch or of (state, batch).
        state: the state of a pure step, a tree of arrays; None for a function without state.
        keeps_every: keep the outputs of all steps.

    Raises:
        SettingError: the function does not take these arguments, or the state has a leaf that is not an array.
    """

    def __init__(self, strategy: Any, compiled: CompiledSteps, fn: Callable, state: Tree, keeps_every: bool) -> None:
        self._strategy, self._compiled, self._fn = strategy, compiled, fn
        self._backend: Backend = strategy.backend
        self._keeps_every = keeps_every
        _check_takes(fn, state)
        refuse_shared(state)
        # Copy: a call donates its state, and these arrays belong to the user.
        copied = None if state is None else _copied(wrap_static_leaves(state))
        # The state of a pure step: its first and its present specs, and its handles on the cores.
        self._own = None if state is None else weak_spec_of(copied)
        self._own_now = self._own
        # The state of a whole-batch step is put when its layout is known, before the first call.
        self._is_whole = strategy.layout is not None
        self._own_handles = copied if state is None or self._is_whole else self._backend.put(copied, REPLICATED)
        # Of the next group of batches: the step of a whole-batch run, which decides their layouts, and the arguments.
        self._found: CompiledStep | None = None
        self._has_own_rows = False
        # Of the last call: its step, and the variables whose values are on the cores until `_settle` returns them.
        self._step: CompiledStep | None = None
        self._variables: list[Any] = []
        self._values: list[Any] | None = None
        self._watch = CallWatch()
        self._steps_run = 0
        self._result: tuple[Tree, list[tuple[Tree, int]]] = (None, [])

    def run(self, batches: Iterator[Any], steps: int) -> LoopResult:
        """Run `steps` steps.

        Raises:
            DataExhaustedError: `batches` ends earlier.
        """
        source = BatchSource(self._backend, map(self._arguments, batches), _capacity, self._layouts)
        with deferred_interrupts():
            try:
                with immediate_interrupts():
                    self._run(source, steps)
            finally:
                self._settle()
        last, every = self._result
        assert self._step is not None
        last = self._step.opened(self._backend, last)
        state = None
        if self._own is not None:
            state = unwrap_static_leaves(self._step.opened_own(self._backend, self._own_handles))
        return LoopResult(unwrap_static_leaves(last), every, state)

    def _arguments(self, batch: Any) -> StepArguments:
        """Return the arguments of a step; reject a batch that is not split."""
        replicas = self._strategy.num_replicas_in_sync
        form, arrays = split_arguments((batch,), None, replicas)
        leaves = [leaf for leaf in form.leaves if isinstance(leaf, ArrayLeaf)]
        if (
            not self._is_whole
            and replicas > 1
            and any(leaf.shape for leaf in leaves)
            and not any(leaf.is_split for leaf in leaves)
        ):
            raise DataError(
                f"the iterator yields whole batches, and each of the {replicas} replicas would run on all of "
                "their rows: split them with iterator = iter(strategy.distribute_dataset(dataset)). A step of the "
                'global batch, as for jax.jit or jax.shard_map, needs a strategy with layout="data" or another layout'
            )
        if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
            raise DataError(
                "the iterator yields typed random keys, and run_steps stacks batches in NumPy, which does not have "
                "them: put the key into the state, which the step splits: strategy.run_steps(step, iterator, steps, "
                "state=key); or yield numbers, jax.random.key_data(key)"
            )
        self._has_own_rows = any(isinstance(array, PerReplica) and array.has_own_rows for array in arrays)
        arrays = [array.padded() if isinstance(array, PerReplica) else array for array in arrays]
        return StepArguments(form, arrays)

    def _run(self, source: BatchSource, steps: int) -> None:
        while self._steps_run < steps:
            limit = steps - self._steps_run
            group = source.take(1 if self._step is None else self._step.pace.next_steps(limit))
            if group is None:
                raise DataExhaustedError(exhausted_message(self._steps_run, steps, self._own is not None))
            with self._backend.hosts.own_rows(self._has_own_rows):
                for segment in group.segments(self._loop):
                    self._call(segment)

    def _loop(self, batch: StepArguments, loop: Loop) -> Loop:
        loop = dataclasses.replace(loop, keeps_every=self._keeps_every)
        if self._is_whole:
            self._found = self._compiled.find(self._strategy, self._fn, batch.form, loop, self._own)
        return loop

    def _layouts(self, batch: StepArguments) -> StepArguments:
        """Return the layouts of a batch; the placement of a whole-batch step decides them, so it was found before."""
        layouts = None if self._found is None else self._found.layouts
        return StepArguments(batch.form, batch.form.layouts() if layouts is None else layouts[1])

    def _call(self, segment: Any) -> None:
        """Run the steps of one `FeedSegment` of the feed."""
        # 1. Find the compiled step.
        step = self._compiled.find(self._strategy, self._fn, segment.batch.form, segment.loop, self._own)
        # 2. Wait for the previous call, which measures its duration, then start this one. The call donates its state,
        # so an interrupt must not come before the new state is stored.
        self._backend.hosts.count_call()
        self._watch.wait(self._backend)
        began_s = time.perf_counter()
        with deferred_interrupts():
            if step is not self._step or self._values is None:
                self._settle()
                holder = homes.Holder("strategy.run_steps", self._settle)
                self._step, self._variables = step, step.variables
                self._values = homes.take(self._backend, self._variables, holder)
                if self._own is not None:
                    self._own_handles = jax.tree.map(self._in_dtype, self._own_handles, self._own_now, step.own)
                    self._own_now = step.own
                if step.layouts is not None:
                    self._own_handles = jax.tree.map(self._backend.put, self._own_handles, step.layouts[0])
            state = self._own_handles if self._is_whole else (self._values, self._own_handles)
            result = step.executable.steps(state, segment.feed.arrays, segment.start, segment.count)
            self._values, self._own_handles = ([], result.state) if self._is_whole else result.state
        # 3. Keep the outputs, and note the start of this call.
        self._result = result.last, [*self._result[1], (result.every, result.count)] if self._keeps_every else []
        self._steps_run += result.count
        awaited = result.last if jax.tree.leaves(result.last) else result.state
        self._watch.started(step.pace, result.count, began_s, awaited)
        if step.pace.is_measuring:
            self._watch.wait(self._backend)

    def _in_dtype(self, handle: Any, old: jax.ShapeDtypeStruct, new: jax.ShapeDtypeStruct) -> Any:
        """Return the handle of a leaf of the state in the dtype of the step, which decides that of a weak type."""
        if old.dtype == new.dtype:
            return handle
        array = jnp.asarray(self._backend.get(handle), new.dtype)
        return array if self._is_whole else self._backend.put(array, REPLICATED)

    def _settle(self) -> None:
        """Store the newest values in the variables of the last step."""
        if self._step is not None and self._values is not None:
            homes.settle(self._variables, self._values)
            self._values = None


def check_loop(fn: Any, iterator: Any, steps: Any) -> None:
    """Check the arguments of `run_steps`.

    Raises:
        SettingError: `fn` is not callable, `iterator` is not an iterator, or `steps` is not a positive integer.
        StrategyError: inside a function that `strategy.run` runs.
    """
    instead = "write the loop with jax.lax.fori_loop"
    check_step(fn, "run_steps", instead, "strategy.run_steps(fn, iterator, steps)")
    if not isinstance(steps, int | np.integer) or isinstance(steps, bool) or steps < 1:
        raise SettingError(f"steps must be a positive integer, not {steps!r}")
    if not hasattr(iterator, "__next__"):
        raise SettingError(
            f"iterator must be an iterator over batches, not a {type(iterator).__name__}, which would start again at "
            "its first batch at each call: make one with iterator = iter(dataset), once"
        )


def _check_takes(fn: Callable, state: Tree) -> None:
    """Check that a function can be called with one batch, or with a state and one batch."""
    arguments, expected = ((None,), "step(batch)") if state is None else ((None, None), "step(state, batch)")
    try:
        signature = inspect.signature(fn)
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise SettingError(
            f"{name} cannot be called as {expected}: {error}. run_steps passes the result of next(iterator) as one "
            "argument; unpack it inside: x, y = batch"
        ) from error
    except ValueError:
        return  # A function written in C has no signature to check.


def _copied(state: Tree) -> Tree:
    try:
        return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)
    except TypeError as error:
        raise SettingError(
            "state must be a tree of arrays and numbers, which the steps update: "
            f"{str(error).rstrip('.')}. Let the function close over anything else"
        ) from error


def exhausted_message(done: int, steps: int, has_state: bool) -> str:
    """Return the error text for batches that end before the steps.

    Args:
        done: number of finished steps.
        steps: number of requested steps.
        has_state: whether the step is pure and has a state.
    """
    consequence = (
        "The new state is lost; the state that you passed is unchanged"
        if has_state
        else "The model is at the last finished step"
    )
    return (
        f"the data ended after {done} of the {steps} steps. {consequence}. Ask for {max(done, 1)} steps or fewer, or "
        "repeat the data: dataset.repeat()"
    )
