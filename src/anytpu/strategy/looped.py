"""Many steps of one function in one compiled loop: what `strategy.run_steps` does.

Idea: the batches are stacked, as many as 64 MiB hold, and one call runs the function on one after the other, on the
device. It is the counterpart of a `tf.range` loop around `strategy.run`.

Rule: a call lasts a quarter of a second or so, so that Ctrl-C is heard; the variables hold their newest values whenever
nothing runs, also after an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.engine.backend import Backend, Loop
from anytpu.engine.interrupts import deferred_interrupts, immediate_interrupts
from anytpu.engine.pace import CallWatch
from anytpu.errors import DataExhaustedError, SettingError
from anytpu.program.program import REPLICATED, Tree, spec_of
from anytpu.strategy import variables as homes
from anytpu.strategy.compiled import CompiledStep
from anytpu.strategy.kept_steps import CompiledSteps, check_step
from anytpu.strategy.modules import closed, opened, refuse_shared
from anytpu.strategy.step_source import StepSource


@dataclasses.dataclass(frozen=True)
class LoopResult:
    """What many steps of a function left.

    Attributes:
        last: what the last step returned, each array as a `PerReplica`.
        every: pairs (handles of the outputs of the steps of one call, `(capacity, replicas, ...)` each; how many ran).
        state: the new state of a pure step, as arrays; None for a function that has none.
    """

    last: Tree
    every: list[tuple[Tree, int]]
    state: Tree


class LoopRun:
    """One run of many steps.

    Args:
        strategy: where.
        compiled: the compiled steps of the strategy.
        fn: what one replica does with one batch, or with (state, batch).
        state: the state of a pure step, arrays; None for a function that has none.
        keeps_every: keep the outputs of all steps.
    """

    def __init__(self, strategy: Any, compiled: CompiledSteps, fn: Callable, state: Tree, keeps_every: bool) -> None:
        self._strategy, self._compiled, self._fn = strategy, compiled, fn
        self._backend: Backend = strategy.backend
        self._keeps_every = keeps_every
        # Copies: a call consumes the state that it is handed, and these arrays are the user's.
        refuse_shared(state)
        copied = None if state is None else _copied(closed(state))
        self._own = None if state is None else spec_of(copied)
        self._own_handles = None if state is None else self._backend.put(copied, REPLICATED)
        self._step: CompiledStep | None = None
        self._variables: list[Any] = []
        self._values: list[Any] | None = None
        self._watch = CallWatch()
        self._done = 0
        self._result: tuple[Tree, list[tuple[Tree, int]]] = (None, [])

    def run(self, batches: Iterator[Any], steps: int) -> LoopResult:
        """Run so many steps.

        Raises:
            DataExhaustedError: there are fewer batches.
        """
        source = StepSource(self._backend, batches, self._strategy.num_replicas_in_sync)
        with deferred_interrupts():
            try:
                with immediate_interrupts():
                    self._run(source, steps)
            finally:
                self._settle()
        last, every = self._result
        assert self._step is not None
        last = self._step.opened(self._backend, last, source.last_arrays())
        state = None if self._own is None else opened(self._backend.get(self._own_handles))
        return LoopResult(opened(last), every, state)

    def _run(self, source: StepSource, steps: int) -> None:
        while self._done < steps:
            group = source.take(self._next_steps(steps - self._done))
            if group is None:
                raise DataExhaustedError(ended(self._done, steps, self._own is not None))
            for segment in group.segments(self._loop):
                self._call(segment)

    def _loop(self, _: Tree, loop: Loop) -> Loop:
        return dataclasses.replace(loop, keeps_every=self._keeps_every)

    def _next_steps(self, most: int) -> int:
        return 1 if self._step is None else self._step.pace.next_steps(most)

    def _call(self, segment: Any) -> None:
        """Run the steps of one `FeedSegment` of the feed."""
        # One loop runs batches of any counts of rows.
        form = dataclasses.replace(segment.batch.form, counts=None)
        step = self._compiled.find(self._strategy, self._fn, form, segment.loop, self._own)
        self._watch.wait(self._backend)
        began_s = time.perf_counter()
        # The call consumes the state that it is handed.
        with deferred_interrupts():
            if step is not self._step or self._values is None:
                self._settle()
                holder = homes.Holder("strategy.run_steps", self._settle)
                self._step, self._variables = step, step.variables
                self._values = homes.take(self._backend, self._variables, holder)
            state = (self._values, self._own_handles)
            done = step.executable.steps(state, segment.feed.arrays, segment.start, segment.count)
            self._values, self._own_handles = done.state
        self._result = done.last, [*self._result[1], (done.every, done.count)] if self._keeps_every else []
        self._done += done.count
        results = done.last if jax.tree.leaves(done.last) else done.state
        self._watch.started(step.pace, done.count, began_s, results, step.executable.listener)
        if step.pace.is_measuring:
            self._watch.wait(self._backend)

    def _settle(self) -> None:
        """Let the variables of the step that ran last hold their newest values."""
        if self._step is not None and self._values is not None:
            homes.settle(self._backend, self._variables, self._values)
            self._values = None


def run_loop(
    strategy: Any, compiled: CompiledSteps, fn: Callable, iterator: Any, steps: int, state: Tree, keeps_every: bool
) -> LoopResult:
    """Run so many steps of a function; see `LoopRun`.

    Raises:
        SettingError: the iterator is none, `steps` is not a positive integer, or the state holds what is no array.
        StrategyError: inside a function that `strategy.run` runs.
    """
    check_loop(fn, iterator, steps)
    _check_takes(fn, state)
    return LoopRun(strategy, compiled, fn, state, keeps_every).run(iterator, int(steps))


def check_loop(fn: Any, iterator: Any, steps: Any) -> None:
    """Refuse what `run_steps` cannot run; see `run_loop`."""
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
    """Refuse a function that cannot be called with one batch, or with a state and one batch."""
    given, wanted = ((None,), "step(batch)") if state is None else ((None, None), "step(state, batch)")
    try:
        signature = inspect.signature(fn)
        signature.bind(*given)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise SettingError(
            f"{name} cannot be called as {wanted}: {error}. run_steps passes what next(iterator) returns as one "
            "argument; take it apart inside: x, y = batch"
        ) from error
    except ValueError:
        return  # Written in C: it has no signature to look at.


def _copied(state: Tree) -> Tree:
    try:
        return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)
    except TypeError as error:
        raise SettingError(
            f"state must be a tree of arrays and numbers, which go through the steps: {error} Let the function close "
            "over anything else"
        ) from error


def ended(done: int, steps: int, has_state: bool) -> str:
    """Return what to say where the batches end before the steps."""
    stands = (
        "The new state is lost, the one that you passed is as it was"
        if has_state
        else ("The model stands at the last finished step")
    )
    return (
        f"the data ended after {done} of the {steps} steps. {stands}. Ask for {max(done, 1)} steps or fewer, or let "
        "the data go on: dataset.repeat()"
    )
