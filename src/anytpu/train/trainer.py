"""`Trainer`: what runs the steps of one Keras model on a strategy.

Idea: Keras's fit calls `train_function(state, iterator)` and carries the state from call to call. Here the state that
Keras carries is the lists of variables; their values stay on the device, in one tree of handles that is replaced in one
assignment when a call returns. An interrupt, a raising callback or a raising generator finds the model at the last
finished call.

Rule: a step is compiled once for full batches and once more for a last partial one; `strategy.compilations` counts.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import os
import sys
import threading
import time
from collections import OrderedDict
from typing import Any

import jax
import numpy as np

from anytpu.engine.backend import Backend, Executable, Loop, Steps
from anytpu.engine.feeds import BUFFER_BYTES, MOST_STEPS, Group, Segment, one_batch
from anytpu.engine.interrupts import deferred_interrupts
from anytpu.engine.measurements import Listener, listener_of
from anytpu.engine.pace import Pace, Watch
from anytpu.program.program import Program, Tree
from anytpu.strategy import TPUStrategy
from anytpu.strategy import variables as homes
from anytpu.train import checks
from anytpu.train.keras_program import Part, keras_program, padding_of, parts_of

_RESIDENT_SHARE = 4
_HOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_MOST_EXECUTABLES = 64
_LOG = logging.getLogger("anytpu")


@dataclasses.dataclass
class _Live:
    """The state between two calls.

    Attributes:
        parts: the lists of Keras variables, as Keras carries them.
        handles: their values, in lists of handles.
        holder: the owner of the variables.
    """

    parts: tuple[Part, ...]
    handles: Tree
    holder: homes.Holder


class Trainer:
    """Runs a Keras model's steps in the engine's loop.

    Args:
        model: a compiled Keras model.
        strategy: where.
        steps_per_execution: the steps of a call, or None to choose by the clock.
    """

    def __init__(self, model: Any, strategy: TPUStrategy, steps_per_execution: int | None) -> None:
        self.model = model
        self.strategy = strategy
        self.steps_per_execution = steps_per_execution
        self.place = f"{strategy!r}, in whose scope {model.name!r} was compiled,"
        """What runs the model, for errors."""
        self.compilations = 0
        """How many programs were compiled so far."""
        self.one_step_calls = False
        """True while a callback wants to be called after every step."""
        self.guard: str | None = None
        """The log that must stay finite, or None."""
        self.every: list[tuple[Tree, int]] = []
        """Handles of the logs of the steps of each segment of the last call, and how many."""
        self.newest_logs: Tree = None
        """What the newest call of training returns, perhaps still being computed."""
        self.input_shares: list[float] = []
        """For each epoch of the newest fit the share of its time that the device waited for batches."""
        self.notices: list[str] | None = None
        """Lines to be printed when Keras's own line of the epoch stands; None while nobody wants to read any."""
        self.padding = padding_of(model)
        """Pads sequences of many lengths to a few."""
        self.occupancy = homes.occupancy_of(model)
        """Which thread runs the model."""
        self._live: _Live | None = None
        self._parts: dict[str, tuple[Part, ...]] = {}
        self._ready: dict[str, Any] = {}
        # A callback that Keras calls in a thread of its own reads variables while the next call runs.
        self._lock = threading.RLock()
        self._paces: dict[str, tuple[Any, Pace]] = {}
        self._executables: OrderedDict[tuple, Executable] = OrderedDict()
        self._output_bytes: dict[tuple, int] = {}
        self._last: tuple[tuple, Executable] | None = None
        self._watch = Watch()
        self._initial_epoch = 0
        self._epoch = 1
        self._step = 0

    @property
    def backend(self) -> Backend:
        """The backend of the strategy."""
        return self.strategy.backend

    def fits(self, arrays: Tree) -> bool:
        """Say whether a data set may lie on every core whole: it takes a quarter of a core's memory at most.

        A core whose memory is not known computes on the host, in the host's memory.
        """
        memory_bytes = min(core.memory_bytes or _HOST_BYTES for core in self.backend.cores)
        return sum(leaf.nbytes for leaf in jax.tree.leaves(arrays)) <= memory_bytes // _RESIDENT_SHARE

    def next_steps(self, mode: str, most: int) -> int:
        """Return how many steps the next call may run."""
        if self._runs_one_step():
            return 1
        return self._pace(mode).next_steps(most)

    def _runs_one_step(self) -> bool:
        return self.one_step_calls and self.steps_per_execution is None

    def stack_capacity(self, batch_bytes: int) -> int:
        """Return how many batches of this size travel together."""
        if self.steps_per_execution is not None:
            return self.steps_per_execution
        return 1 if self.one_step_calls else max(1, min(MOST_STEPS, BUFFER_BYTES // max(batch_bytes, 1)))

    def state(self, mode: str) -> tuple[Part, ...]:
        """Return the state as Keras carries it: the lists of variables that a step of this mode takes."""
        parts = parts_of(self.model, mode)
        if not _are_same(parts, self._parts.get(mode, ())):
            self._parts[mode] = parts
        return self._parts[mode]

    def is_ready(self, mode: str) -> bool:
        """Say whether a step of this mode has run, with the optimizer that the model has now: all is built."""
        return self._ready.get(mode, self) is self.model.optimizer

    def run(self, mode: str, parts: tuple[Part, ...], group: Any) -> list[Steps]:
        """Run one group of steps, or one batch, and keep the new state.

        Args:
            mode: "train", "test" or "predict".
            parts: the state as Keras carries it.
            group: a `Group`, or an iterator over batches, of which one is taken.

        Returns:
            What each segment returned.
        """
        if not isinstance(group, Group):
            group = one_batch(self.backend, self.padding.padded(next(group), may_stay=True))
        self.every = []
        done = [self._run_segment(mode, parts, segment) for segment in self._segments(mode, parts, group)]
        self._ready[mode] = self.model.optimizer
        return done

    def give_back(self) -> None:
        """Let go of the model's variables, which have their newest values then."""
        with deferred_interrupts(), self._lock:
            live, self._live = self._live, None
            if live is not None:
                flat = _flat(live.parts)
                homes.give(flat, jax.tree.leaves(live.handles))
                homes.release(flat)

    def restore_metrics(self) -> None:
        """Undo the reset of the metrics: as in Keras, an epoch without steps has the logs of the one before."""
        homes.restore(self.model.metrics_variables)

    def step_logs(self) -> dict[str, Any]:
        """Return the logs of each step of the last call, by name, `(steps,)` each."""
        parts = [jax.tree.map(lambda one, n=n: np.asarray(one)[:n], self.backend.get(logs)) for logs, n in self.every]
        return jax.tree.map(lambda *ones: np.concatenate(ones), *parts) if parts else {}

    def begin_fit(self, initial_epoch: int, guard: str | None, is_silent: bool = False) -> None:
        """Start a fit: epochs count from `initial_epoch`, and the log `guard` must stay finite."""
        self._initial_epoch, self.guard = initial_epoch, guard
        self.input_shares, self.notices = [], None if is_silent else []

    def begin_epoch(self, number: int) -> None:
        """Start the epoch of this number, from 1, of the fit that runs."""
        self._epoch, self._step = self._initial_epoch + number, 0

    def end_epoch(self, input_share: float, notice: str | None) -> None:
        """End an epoch of training: the share of it that the input took, and what there is to say about that."""
        self.input_shares.append(input_share)
        if notice and self.notices is not None:
            self.notices.append(f"anytpu: {notice.format(epoch=self._epoch)}")

    def print_notices(self) -> None:
        """Print on stderr what there is to say."""
        while self.notices:
            print(self.notices.pop(0), file=sys.stderr)

    def _segments(self, mode: str, parts: tuple[Part, ...], group: Group) -> Any:
        def loop_of(batch: Tree, loop: Loop) -> Loop:
            if self._runs_one_step() and loop.capacity > 1:
                loop = dataclasses.replace(loop, capacity=1)
            if mode == "predict" and loop.capacity > 1:
                loop = dataclasses.replace(loop, capacity=self._output_capacity(parts, batch, loop.capacity))
            guard = self.guard if mode == "train" else None
            return loop if guard is None else dataclasses.replace(loop, guard=guard)

        return group.segments(loop_of)

    def _run_segment(self, mode: str, parts: tuple[Part, ...], segment: Segment) -> Steps:
        executable = self._executable(mode, parts, segment)
        checks.check_strict(self.strategy, jax.tree.leaves(segment.batch)[0].shape[0])
        self._watch.wait(self.backend)
        began_s = time.perf_counter()
        # The call consumes the state that it is handed.
        with deferred_interrupts(), self._lock:
            live = self._taken(parts)
            done = executable.steps(live.handles, segment.feed, segment.start, segment.count)
            live.handles = done.state
        if mode != "predict":
            self.every.append((done.every, segment.count))
        self._check(mode, done, segment)
        self._measure(mode, done, segment, began_s, executable.listener)
        return done

    def _taken(self, parts: tuple[Part, ...]) -> _Live:
        """Return the state of these parts, as the last call left it."""
        if self._live is None or self._live.parts is not parts:
            self.give_back()
            holder = homes.Holder(self.occupancy.what, self.give_back, self._newest, self._lock)
            taken = iter(homes.take(self.backend, _flat(parts), holder))
            self._live = _Live(parts, tuple([next(taken) for _ in part.variables] for part in parts), holder)
        _renew(self.backend, self._live)
        return self._live

    def _newest(self, index: int) -> Any:
        assert self._live is not None
        return jax.tree.leaves(self._live.handles)[index]

    def _executable(self, mode: str, parts: tuple[Part, ...], segment: Segment) -> Executable:
        call = (mode, parts, segment.batch, segment.loop)
        if self._last is None or self._last[0] != call:
            self._last = (call, self._find_executable(mode, parts, segment))
        return self._last[1]

    def _find_executable(self, mode: str, parts: tuple[Part, ...], segment: Segment) -> Executable:
        specs, tree = jax.tree.flatten(segment.batch)
        shapes = tuple((spec.shape, str(spec.dtype)) for spec in specs)
        held = tuple(tuple(id(variable) for variable in part.variables) for part in parts)
        key = (mode, tree, shapes, segment.loop, held)
        if key not in self._executables:
            program = self._program(mode, segment.batch, parts)
            began_s = time.perf_counter()
            self._executables[key] = self.strategy.compile(program, segment.loop)
            self._executables[key].listener = listener_of(program, self.backend.cores)
            self.compilations += 1
            self._log_compilation(program, time.perf_counter() - began_s)
            if len(self._executables) > _MOST_EXECUTABLES:
                self._executables.popitem(last=False)
        self._executables.move_to_end(key)
        return self._executables[key]

    def _program(self, mode: str, batch: Tree, parts: tuple[Part, ...]) -> Program:
        return keras_program(self.model, mode, batch, parts, self.padding)

    def _log_compilation(self, program: Program, duration_s: float) -> None:
        count = self.strategy.num_replicas_in_sync
        cores = "1 core" if count == 1 else f"{count} cores"
        shapes = ", ".join(str(leaf.shape) for leaf in jax.tree.leaves(program.batch))
        _LOG.info("compiled %s for %s and batches of %s: %.2f s", program.name, cores, shapes, duration_s)

    def _output_capacity(self, parts: tuple[Part, ...], batch: Tree, capacity: int) -> int:
        """Return the capacity at which the predictions of a call still fit the buffer."""
        specs, tree = jax.tree.flatten(batch)
        key = (tree, tuple((spec.shape, str(spec.dtype)) for spec in specs))
        if key not in self._output_bytes:
            program = self._program("predict", batch, parts)
            _, outputs = jax.eval_shape(program.step, program.state, program.batch)
            size = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(outputs))
            self._output_bytes[key] = size
        return max(1, min(capacity, BUFFER_BYTES // max(self._output_bytes[key], 1)))

    def set_pace(self, mode: str, batches: Any) -> None:
        """Start choosing the steps of calls afresh, unless the batches are like those of the last time.

        Args:
            mode: "train", "test" or "predict".
            batches: what a batch is like, or None when that is not known before the first.
        """
        if batches is None or mode not in self._paces or self._paces[mode][0] != batches:
            self._paces[mode] = (batches, Pace(fixed=self.steps_per_execution))

    def _pace(self, mode: str) -> Pace:
        if mode not in self._paces:
            self.set_pace(mode, None)
        return self._paces[mode][1]

    def _measure(self, mode: str, done: Steps, segment: Segment, began_s: float, listener: Listener | None) -> None:
        pace = self._pace(mode)
        if pace.fixed is not None or segment.loop.capacity == 1:
            if listener is None or listener.is_satisfied:
                return
            pace = Pace(fixed=1)  # The clock chooses nothing here: only the listener learns from it.
        results = done.last if jax.tree.leaves(done.last) else done.state
        self._watch.started(pace, segment.count, began_s, results, listener)
        if pace.is_measuring:
            self._watch.wait(self.backend)

    def _check(self, mode: str, done: Steps, segment: Segment) -> None:
        if mode != "train":
            return
        first, self._step = self._step, self._step + segment.count
        if done.bad_step is not None and (bad := int(self.backend.get(done.bad_step))) >= 0:
            checks.refuse_nan(self.guard, first + bad + 1, self._epoch)


def _renew(backend: Backend, live: _Live) -> None:
    """Bring what was assigned to the variables to the backend."""
    if new := homes.renewed(backend, live.holder):
        leaves, form = jax.tree.flatten(live.handles)
        for index, handle in new:
            leaves[index] = handle
        live.handles = jax.tree.unflatten(form, leaves)


def _are_same(ones: tuple[Part, ...], others: tuple[Part, ...]) -> bool:
    """Say whether these are lists of the same variables."""
    pairs = zip(ones, others, strict=False)
    return len(ones) == len(others) and all(
        len(one.variables) == len(other.variables) and all(map(operator.is_, one.variables, other.variables))
        for one, other in pairs
    )


def _flat(parts: tuple[Part, ...]) -> list[Any]:
    return [variable for part in parts for variable in part.variables]
