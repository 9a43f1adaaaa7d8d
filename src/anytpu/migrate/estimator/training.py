"""`Training`: run loops of steps, with host work between them.

Rule: between two loops the host runs, in this order: the host calls of the loop's steps, hooks, the log line, the
checkpoint. The last loop is shortened to end at the last step. Losses are means over all replicas.
"""

from __future__ import annotations

import itertools
import logging
import time
from typing import Any

import jax
import numpy as np

from anytpu.engine.feeds import MAX_STEPS
from anytpu.errors import NaNLossError
from anytpu.migrate.estimator.inputs import HostBatches
from anytpu.migrate.estimator.mode_run import ModeRun, Outputs
from anytpu.migrate.estimator.run_config import LoopLength, RunConfig
from anytpu.migrate.estimator.spec import Hooks, call_on_host
from anytpu.migrate.estimator.state import EstimatorSaver

LOG = logging.getLogger("anytpu")


class Training:
    """One call of an estimator's `train`.

    Args:
        run: the run of mode TRAIN.
        batches: global batches.
        hooks: hooks of the caller and of the spec.
        saver: saves between loops.
        config: sets the length of loops, and the intervals of host calls and log lines.
    """

    def __init__(
        self, run: ModeRun, batches: HostBatches, hooks: Hooks, saver: EstimatorSaver, config: RunConfig
    ) -> None:
        assert config.tpu_config is not None
        self._run, self._batches, self._hooks, self._saver = run, batches, hooks, saver
        self._length = LoopLength.of(config.tpu_config.iterations_per_loop)
        self._every_n = config.tpu_config.experimental_host_call_every_n_steps
        self._log_steps = config.log_step_count_steps
        self._logged = (0, 0.0, 0)
        self._next_line = 0
        self.loss = float("nan")
        """The mean loss of the last step."""

    def train(self, first_batch: Any, step: int, last: int | None) -> Any:
        """Train from one global step to another, save, and return the position in the data.

        Args:
            first_batch: the first batch, which was taken from `batches` already.
            step: the current global step.
            last: the last global step; None trains until the batches end.
        """
        self._hooks.begin()
        self._saver.begin(step)
        self._hooks.ready()
        step = self.until(step, last, first_batch)
        position = self._batches.position()
        self._saver.end(step, position)
        self._hooks.end()
        LOG.info("Loss for final step: %.6g.", self.loss)
        return position

    def until(self, step: int, last: int | None, first_batch: Any) -> int:
        """Train from one global step to another, or until the batches end; return the last global step."""
        batches = itertools.chain([first_batch], self._batches)
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
            stops = bool(hosts.first(self._hooks.after(loss=self.loss, global_step=step)))
            self._report(step)
            if self._saver.is_due(step):
                self._saver.save(step, self._batches.position())
            if stops or steps_run < count:
                break
        return step

    def _loop(self, batches: Any, step: int, count: int) -> int:
        """Run one loop and return the number of steps that ran; it is smaller if the batches end."""
        steps_run = 0
        for outputs in self._run.steps(batches, count, MAX_STEPS):
            losses = outputs["loss"].mean(axis=1)
            _check_finite(losses, step + steps_run)
            self.loss = float(losses[-1])
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
        LOG.info("loss = %.6g, global_step = %d (%s)", self.loss, step, speed)
        self._logged, self._next_line = (step, now_s, compiled), step + self._log_steps


def _check_finite(losses: np.ndarray, step: int) -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise NaNLossError(
            f"the loss is not finite at global step {step + int(bad[0]) + 1}. The last checkpoint in model_dir is from "
            "before. Lower the learning rate, clip the gradients (clipnorm=1.0), or look for NaN in the data"
        )
