"""`Trainer`: runs the steps of one Keras model on a strategy.

Idea: Keras's fit calls `train_function(state, iterator)` and passes the state from call to call. Here the state that
Keras passes is the lists of variables. Their values stay on the device, in one tree of handles, which is replaced in
one assignment when a call returns. After an interrupt or an error in a callback or generator, the model has the state
of the last finished call.

Rule: a step is compiled once for full batches and once more for a last partial batch. `Trainer.compilations` counts the
compiled programs.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from anytpu.engine.backend import Backend, Executable, Loop, StepResults
from anytpu.engine.executable import fetch
from anytpu.engine.feeds import BUFFER_BYTES, MAX_STEPS, FeedSegment, LayoutOf, StepGroup, one_batch
from anytpu.engine.handles import LaterArray
from anytpu.engine.interrupts import deferred_interrupts
from anytpu.engine.pace import CallPace, CallWatch
from anytpu.program.program import Layout, Program, Tree, spec_of
from anytpu.strategy import TPUStrategy
from anytpu.strategy import variables as homes
from anytpu.strategy.state_extension import extension_of
from anytpu.train import checks
from anytpu.train.keras_program import PARTS, VariableList, parts_of
from anytpu.train.labels import LabelCheck
from anytpu.train.outside import OutsideVariables
from anytpu.train.padding import LENGTHS, Padding
from anytpu.train.pass_place import FitReports
from anytpu.train.placed_programs import PlacedPrograms
from anytpu.train.skipped_steps import SkippedSteps

_RESIDENT_SHARE = 4
_MAX_EXECUTABLES = 64
_LOG = logging.getLogger("anytpu")


_Compiled = tuple[Executable, list[Layout] | None]
"""An executable, and the layout of each variable in its state; None: whole on each core."""


@dataclasses.dataclass
class _Live:
    """The state between two calls, held on the device.

    Attributes:
        parts: the lists of Keras variables, as Keras passes them between calls.
        handles: handles of the variables' values, nested like `parts`.
        holder: the owner of the variables.
        layouts: the layout of each variable, or None: whole on each core.
    """

    parts: tuple[VariableList, ...]
    handles: Tree
    holder: homes.Holder
    layouts: list[Layout] | None


class Trainer:
    """Runs a Keras model's steps in the engine's loop.

    Args:
        model: a compiled Keras model.
        strategy: the strategy that the steps run on.
        steps_per_execution: number of steps of a call, or None to choose it by measured time.
    """

    def __init__(self, model: Any, strategy: TPUStrategy, steps_per_execution: int | None) -> None:
        self.model = model
        self.strategy = strategy
        self.steps_per_execution = steps_per_execution
        self.place = f"{strategy!r}, in whose scope {model.name!r} was compiled,"
        """Description of the strategy and the model, for errors."""
        self.has_functions = True
        """Whether the trainer makes the functions that Keras's loops call, not the model's class itself."""
        self.compilations = 0
        """Number of programs compiled so far."""
        self.one_step_calls = False
        """Whether a callback must be called after every step."""
        self.on_nan: str | None = None
        """Treatment of steps whose results are not finite: "raise", "skip", or None for none."""
        self.every: list[tuple[Tree, int]] = []
        """For each segment of the last call, the handles of the logs of its steps and the number of steps."""
        self.checkpoints: FitReports | None = None
        """The checkpoints of the fit that runs, or None."""
        self.record: Any = None
        """The `FitRecord` of the fit that runs, or None."""
        self.compiling_s = 0.0
        """Seconds spent on compilations so far."""
        self.newest_logs: Tree = None
        """Logs of the newest training call, perhaps still being computed."""
        self._logs: Tree = None
        self._newest_of_any: Tree = None
        self.input_shares: list[float] = []
        """For each epoch of the newest fit, the share of time that the device waited for batches, from 0 to 1."""
        self.notices: list[str] | None = None
        """Lines to print after Keras's own line of the epoch; None if the fit is silent."""
        self.labels = LabelCheck(model)
        """Checks the labels of calls on one batch."""
        self.padding = Padding(model, vars(model).get(LENGTHS, ()))
        """Pads sequences of many lengths to a few lengths."""
        self._programs = PlacedPrograms(model, strategy)
        self.resolve()
        self.occupancy = homes.occupancy_of(model)
        """Records the thread that runs the model."""
        self._live: _Live | None = None
        self._examples = 0
        self._parts: dict[str, tuple[VariableList, ...]] = {}
        self._outside: dict[str, VariableList] = {}
        self._ready: dict[str, Any] = {}
        # Keras may run a callback in another thread, which reads variables while the next call runs.
        self._lock = threading.RLock()
        self._paces: dict[str, tuple[Any, CallPace]] = {}
        self._executables: OrderedDict[tuple, _Compiled] = OrderedDict()
        self._output_bytes: dict[tuple, int] = {}
        self._last: tuple[tuple, _Compiled] | None = None
        self._watch = CallWatch()
        self._ahead = 0
        self._skips: SkippedSteps | None = None
        self._initial_epoch = 0
        self.epoch = 1
        self._step = 0

    def resolve(self) -> None:
        """Find the backend, and the model's layers with a state of their own: layers may have been made since.

        Raises:
            StrategyError: the system was shut down.
        """
        self.backend: Backend = self.strategy.backend
        self.extension = self._programs.extension = extension_of(self.model)

    def fits(self, arrays: Tree) -> bool:
        """Return whether a data set may be resident on every core: it takes at most a quarter of a core's memory."""
        fits = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays)) <= self.backend.memory_bytes // _RESIDENT_SHARE
        return bool(self.backend.hosts.first(fits))

    def next_steps(self, mode: str, max_steps: int) -> int:
        """Return the number of steps that the next call may run, from 1 to `max_steps`."""
        if self._runs_one_step():
            return 1
        return self._pace(mode).next_steps(max_steps)

    def _runs_one_step(self) -> bool:
        return self.one_step_calls and self.steps_per_execution is None

    def stack_capacity(self, batch_bytes: int) -> int:
        """Return how many batches of this size are stacked and sent together."""
        if self.steps_per_execution is not None:
            return self.steps_per_execution
        return 1 if self.one_step_calls else max(1, min(MAX_STEPS, BUFFER_BYTES // max(batch_bytes, 1)))

    def state(self, mode: str) -> tuple[VariableList, ...]:
        """Return the lists of variables that a step of this mode takes: Keras's, and that of the ones outside."""
        parts = parts_of(self.model, mode, self._outside.setdefault(mode, VariableList(())))
        if not _are_same(parts, self._parts.get(mode, ())):
            self._parts[mode] = parts
        return self._parts[mode]

    def is_ready(self, mode: str) -> bool:
        """Return whether a step of this mode has run with the model's current optimizer, so everything is built."""
        return self._ready.get(mode, self) is self.model.optimizer

    def outside_variables(self) -> list[Any]:
        """Return the variables outside of Keras's lists that steps of any mode have assigned so far."""
        listed = {id(variable) for variable in _flat(parts_of(self.model, "train"))}
        parts = [self._outside[mode] for mode in PARTS if mode in self._outside]
        found = {id(v): v for part in parts for v in part.variables if id(v) in part.assigned}
        return [variable for variable in found.values() if id(variable) not in listed]

    def run(self, mode: str, group: Any) -> list[StepResults]:
        """Run one group of steps, or one batch, and keep the new state.

        Args:
            mode: "train", "test" or "predict", whose `state` Keras has asked for.
            group: a `StepGroup`, or an iterator over batches, of which one is taken.

        Returns:
            The results of each segment of the group.
        """
        if not isinstance(group, StepGroup):
            batch = self.padding.padded(next(group))
            group = one_batch(self.backend, batch, self.layout_of(mode))
        self.every, self._examples = [], 0
        results = [self._run_segment(mode, segment) for segment in self._segments(mode, group)]
        self._ready[mode] = self.model.optimizer
        return results

    def trace(self, mode: str, batch: Tree) -> Tree:
        """Return the specs of the outputs of a step on a batch of these shapes, and find its variables outside."""

        def outputs_of() -> Tree:
            program = self._programs.program(mode, spec_of(batch), self.state(mode))
            return jax.eval_shape(program.step, program.state, program.batch)[1]

        return self._traced(mode, outputs_of)

    def layout_of(self, mode: str) -> LayoutOf:
        """Return the function that returns the layouts of a batch, of a mode; see `engine/feeds.py`."""
        return lambda batch: self._traced(mode, lambda: self._programs.batch_layout(mode, batch, self.state(mode)))

    def _traced(self, mode: str, make: Callable[[], Any]) -> Any:
        """Return `make()`. If it traces a step that uses variables outside of its state, add them and trace again."""
        while True:
            try:
                return make()
            except OutsideVariables as found:
                outside = self._outside[mode]
                outside.assigned.update(found.assigned)
                self._outside[mode] = VariableList((*outside.variables, *found.variables), outside.assigned)
                self._parts[mode] = parts_of(self.model, mode, self._outside[mode])
                if self.checkpoints is not None:
                    self.checkpoints.found_outside()

    def give_back(self) -> None:
        """Write the newest values to the model's variables and release them."""
        with deferred_interrupts(), self._lock:
            live, self._live = self._live, None
            if live is not None:
                flat = _flat(live.parts)
                homes.give(flat, jax.tree.leaves(live.handles))
                homes.release(flat)

    def restore_metrics(self) -> None:
        """Undo the reset of the metrics: as in Keras, an epoch without steps has the logs of the previous epoch."""
        homes.restore(self.model.metrics_variables)

    def step_logs(self) -> dict[str, Any]:
        """Return the logs of each step of the last call, by name, `(steps,)` each."""
        parts = [jax.tree.map(lambda log, n=n: np.asarray(log)[:n], self.backend.get(logs)) for logs, n in self.every]
        return jax.tree.map(lambda *segments: np.concatenate(segments), *parts) if parts else {}

    def begin_fit(self, initial_epoch: int, on_nan: str | None, is_silent: bool = False) -> None:
        """Start a fit: epochs count from `initial_epoch`, and `on_nan` treats steps that are not finite."""
        self._initial_epoch, self.on_nan = initial_epoch, on_nan
        self._skips = SkippedSteps(self.backend, self._nan_hint) if on_nan == "skip" else None
        self.input_shares, self.notices = [], None if is_silent else []
        if self.checkpoints is not None:
            self._last = None  # The checkpoints record the program.

    def end_fit(self) -> None:
        """End a fit, and print what it has to say on stderr."""
        self.on_nan = self.checkpoints = self._skips = None
        self.print_notices()

    def begin_epoch(self, number: int) -> None:
        """Start the epoch of this number, from 1, of the fit that runs."""
        self.epoch, self._step = self._initial_epoch + number, 0

    def end_epoch(self, input_share: float, notice: str | None) -> None:
        """End an epoch of training: record its input share, and its notice unless it is None."""
        if self._skips is not None:
            self._skips.end_epoch(self.epoch)
        self.input_shares.append(input_share)
        if notice and self.notices is not None:
            self.notices.append(f"anytpu: {notice.format(epoch=self.epoch)}")

    def later(self, mode: str, logs: Tree) -> Tree:
        """Return the logs of a call, which may still be on their way; `wait_for_logs` raises the errors of the call."""
        self._logs = self._newest_of_any = self.backend.get_later(logs)
        if mode == "train":
            self.newest_logs = self._logs
            if self.record is not None:
                self.record.called(self._logs, self.every, self._examples)
        return self._logs

    def are_newest(self, logs: Tree) -> bool:
        """Return whether logs are those of the newest call, and no variable was read or written since."""
        live = self._live
        return live is not None and logs is self._newest_of_any and not live.holder.touched and self.on_nan != "skip"

    def fetched(self, logs: Tree) -> Tree:
        """Return logs of the newest call, or results computed from it, after a transfer of all of them.

        Raises:
            BackendError: the call failed.
        """
        self._watch.read(self.backend, lambda: fetch(logs))
        if self.record is not None:
            self.record.steps_ended()
        # Keras keeps a log of several numbers as it is.
        return jax.tree.map(lambda log: np.asarray(log) if isinstance(log, LaterArray) else log, logs)

    def wait_for_logs(self) -> None:
        """Wait for the logs of the newest call if they come over a network: Keras hides errors of reading them.

        Raises:
            BackendError: the call failed.
        """
        logs, self._logs = self._logs, None
        if self.backend.is_far:
            jax.tree.map(np.asarray, logs)

    def print_notices(self) -> None:
        """Print the collected notices on stderr."""
        while self.notices:
            print(self.notices.pop(0), file=sys.stderr)

    def _segments(self, mode: str, group: StepGroup) -> Any:
        def loop_of(batch: Tree, loop: Loop) -> Loop:
            if self._runs_one_step() and loop.capacity > 1:
                loop = dataclasses.replace(loop, capacity=1)
            if mode == "predict" and loop.capacity > 1:
                loop = dataclasses.replace(loop, capacity=self._output_capacity(batch, loop.capacity))
            if mode != "train" or self.on_nan is None:
                return loop
            return dataclasses.replace(loop, guard="loss", skips=self.on_nan == "skip")

        return group.segments(loop_of)

    def _run_segment(self, mode: str, segment: FeedSegment) -> StepResults:
        # 1. Find or compile the executable.
        executable, layouts = self._executable(mode, segment)
        if self.strategy.strict:
            checks.check_strict(self.strategy, jax.tree.leaves(segment.batch)[0].shape[0])
        # 2. Start the call while the previous one runs, so that no device waits for the host. The one before must have
        # ended. A step without outputs is waited for by its state, which this call consumes.
        self._watch.wait(self.backend, self._ahead)
        began_s = time.perf_counter()
        # The call consumes its input state. Until the new handles are stored, no interrupt or other thread may see it.
        with deferred_interrupts(), self._lock:
            if mode == "train" and self.checkpoints is not None:
                self.checkpoints.change()
            live = self._take(self._parts[mode], layouts)
            results = executable.steps(live.handles, segment.feed, segment.start, segment.count)
            live.handles = results.state
        # 3. Keep what the host reads later: the logs of each step, and the number of bad ones.
        if mode != "predict":
            self.every.append((results.every, segment.count))
            if self.record is not None:
                self._examples += jax.tree.leaves(segment.batch)[0].shape[0] * segment.count
        self._check(mode, results, segment)
        self._measure(mode, results, segment, began_s)
        return results

    def _take(self, parts: tuple[VariableList, ...], layouts: list[Layout] | None) -> _Live:
        """Return the live state of these parts; take the variables from the model first if necessary."""
        if self._live is None or self._live.parts is not parts or self._live.layouts != layouts:
            self.give_back()
            holder = homes.Holder(self.occupancy.what, self.give_back, self._newest, self._lock)
            taken = iter(homes.take(self.backend, _flat(parts), holder, layouts))
            self._live = _Live(parts, tuple([next(taken) for _ in part.variables] for part in parts), holder, layouts)
        _renew(self.backend, self._live)
        return self._live

    def _newest(self, index: int) -> Any:
        assert self._live is not None
        return jax.tree.leaves(self._live.handles)[index]

    def _executable(self, mode: str, segment: FeedSegment) -> _Compiled:
        call = (mode, self._parts[mode], segment.batch, segment.loop)
        if self._last is None or self._last[0] != call:
            found = self._traced(mode, lambda: self._find_executable(mode, self._parts[mode], segment))
            self._last = ((mode, self._parts[mode], segment.batch, segment.loop), found)
        return self._last[1]

    def _find_executable(self, mode: str, parts: tuple[VariableList, ...], segment: FeedSegment) -> _Compiled:
        if mode == "train" and self.checkpoints is not None:
            self.checkpoints.compiled(self._programs.program(mode, segment.batch, parts))
        key = (self._programs.key(mode, segment.batch, parts), segment.loop)
        if key not in self._executables:
            program = self._programs.program(mode, segment.batch, parts)
            began_s = time.perf_counter()
            executable = self.strategy.compile(program, segment.loop)
            self._executables[key] = executable, self._programs.state_layouts(mode, segment.batch, parts)
            self.compilations += 1
            duration_s = time.perf_counter() - began_s
            self.compiling_s += duration_s
            self._log_compilation(program, duration_s)
            if len(self._executables) > _MAX_EXECUTABLES:
                self._executables.popitem(last=False)
        self._executables.move_to_end(key)
        return self._executables[key]

    def _log_compilation(self, program: Program, duration_s: float) -> None:
        count = self.strategy.num_replicas_in_sync
        cores = "1 core" if count == 1 else f"{count} cores"
        shapes = ", ".join(str(leaf.shape) for leaf in jax.tree.leaves(program.batch))
        _LOG.info("compiled %s for %s and batches of %s: %.2f s", program.name, cores, shapes, duration_s)

    def _output_capacity(self, batch: Tree, capacity: int) -> int:
        """Return the largest capacity at which the predictions of a call fit the buffer."""
        specs, tree = jax.tree.flatten(batch)
        key = (tree, tuple((spec.shape, str(spec.dtype)) for spec in specs))
        if key not in self._output_bytes:
            outputs = self.trace("predict", batch)
            size = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(outputs))
            self._output_bytes[key] = size
        return max(1, min(capacity, BUFFER_BYTES // max(self._output_bytes[key], 1)))

    def set_pace(self, mode: str, batches: Any) -> None:
        """Restart the choice of the number of steps in a call, unless the batches have the same shapes as last time.

        Args:
            mode: "train", "test" or "predict".
            batches: shapes of a batch, or None if they are unknown before the first batch.
        """
        if batches is None or mode not in self._paces or self._paces[mode][0] != batches:
            self._paces[mode] = (batches, CallPace(fixed=self.steps_per_execution))

    def _pace(self, mode: str) -> CallPace:
        if mode not in self._paces:
            self.set_pace(mode, None)
        return self._paces[mode][1]

    def _measure(self, mode: str, results: StepResults, segment: FeedSegment, began_s: float) -> None:
        pace = self._pace(mode)
        if pace.fixed is not None or segment.loop.capacity == 1:
            return
        self._ahead = 1 if jax.tree.leaves(results.last) else 0
        self._watch.started(pace, segment.count, began_s, results.last if self._ahead else results.state)
        if pace.is_measuring:
            self._watch.wait(self.backend)

    def _check(self, mode: str, results: StepResults, segment: FeedSegment) -> None:
        if mode != "train":
            return
        first, self._step = self._step, self._step + segment.count
        if self._skips is not None:
            self._skips.add(results.bad_steps, segment.count, self.epoch)
        elif results.bad_steps is not None and (bad := int(self.backend.get(results.bad_steps))):
            # After the first bad step every later one counts as bad, so the first bad step follows from their number.
            checks.refuse_nan(first + segment.count - bad + 1, self.epoch, self._nan_hint)

    @property
    def step_flops(self) -> float | None:
        """Operations of one step of the newest executable on one core, as XLA counts them; None if not known."""
        return None if self._last is None else getattr(self._last[1][0], "flops", None)

    @property
    def _nan_hint(self) -> str:
        return "" if self.extension is None else self.extension.nan_hint


def _renew(backend: Backend, live: _Live) -> None:
    """Copy values that were assigned to the variables since the last call to the backend."""
    if new := homes.renewed(backend, live.holder):
        leaves, form = jax.tree.flatten(live.handles)
        for index, handle in new:
            leaves[index] = handle
        live.handles = jax.tree.unflatten(form, leaves)


def _are_same(parts: tuple[VariableList, ...], previous: tuple[VariableList, ...]) -> bool:
    """Return whether these are lists of the same variables."""
    if len(parts) != len(previous):
        return False
    for new, old in zip(parts, previous, strict=True):
        if len(new.variables) != len(old.variables) or not all(map(operator.is_, new.variables, old.variables)):
            return False
    return True


def _flat(parts: tuple[VariableList, ...]) -> list[Any]:
    return [variable for part in parts for variable in part.variables]
