"""`Training`: run loops of steps, with host work and saves between them.

Rule: between two loops the host runs, in this order: the host calls of the loop's steps, hooks, the log line, the
checkpoint. The last loop is shortened to end at the last step. Losses are means over all replicas.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from anytpu.engine.feeds import MAX_STEPS
from anytpu.errors import EstimatorError, NaNLossError
from anytpu.migrate.estimator.inputs import HostBatches
from anytpu.migrate.estimator.mode_run import ModeRun, Outputs
from anytpu.migrate.estimator.run_config import LoopLength, RunConfig
from anytpu.migrate.estimator.spec import Hooks, call_on_host
from anytpu.migrate.estimator.state import MAKER, POSITION, ModelState
from anytpu.train.checkpoint import SavePolicy, Saver, Snapshot, is_finite

LOG = logging.getLogger("anytpu")


class Training:
    """One call of an estimator's `train`.

    Args:
        run: the run of mode TRAIN.
        batches: global batches.
        hooks: hooks of the caller and of the spec.
        state: the variables, and the checkpoints to save to.
        config: sets the length of loops, and the intervals of host calls, log lines and saves.
        listeners: objects with `begin`, `before_save`, `after_save` and `end`, called with None as the session.
    """

    def __init__(
        self,
        run: ModeRun,
        batches: HostBatches,
        hooks: Hooks,
        state: ModelState,
        config: RunConfig,
        listeners: Iterable[Any] | None,
    ) -> None:
        assert config.tpu_config is not None
        self._run, self._batches, self._hooks, self._state = run, batches, hooks, state
        self._length = LoopLength.of(config.tpu_config.iterations_per_loop)
        self._every_n = config.tpu_config.experimental_host_call_every_n_steps
        self._log_steps = config.log_step_count_steps
        self._logged = (0, 0.0, 0)
        self._next_line = 0
        self._loss = float("nan")
        self._listeners = list(listeners or ())
        newest = state.checkpoints.latest()
        self._is_new = newest is None
        self._finite: frozenset[str] = frozenset()
        policy = SavePolicy(config.save_checkpoints_secs, config.save_checkpoints_steps)
        self._saver = Saver(state.checkpoints, policy, newest or 0)

    def train(self, first_batch: Any, last: int | None) -> None:
        """Train to a global step, and save.

        Args:
            first_batch: the first batch, which was taken from the batches already.
            last: the last global step; None trains until the batches end.

        Raises:
            EstimatorError: the variables belong to another step than the training.
            FileError: a checkpoint cannot be saved.
            NaNLossError: the loss is not finite.
        """
        first = self._state.step
        try:
            self._hooks.begin()
            self._begin_saving(first)
            self._hooks.ready()
            step = self._train(first, last, itertools.chain([first_batch], self._batches))
            position = self._batches.position()
            self._end_saving(step, position)
            self._hooks.end()
            LOG.info("Loss for final step: %.6g.", self._loss)
            self._state.saved(position)
        finally:
            # The last checkpoint is written, also after an error of the training.
            self._saver.wait()

    def _train(self, step: int, last: int | None, batches: Any) -> int:
        """Train from one global step to another, or until the batches end; return the last global step."""
        self._logged = (step, time.perf_counter(), self._run.deployment.strategy.compilations)
        self._next_line = step
        is_first, hosts = True, self._run.deployment.strategy.hosts
        while last is None or step < last:
            count = self._length.next_steps() if last is None else min(self._length.next_steps(), last - step)
            self._hooks.before()
            began_s = time.perf_counter()
            steps_run = self._loop(batches, step, count)
            if steps_run == 0:
                break
            step += steps_run
            # Host 0's clock and hooks decide for all hosts.
            self._length.ran(steps_run, hosts.exchange(time.perf_counter() - began_s).duration_s, is_first)
            is_first = False
            stops = bool(hosts.first(self._hooks.after(loss=self._loss, global_step=step)))
            self._report(step)
            if self._saver.is_due(step):
                self._save(step, self._batches.position(), self._saver.save)
            if stops or steps_run < count:
                break
        return step

    def _loop(self, batches: Any, step: int, count: int) -> int:
        """Run one loop and return the number of steps that ran; it is smaller if the batches end."""
        steps_run = 0
        for outputs in self._run.steps(batches, count, MAX_STEPS):
            losses = outputs["loss"].mean(axis=1)
            _check_finite(losses, step + steps_run)
            self._loss = float(losses[-1])
            self._call_host(outputs["host_call"], steps_run)
            steps_run += len(losses)
        return steps_run

    def _call_host(self, tensors: Outputs, first: int) -> None:
        spec = self._run.step.spec
        if tensors is None or spec is None or spec.host_call is None:
            return
        for index in range(len(jax.tree.leaves(tensors)[0])):
            if (first + index) % self._every_n == 0:
                rows = jax.tree.map(lambda leaf, index=index: leaf[index].reshape(-1, *leaf.shape[3:]), tensors)
                call_on_host("host_call", spec.host_call, rows)

    def _report(self, step: int) -> None:
        if self._log_steps is None or step < self._next_line:
            return
        (before, before_s, before_compiled), now_s = self._logged, time.perf_counter()
        compiled = self._run.deployment.strategy.compilations
        taken_s, steps, rows = now_s - before_s, step - before, self._run.deployment.rows
        speed = f"{steps / taken_s:.4g} steps/s"
        if rows is not None:
            speed += f", {rows * steps / taken_s:.4g} examples/s"
        if compiled != before_compiled:
            speed = f"{taken_s:.3g} s, compiling included"
        LOG.info("loss = %.6g, global_step = %d (%s)", self._loss, step, speed)
        self._logged, self._next_line = (step, now_s, compiled), step + self._log_steps

    def _begin_saving(self, step: int) -> None:
        """Let errors of saving appear before the first step: save now, or for a resumed run check the room."""
        for listener in self._listeners:
            listener.begin()
        values = self._state.trained_values()
        self._finite = frozenset(name for name, value in values.items() if is_finite(value))
        if self._is_new:
            self._save(step, None, self._saver.save_first)
        else:
            self._state.checkpoints.check_room(sum(value.nbytes for value in values.values()))

    def _save(self, step: int, position: Any, save: Callable[[Callable[[], Snapshot]], None]) -> None:
        """Save in the background, or before the listeners are called, if there are any."""
        state = self._state
        if state.step != step:
            raise EstimatorError(
                f"the checkpoint of step {step} is not saved, since the variables are those of step "
                f"{state.step}: code other than the training has assigned to the global step. Let only "
                "train change it; the next train continues from the newest checkpoint"
            )
        for listener in self._listeners:
            listener.before_save(None, step)
        save(lambda: self._snapshot(step, position))
        LOG.info("Saving the checkpoint of step %d in %s", step, state.checkpoints.path(step))
        if self._listeners:
            self._saver.wait()
            state.checkpoints.job.exchange()  # The file is there on every host.
        for listener in self._listeners:
            listener.after_save(None, step)

    def _end_saving(self, step: int, position: Any) -> None:
        """Save the last step if it is not saved yet, and call the listeners' `end`."""
        if step != self._saver.step:
            self._save(step, position, self._saver.save)
        self._saver.finish()
        for listener in self._listeners:
            listener.end(None, step)

    def _snapshot(self, step: int, position: Any) -> Snapshot:
        forms = self._state.trained_forms().items()
        return Snapshot(
            step,
            MAKER,
            self._state.trained_values(),
            trained=frozenset(name for name, form in forms if form.is_trained),
            optimizer_state=frozenset(name for name, form in forms if form.is_optimizer_state),
            finite=self._finite,
            host={POSITION: position},
        )


def _check_finite(losses: np.ndarray, step: int) -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise NaNLossError(
            f"the loss is not finite at global step {step + int(bad[0]) + 1}. The last checkpoint in model_dir is from "
            "before. Lower the learning rate, clip the gradients (clipnorm=1.0), or look for NaN in the data"
        )
